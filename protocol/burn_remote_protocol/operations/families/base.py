"""Rows of operations on tensors of any dtype."""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.operations import estimates
from burn_remote_protocol.operations.fields import (
    name_of,
    scalar,
    slices,
    tensor_in,
    tensor_out,
    tensors_in,
    usize,
    usize_list,
)
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.operations.shape_rules.checks import ANY, QUANTIZED
from burn_remote_protocol.operations.shape_rules.elementwise_rules import (
    cast,
    compare,
    compare_scalar,
    created,
    mask_fill,
    mask_where,
)
from burn_remote_protocol.operations.shape_rules.indexing_rules import (
    gather,
    gather_nd,
    scatter,
    scatter_nd,
    select,
    select_assign,
)
from burn_remote_protocol.operations.shape_rules.movement_rules import (
    cat,
    expand,
    flip,
    permute,
    repeat_dim,
    reshape,
    slice_assign,
    slice_tensor,
    swap_dims,
    unfold,
)
from burn_remote_protocol.operations.shape_rules.reduction_rules import any_of_all, any_of_axis
from burn_remote_protocol.operations.shared_fields import (
    BINARY,
    CREATION,
    REDUCE_DIM,
    SCALAR,
    UNARY,
    UPDATES,
)
from burn_remote_protocol.operations.vocabularies import SINCE_BURN_0_22

RESHAPE: Final = Row("Base", "Reshape", UNARY, reshape, estimates.per_element(2, converts=False))
SWAP_DIMS: Final = Row(
    "Base",
    "SwapDims",
    (tensor_in("input"), tensor_out("out"), usize("dim1"), usize("dim2")),
    swap_dims,
    estimates.VIEW,
)
PERMUTE: Final = Row(
    "Base",
    "Permute",
    (tensor_in("input"), tensor_out("out"), usize_list("axes")),
    permute,
    estimates.VIEW,
)
FLIP: Final = Row(
    "Base",
    "Flip",
    (tensor_in("input"), tensor_out("out"), usize_list("axes")),
    flip,
    estimates.VIEW,
)
EXPAND: Final = Row("Base", "Expand", UNARY, expand, estimates.VIEW)
UNFOLD: Final = Row(
    "Base",
    "Unfold",
    (tensor_in("input"), tensor_out("out"), usize("dim"), usize("size"), usize("step")),
    unfold,
    estimates.per_element(2, converts=False),
)
SLICE: Final = Row(
    "Base",
    "Slice",
    (tensor_in("tensor"), slices("ranges"), tensor_out("out")),
    slice_tensor,
    estimates.per_element(2, converts=False),
)
SLICE_ASSIGN: Final = Row(
    "Base",
    "SliceAssign",
    (tensor_in("tensor"), slices("ranges"), tensor_in("value"), tensor_out("out")),
    slice_assign,
    estimates.per_element(3, converts=False),
)
SELECT: Final = Row(
    "Base",
    "Select",
    (tensor_in("tensor"), usize("dim"), tensor_in("indices"), tensor_out("out")),
    select,
    estimates.indexed(4),
)
SELECT_ASSIGN: Final = Row(
    "Base",
    "SelectAssign",
    (
        tensor_in("tensor"),
        usize("dim"),
        tensor_in("indices"),
        tensor_in("value"),
        name_of("update", *UPDATES),
        tensor_out("out"),
    ),
    select_assign,
    estimates.updated(30),
)
MASK_WHERE: Final = Row(
    "Base",
    "MaskWhere",
    (tensor_in("tensor"), tensor_in("mask"), tensor_in("value"), tensor_out("out")),
    mask_where,
    estimates.elementwise(3),
)
MASK_FILL: Final = Row(
    "Base",
    "MaskFill",
    (tensor_in("tensor"), tensor_in("mask"), scalar("value"), tensor_out("out")),
    mask_fill,
    estimates.elementwise(3, converts=True),
)
GATHER: Final = Row(
    "Base",
    "Gather",
    (tensor_in("tensor"), usize("dim"), tensor_in("indices"), tensor_out("out")),
    gather,
    estimates.indexed(15, 16),
)
SCATTER: Final = Row(
    "Base",
    "Scatter",
    (
        tensor_in("tensor"),
        usize("dim"),
        tensor_in("indices"),
        tensor_in("value"),
        name_of("update", *UPDATES),
        tensor_out("out"),
    ),
    scatter,
    estimates.updated(30),
)
SCATTER_ND: Final = Row(
    "Base",
    "ScatterNd",
    (
        tensor_in("data"),
        tensor_in("indices"),
        tensor_in("values"),
        name_of("reduction", *UPDATES),
        tensor_out("out"),
    ),
    scatter_nd,
    estimates.SCATTER_ND,
)
GATHER_ND: Final = Row(
    "Base",
    "GatherNd",
    (tensor_in("data"), tensor_in("indices"), tensor_out("out")),
    gather_nd,
    estimates.GATHER_ND,
)
EQUAL: Final = Row("Base", "Equal", BINARY, compare(ANY), estimates.elementwise(2))
EQUAL_ELEM: Final = Row("Base", "EqualElem", SCALAR, compare_scalar(ANY), estimates.elementwise(2))
REPEAT_DIM: Final = Row(
    "Base",
    "RepeatDim",
    (tensor_in("tensor"), usize("dim"), usize("times"), tensor_out("out")),
    repeat_dim,
    estimates.per_element(3, converts=False),
)
CAT: Final = Row(
    "Base", "Cat", (tensors_in("tensors"), usize("dim"), tensor_out("out")), cat, estimates.CAT
)
CAST: Final = Row("Base", "Cast", UNARY, cast, estimates.conversion(6))
EMPTY: Final = Row("Base", "Empty", CREATION, created(ANY), estimates.elementwise(1))
ONES: Final = Row("Base", "Ones", CREATION, created(ANY), estimates.elementwise(1))
ZEROS: Final = Row("Base", "Zeros", CREATION, created(ANY), estimates.elementwise(1))

NOT_EQUAL: Final = Row(
    "Base", "NotEqual", BINARY, compare(ANY), estimates.elementwise(2), SINCE_BURN_0_22
)
NOT_EQUAL_ELEM: Final = Row(
    "Base", "NotEqualElem", SCALAR, compare_scalar(ANY), estimates.elementwise(2), SINCE_BURN_0_22
)
ALL: Final = Row(
    "Base", "All", UNARY, any_of_all(ANY - QUANTIZED), estimates.per_element(2, 1), SINCE_BURN_0_22
)
ANY_: Final = Row(
    "Base", "Any", UNARY, any_of_all(ANY - QUANTIZED), estimates.per_element(2, 1), SINCE_BURN_0_22
)
ALL_DIM: Final = Row(
    "Base",
    "AllDim",
    REDUCE_DIM,
    any_of_axis(ANY - QUANTIZED),
    estimates.along_rows(3, 40, elements=1),
    SINCE_BURN_0_22,
)
ANY_DIM: Final = Row(
    "Base",
    "AnyDim",
    REDUCE_DIM,
    any_of_axis(ANY - QUANTIZED),
    estimates.along_rows(3, 40, elements=1),
    SINCE_BURN_0_22,
)

ROWS: Final = (
    RESHAPE, SWAP_DIMS, PERMUTE, FLIP, EXPAND, UNFOLD, SLICE, SLICE_ASSIGN, SELECT,
    SELECT_ASSIGN, MASK_WHERE, MASK_FILL, GATHER, SCATTER, SCATTER_ND, GATHER_ND, EQUAL,
    EQUAL_ELEM, REPEAT_DIM, CAT, CAST, EMPTY, ONES, ZEROS, NOT_EQUAL, NOT_EQUAL_ELEM, ALL, ANY_,
    ALL_DIM, ANY_DIM,
)  # fmt: skip
