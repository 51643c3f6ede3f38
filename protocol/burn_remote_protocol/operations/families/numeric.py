"""Rows of operations on both floating-point and integer tensors."""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.operations import estimates
from burn_remote_protocol.operations.fields import (
    boolean,
    padding_mode,
    padding_pairs,
    scalar,
    tensor_in,
    tensor_out,
    usize,
    usize_list,
)
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.operations.shape_rules.checks import ARITHMETIC, INTEGERS, NUMBERS
from burn_remote_protocol.operations.shape_rules.elementwise_rules import (
    broadcast,
    compare,
    compare_scalar,
    created,
    power,
    same,
)
from burn_remote_protocol.operations.shape_rules.movement_rules import padded
from burn_remote_protocol.operations.shape_rules.reduction_rules import (
    along_axis,
    arg_reduce_axis,
    arg_top,
    reduce_all,
    reduce_axes,
    reduce_axis,
    reduce_axis_with_indices,
    sorted_along,
    sorted_indices,
    sorted_with_indices,
    top,
    top_with_indices,
)
from burn_remote_protocol.operations.shared_fields import (
    BINARY,
    DIM,
    RANDOM_NUMBERS,
    REDUCE_DIM,
    REDUCE_DIM_WITH_INDICES,
    SCALAR,
    UNARY,
)
from burn_remote_protocol.operations.vocabularies import SINCE_BURN_0_22

ADD: Final = Row("Numeric", "Add", BINARY, broadcast(ARITHMETIC), estimates.elementwise(2))
ADD_SCALAR: Final = Row(
    "Numeric", "AddScalar", SCALAR, same(ARITHMETIC), estimates.elementwise(2, converts=True)
)
SUB: Final = Row("Numeric", "Sub", BINARY, broadcast(ARITHMETIC), estimates.elementwise(2))
SUB_SCALAR: Final = Row(
    "Numeric", "SubScalar", SCALAR, same(ARITHMETIC), estimates.elementwise(2, converts=True)
)
DIV: Final = Row(
    "Numeric", "Div", BINARY, broadcast(ARITHMETIC), estimates.elementwise(8, integers=9)
)
DIV_SCALAR: Final = Row(
    "Numeric",
    "DivScalar",
    SCALAR,
    same(ARITHMETIC),
    estimates.elementwise(8, integers=9, converts=True),
)
REM: Final = Row("Numeric", "Rem", BINARY, broadcast(NUMBERS), estimates.elementwise(40))
REM_SCALAR: Final = Row(
    "Numeric", "RemScalar", SCALAR, same(NUMBERS), estimates.elementwise(40, converts=True)
)
MUL: Final = Row("Numeric", "Mul", BINARY, broadcast(ARITHMETIC), estimates.elementwise(2))
MUL_SCALAR: Final = Row(
    "Numeric", "MulScalar", SCALAR, same(ARITHMETIC), estimates.elementwise(2, converts=True)
)
ABS: Final = Row("Numeric", "Abs", UNARY, same(NUMBERS), estimates.elementwise(2))
FULL: Final = Row(
    "Numeric",
    "Full",
    (tensor_out("out"), scalar("value")),
    created(ARITHMETIC),
    estimates.elementwise(1),
)
MEAN_DIM: Final = Row(
    "Numeric", "MeanDim", REDUCE_DIM, reduce_axis(ARITHMETIC), estimates.along_rows(3, 40, 24)
)
MEAN: Final = Row("Numeric", "Mean", UNARY, reduce_all(ARITHMETIC), estimates.per_element(2))
SUM: Final = Row("Numeric", "Sum", UNARY, reduce_all(ARITHMETIC), estimates.per_element(2))
SUM_DIM: Final = Row(
    "Numeric", "SumDim", REDUCE_DIM, reduce_axis(ARITHMETIC), estimates.along_rows(3, 40)
)
PROD: Final = Row("Numeric", "Prod", UNARY, reduce_all(ARITHMETIC), estimates.per_element(2))
PROD_DIM: Final = Row(
    "Numeric", "ProdDim", REDUCE_DIM, reduce_axis(ARITHMETIC), estimates.along_rows(3, 40)
)
GREATER: Final = Row("Numeric", "Greater", BINARY, compare(NUMBERS), estimates.elementwise(2))
GREATER_ELEM: Final = Row(
    "Numeric", "GreaterElem", SCALAR, compare_scalar(NUMBERS), estimates.elementwise(2)
)
GREATER_EQUAL: Final = Row(
    "Numeric", "GreaterEqual", BINARY, compare(NUMBERS), estimates.elementwise(2)
)
GREATER_EQUAL_ELEM: Final = Row(
    "Numeric", "GreaterEqualElem", SCALAR, compare_scalar(NUMBERS), estimates.elementwise(2)
)
LOWER: Final = Row("Numeric", "Lower", BINARY, compare(NUMBERS), estimates.elementwise(2))
LOWER_ELEM: Final = Row(
    "Numeric", "LowerElem", SCALAR, compare_scalar(NUMBERS), estimates.elementwise(2)
)
LOWER_EQUAL: Final = Row(
    "Numeric", "LowerEqual", BINARY, compare(NUMBERS), estimates.elementwise(2)
)
LOWER_EQUAL_ELEM: Final = Row(
    "Numeric", "LowerEqualElem", SCALAR, compare_scalar(NUMBERS), estimates.elementwise(2)
)
ARG_MAX: Final = Row(
    "Numeric", "ArgMax", REDUCE_DIM, arg_reduce_axis, estimates.positions(4, 100, 16)
)
ARG_TOP_K: Final = Row("Numeric", "ArgTopK", REDUCE_DIM, arg_top, estimates.ranked(8, 24))
TOP_K: Final = Row("Numeric", "TopK", REDUCE_DIM, top, estimates.ranked(8, 18))
ARG_MIN: Final = Row(
    "Numeric", "ArgMin", REDUCE_DIM, arg_reduce_axis, estimates.positions(4, 100, 16)
)
MAX: Final = Row("Numeric", "Max", UNARY, reduce_all(NUMBERS), estimates.per_element(2))
MAX_DIM_WITH_INDICES: Final = Row(
    "Numeric",
    "MaxDimWithIndices",
    REDUCE_DIM_WITH_INDICES,
    reduce_axis_with_indices,
    estimates.positions(4, 150, 32),
)
MIN_DIM_WITH_INDICES: Final = Row(
    "Numeric",
    "MinDimWithIndices",
    REDUCE_DIM_WITH_INDICES,
    reduce_axis_with_indices,
    estimates.positions(4, 150, 32),
)
MIN: Final = Row("Numeric", "Min", UNARY, reduce_all(NUMBERS), estimates.per_element(2))
MAX_DIM: Final = Row(
    "Numeric", "MaxDim", REDUCE_DIM, reduce_axis(NUMBERS), estimates.along_rows(3, 40, 12)
)
MIN_DIM: Final = Row(
    "Numeric", "MinDim", REDUCE_DIM, reduce_axis(NUMBERS), estimates.along_rows(3, 40, 12)
)
MAX_ABS: Final = Row("Numeric", "MaxAbs", UNARY, reduce_all(NUMBERS), estimates.per_element(3, 8))
MAX_ABS_DIM: Final = Row(
    "Numeric", "MaxAbsDim", REDUCE_DIM, reduce_axis(NUMBERS), estimates.per_element(4, 8)
)
CLAMP: Final = Row(
    "Numeric",
    "Clamp",
    (tensor_in("tensor"), scalar("min"), scalar("max"), tensor_out("out")),
    same(NUMBERS),
    estimates.elementwise(4, 8, converts=True),
)
INT_RANDOM: Final = Row(
    "Numeric",
    "IntRandom",
    RANDOM_NUMBERS,
    created(INTEGERS),
    estimates.elementwise(10, 20, call_cost=5_000),
)
POWI: Final = Row(
    "Numeric",
    "Powi",
    BINARY,
    power(ARITHMETIC),
    estimates.elementwise(50, 9, integers=24, converts=True),
)
POWI_SCALAR: Final = Row(
    "Numeric",
    "PowiScalar",
    SCALAR,
    same(ARITHMETIC),
    estimates.elementwise(50, 0, integers=16, converts=True),
)
CUM_SUM: Final = Row("Numeric", "CumSum", DIM, along_axis(ARITHMETIC), estimates.along_rows(8, 80))
CUM_PROD: Final = Row(
    "Numeric", "CumProd", DIM, along_axis(ARITHMETIC), estimates.along_rows(8, 80)
)
CUM_MIN: Final = Row("Numeric", "CumMin", DIM, along_axis(NUMBERS), estimates.along_rows(8, 80))
CUM_MAX: Final = Row("Numeric", "CumMax", DIM, along_axis(NUMBERS), estimates.along_rows(8, 80))

NEG: Final = Row(
    "Numeric", "Neg", UNARY, same(NUMBERS), estimates.elementwise(2, halves=6), SINCE_BURN_0_22
)
SIGN: Final = Row(
    "Numeric", "Sign", UNARY, same(NUMBERS), estimates.elementwise(4, halves=6), SINCE_BURN_0_22
)
CLAMP_MIN: Final = Row(
    "Numeric",
    "ClampMin",
    SCALAR,
    same(NUMBERS),
    estimates.elementwise(4, 8, converts=True),
    SINCE_BURN_0_22,
)
CLAMP_MAX: Final = Row(
    "Numeric",
    "ClampMax",
    SCALAR,
    same(NUMBERS),
    estimates.elementwise(4, 8, converts=True),
    SINCE_BURN_0_22,
)
SUM_DIMS: Final = Row(
    "Numeric",
    "SumDims",
    (tensor_in("input"), tensor_out("out"), usize_list("axes")),
    reduce_axes(ARITHMETIC),
    estimates.per_element(4),
    SINCE_BURN_0_22,
)
SORT: Final = Row(
    "Numeric",
    "Sort",
    (tensor_in("input"), usize("dim"), boolean("descending"), tensor_out("out")),
    sorted_along,
    estimates.ranked(8, 18),
    SINCE_BURN_0_22,
)
SORT_WITH_INDICES: Final = Row(
    "Numeric",
    "SortWithIndices",
    (
        tensor_in("input"),
        usize("dim"),
        boolean("descending"),
        tensor_out("out"),
        tensor_out("out_indices"),
    ),
    sorted_with_indices,
    estimates.ranked(10, 32),
    SINCE_BURN_0_22,
)
ARG_SORT: Final = Row(
    "Numeric",
    "ArgSort",
    (tensor_in("input"), usize("dim"), boolean("descending"), tensor_out("out")),
    sorted_indices,
    estimates.ranked(8, 24),
    SINCE_BURN_0_22,
)
TOP_K_WITH_INDICES: Final = Row(
    "Numeric",
    "TopKWithIndices",
    (
        tensor_in("tensor"),
        usize("dim"),
        usize("k"),
        tensor_out("out"),
        tensor_out("out_indices"),
    ),
    top_with_indices,
    estimates.ranked(10, 32),
    SINCE_BURN_0_22,
)
PAD: Final = Row(
    "Numeric",
    "Pad",
    (tensor_in("input"), tensor_out("out"), padding_pairs("padding"), padding_mode("mode")),
    padded(ARITHMETIC),
    estimates.padding(20_000, 6),
    SINCE_BURN_0_22,
)

ROWS: Final = (
    ADD, ADD_SCALAR, SUB, SUB_SCALAR, DIV, DIV_SCALAR, REM, REM_SCALAR, MUL, MUL_SCALAR, ABS,
    FULL, MEAN_DIM, MEAN, SUM, SUM_DIM, PROD, PROD_DIM, GREATER, GREATER_ELEM, GREATER_EQUAL,
    GREATER_EQUAL_ELEM, LOWER, LOWER_ELEM, LOWER_EQUAL, LOWER_EQUAL_ELEM, ARG_MAX, ARG_TOP_K,
    TOP_K, ARG_MIN, MAX, MAX_DIM_WITH_INDICES, MIN_DIM_WITH_INDICES, MIN, MAX_DIM, MIN_DIM,
    MAX_ABS, MAX_ABS_DIM, CLAMP, INT_RANDOM, POWI, POWI_SCALAR, CUM_SUM, CUM_PROD, CUM_MIN,
    CUM_MAX, NEG, SIGN, CLAMP_MIN, CLAMP_MAX, SUM_DIMS, SORT, SORT_WITH_INDICES, ARG_SORT,
    TOP_K_WITH_INDICES, PAD,
)  # fmt: skip
