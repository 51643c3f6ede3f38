"""Calls of custom operations: those that a server's operator has added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, overload

from burn_remote.arguments.arrays import as_dtype
from burn_remote.arguments.axes import normal_shape
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator
from burn_remote_protocol.errors import (
    ArgumentMismatch,
    LimitExceeded,
    ProtocolViolation,
    ShapeMismatch,
    UsageError,
)
from burn_remote_protocol.operations.families import session
from burn_remote_protocol.operations.fields import MAX_NAME_CHARACTERS
from burn_remote_protocol.tensors import TensorSpec, checked_shape

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = ["custom"]

CUSTOM: Final = Operator(session.CUSTOM)
# A list in a message has at most 4,096 entries; a longer one would end the session.
MAX_TENSORS: Final = 4000


@overload
def custom(name: str, /, *inputs: Tensor, outputs: TensorSpec) -> Tensor: ...


@overload
def custom(name: str, /, *inputs: Tensor, outputs: Sequence[TensorSpec]) -> tuple[Tensor, ...]: ...


@explained
def custom(
    name: str, /, *inputs: Tensor, outputs: TensorSpec | Sequence[TensorSpec]
) -> Tensor | tuple[Tensor, ...]:
    """Run a custom operation of the server on tensors of one device.

    ``outputs`` declares the result, because the call does not wait for the server: one
    ``TensorSpec`` for a tensor, or a sequence of them for a tuple of tensors. Its dtypes are
    burn-remote's or anything that ``numpy.dtype`` accepts. The server compares the declaration with
    the operation's own rule. If they differ, or the operation does not exist, reading an output
    raises ``OperationFailed`` or ``Unsupported``.

    Raises ``UsageError`` and its subclasses for invalid shapes, dtypes, devices and arguments.
    """
    if not inputs:
        raise UsageError(f"custom operation {name!r}: at least one input is required")
    if not isinstance(name, str):
        raise ArgumentMismatch(f"the name of an operation must be a str, not {name!r}")
    if not 0 < len(name) <= MAX_NAME_CHARACTERS:
        raise UsageError(
            f"the name of an operation must have 1 to {MAX_NAME_CHARACTERS} characters, not "
            f"{len(name):,}"
        )
    if isinstance(outputs, TensorSpec):
        (out,) = custom(name, *inputs, outputs=[outputs])
        return out
    if not isinstance(outputs, list | tuple) or not all(
        isinstance(spec, TensorSpec) for spec in outputs
    ):
        raise ArgumentMismatch(
            f"custom operation {name!r}: outputs must be a TensorSpec(shape, dtype) or a list of "
            f"them, not {outputs!r}"
        )
    specs = tuple([_checked(name, spec) for spec in outputs])
    if not specs:
        raise UsageError(f"custom operation {name!r}: outputs must declare at least one tensor")
    if len(inputs) + len(specs) > MAX_TENSORS:
        raise UsageError(
            f"custom operation {name!r}: at most {MAX_TENSORS:,} inputs and outputs are allowed, "
            f"not {len(inputs) + len(specs):,}"
        )
    return CUSTOM.apply_lists(inputs, (name, ()), specs)


def _checked(name: str, spec: TensorSpec) -> TensorSpec:
    try:
        return TensorSpec(checked_shape(normal_shape(spec.shape)), as_dtype(spec.dtype))
    except (LimitExceeded, ProtocolViolation) as error:
        raise ShapeMismatch(f"custom operation {name!r}: {error}") from None
