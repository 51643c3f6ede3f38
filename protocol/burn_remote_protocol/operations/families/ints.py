"""Rows of operations on integer tensors only."""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.operations import estimates
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.operations.shape_rules.checks import INTEGERS
from burn_remote_protocol.operations.shape_rules.elementwise_rules import (
    broadcast,
    into_float,
    same,
)
from burn_remote_protocol.operations.shape_rules.linear_rules import matmul
from burn_remote_protocol.operations.shared_fields import BINARY, SCALAR, UNARY

INTO_FLOAT: Final = Row("Int", "IntoFloat", UNARY, into_float(INTEGERS), estimates.conversion(3))
BITWISE_AND: Final = Row("Int", "BitwiseAnd", BINARY, broadcast(INTEGERS), estimates.elementwise(3))
BITWISE_AND_SCALAR: Final = Row(
    "Int", "BitwiseAndScalar", SCALAR, same(INTEGERS), estimates.elementwise(3)
)
BITWISE_OR: Final = Row("Int", "BitwiseOr", BINARY, broadcast(INTEGERS), estimates.elementwise(3))
BITWISE_OR_SCALAR: Final = Row(
    "Int", "BitwiseOrScalar", SCALAR, same(INTEGERS), estimates.elementwise(3)
)
BITWISE_XOR: Final = Row("Int", "BitwiseXor", BINARY, broadcast(INTEGERS), estimates.elementwise(3))
BITWISE_XOR_SCALAR: Final = Row(
    "Int", "BitwiseXorScalar", SCALAR, same(INTEGERS), estimates.elementwise(3)
)
BITWISE_NOT: Final = Row("Int", "BitwiseNot", UNARY, same(INTEGERS), estimates.elementwise(3))
BITWISE_LEFT_SHIFT: Final = Row(
    "Int", "BitwiseLeftShift", BINARY, broadcast(INTEGERS), estimates.elementwise(3, 9)
)
BITWISE_LEFT_SHIFT_SCALAR: Final = Row(
    "Int", "BitwiseLeftShiftScalar", SCALAR, same(INTEGERS), estimates.elementwise(3)
)
BITWISE_RIGHT_SHIFT: Final = Row(
    "Int", "BitwiseRightShift", BINARY, broadcast(INTEGERS), estimates.elementwise(3, 9)
)
BITWISE_RIGHT_SHIFT_SCALAR: Final = Row(
    "Int", "BitwiseRightShiftScalar", SCALAR, same(INTEGERS), estimates.elementwise(3)
)
MATMUL: Final = Row("Int", "Matmul", BINARY, matmul(INTEGERS), estimates.MATMUL)

ROWS: Final = (
    INTO_FLOAT, BITWISE_AND, BITWISE_AND_SCALAR, BITWISE_OR, BITWISE_OR_SCALAR, BITWISE_XOR,
    BITWISE_XOR_SCALAR, BITWISE_NOT, BITWISE_LEFT_SHIFT, BITWISE_LEFT_SHIFT_SCALAR,
    BITWISE_RIGHT_SHIFT, BITWISE_RIGHT_SHIFT_SCALAR, MATMUL,
)  # fmt: skip
