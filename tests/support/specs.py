"""Short notation for tensor specs and calls of rules, for tables of cases."""

from __future__ import annotations

from typing import Any

from burn_remote_protocol.dtypes import BOOL, C64, F16, F32, I32, I64, DType
from burn_remote_protocol.operations.row import Call, Row
from burn_remote_protocol.tensors import TensorSpec


def f32(*shape: int) -> TensorSpec:
    """A float32 tensor."""
    return TensorSpec(shape, F32)


def f16(*shape: int) -> TensorSpec:
    """A float16 tensor."""
    return TensorSpec(shape, F16)


def c64(*shape: int) -> TensorSpec:
    """A complex64 tensor."""
    return TensorSpec(shape, C64)


def i64(*shape: int) -> TensorSpec:
    """An int64 tensor."""
    return TensorSpec(shape, I64)


def i32(*shape: int) -> TensorSpec:
    """An int32 tensor."""
    return TensorSpec(shape, I32)


def flags(*shape: int, dtype: DType = BOOL) -> TensorSpec:
    """A tensor of bools."""
    return TensorSpec(shape, dtype)


def made(
    row: Row, *inputs: Any, requested: tuple[TensorSpec, ...] = (), **parameters: Any
) -> tuple[TensorSpec, ...]:
    """Return the outputs that a row's rule infers."""
    return row.rule(Call(inputs, parameters, requested))
