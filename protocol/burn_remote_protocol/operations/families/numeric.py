"""Which operations have floating-point and integer tensors alike?"""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.operations.fields import scalar, tensor_in, tensor_out
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.operations.rules.checks import INTEGERS, NUMBERS
from burn_remote_protocol.operations.rules.elementwise import (
    broadcast,
    compare,
    compare_scalar,
    created,
    power,
    same,
)
from burn_remote_protocol.operations.rules.reduction import (
    along_axis,
    arg_reduce_axis,
    arg_top,
    reduce_all,
    reduce_axis,
    reduce_axis_with_indices,
    top,
)
from burn_remote_protocol.operations.structs import (
    BINARY,
    DIM,
    RANDOM_NUMBERS,
    REDUCE_DIM,
    REDUCE_DIM_WITH_INDICES,
    SCALAR,
    UNARY,
)

ADD: Final = Row("Numeric", "Add", BINARY, broadcast(NUMBERS))
ADD_SCALAR: Final = Row("Numeric", "AddScalar", SCALAR, same(NUMBERS))
SUB: Final = Row("Numeric", "Sub", BINARY, broadcast(NUMBERS))
SUB_SCALAR: Final = Row("Numeric", "SubScalar", SCALAR, same(NUMBERS))
DIV: Final = Row("Numeric", "Div", BINARY, broadcast(NUMBERS))
DIV_SCALAR: Final = Row("Numeric", "DivScalar", SCALAR, same(NUMBERS))
REM: Final = Row("Numeric", "Rem", BINARY, broadcast(NUMBERS))
REM_SCALAR: Final = Row("Numeric", "RemScalar", SCALAR, same(NUMBERS))
MUL: Final = Row("Numeric", "Mul", BINARY, broadcast(NUMBERS))
MUL_SCALAR: Final = Row("Numeric", "MulScalar", SCALAR, same(NUMBERS))
ABS: Final = Row("Numeric", "Abs", UNARY, same(NUMBERS))
FULL: Final = Row("Numeric", "Full", (tensor_out("out"), scalar("value")), created(NUMBERS))
MEAN_DIM: Final = Row("Numeric", "MeanDim", REDUCE_DIM, reduce_axis(NUMBERS))
MEAN: Final = Row("Numeric", "Mean", UNARY, reduce_all(NUMBERS))
SUM: Final = Row("Numeric", "Sum", UNARY, reduce_all(NUMBERS))
SUM_DIM: Final = Row("Numeric", "SumDim", REDUCE_DIM, reduce_axis(NUMBERS))
PROD: Final = Row("Numeric", "Prod", UNARY, reduce_all(NUMBERS))
PROD_DIM: Final = Row("Numeric", "ProdDim", REDUCE_DIM, reduce_axis(NUMBERS))
GREATER: Final = Row("Numeric", "Greater", BINARY, compare(NUMBERS))
GREATER_ELEM: Final = Row("Numeric", "GreaterElem", SCALAR, compare_scalar(NUMBERS))
GREATER_EQUAL: Final = Row("Numeric", "GreaterEqual", BINARY, compare(NUMBERS))
GREATER_EQUAL_ELEM: Final = Row("Numeric", "GreaterEqualElem", SCALAR, compare_scalar(NUMBERS))
LOWER: Final = Row("Numeric", "Lower", BINARY, compare(NUMBERS))
LOWER_ELEM: Final = Row("Numeric", "LowerElem", SCALAR, compare_scalar(NUMBERS))
LOWER_EQUAL: Final = Row("Numeric", "LowerEqual", BINARY, compare(NUMBERS))
LOWER_EQUAL_ELEM: Final = Row("Numeric", "LowerEqualElem", SCALAR, compare_scalar(NUMBERS))
ARG_MAX: Final = Row("Numeric", "ArgMax", REDUCE_DIM, arg_reduce_axis)
ARG_TOP_K: Final = Row("Numeric", "ArgTopK", REDUCE_DIM, arg_top)
TOP_K: Final = Row("Numeric", "TopK", REDUCE_DIM, top)
ARG_MIN: Final = Row("Numeric", "ArgMin", REDUCE_DIM, arg_reduce_axis)
MAX: Final = Row("Numeric", "Max", UNARY, reduce_all(NUMBERS))
MAX_DIM_WITH_INDICES: Final = Row(
    "Numeric", "MaxDimWithIndices", REDUCE_DIM_WITH_INDICES, reduce_axis_with_indices
)
MIN_DIM_WITH_INDICES: Final = Row(
    "Numeric", "MinDimWithIndices", REDUCE_DIM_WITH_INDICES, reduce_axis_with_indices
)
MIN: Final = Row("Numeric", "Min", UNARY, reduce_all(NUMBERS))
MAX_DIM: Final = Row("Numeric", "MaxDim", REDUCE_DIM, reduce_axis(NUMBERS))
MIN_DIM: Final = Row("Numeric", "MinDim", REDUCE_DIM, reduce_axis(NUMBERS))
MAX_ABS: Final = Row("Numeric", "MaxAbs", UNARY, reduce_all(NUMBERS))
MAX_ABS_DIM: Final = Row("Numeric", "MaxAbsDim", REDUCE_DIM, reduce_axis(NUMBERS))
CLAMP: Final = Row(
    "Numeric",
    "Clamp",
    (tensor_in("tensor"), scalar("min"), scalar("max"), tensor_out("out")),
    same(NUMBERS),
)
INT_RANDOM: Final = Row("Numeric", "IntRandom", RANDOM_NUMBERS, created(INTEGERS))
POWI: Final = Row("Numeric", "Powi", BINARY, power(NUMBERS))
POWI_SCALAR: Final = Row("Numeric", "PowiScalar", SCALAR, same(NUMBERS))
CUM_SUM: Final = Row("Numeric", "CumSum", DIM, along_axis(NUMBERS))
CUM_PROD: Final = Row("Numeric", "CumProd", DIM, along_axis(NUMBERS))
CUM_MIN: Final = Row("Numeric", "CumMin", DIM, along_axis(NUMBERS))
CUM_MAX: Final = Row("Numeric", "CumMax", DIM, along_axis(NUMBERS))

ROWS: Final = (
    ADD, ADD_SCALAR, SUB, SUB_SCALAR, DIV, DIV_SCALAR, REM, REM_SCALAR, MUL, MUL_SCALAR, ABS,
    FULL, MEAN_DIM, MEAN, SUM, SUM_DIM, PROD, PROD_DIM, GREATER, GREATER_ELEM, GREATER_EQUAL,
    GREATER_EQUAL_ELEM, LOWER, LOWER_ELEM, LOWER_EQUAL, LOWER_EQUAL_ELEM, ARG_MAX, ARG_TOP_K,
    TOP_K, ARG_MIN, MAX, MAX_DIM_WITH_INDICES, MIN_DIM_WITH_INDICES, MIN, MAX_DIM, MIN_DIM,
    MAX_ABS, MAX_ABS_DIM, CLAMP, INT_RANDOM, POWI, POWI_SCALAR, CUM_SUM, CUM_PROD, CUM_MIN,
    CUM_MAX,
)  # fmt: skip
