"""How does a program call an operation that a server's operator has added?"""

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
# A message's lists have at most 4,096 entries. Larger: a call would be no message, and end the
# session. Smaller: an operation on as many tensors has to be called in parts sooner.
MAX_TENSORS: Final = 4000


@overload
def custom(name: str, /, *inputs: Tensor, outputs: TensorSpec) -> Tensor: ...


@overload
def custom(name: str, /, *inputs: Tensor, outputs: Sequence[TensorSpec]) -> tuple[Tensor, ...]: ...


@explained
def custom(
    name: str, /, *inputs: Tensor, outputs: TensorSpec | Sequence[TensorSpec]
) -> Tensor | tuple[Tensor, ...]:
    """Run an operation that the server's operator has added, on tensors of one device.

    ``outputs`` says what comes back, because nothing waits for the server: the ``TensorSpec`` of
    the tensor that is returned, with one of burn-remote's dtypes or whatever NumPy takes for one,
    or a sequence of them for a tuple. The server compares it with the
    operation's own rule; where that says something else, or there is no such operation, reading an
    output raises ``OperationFailed`` or ``Unsupported``. Raises ``UsageError``, and those of its
    kinds for shapes, dtypes, devices and arguments.
    """
    if not inputs:
        raise UsageError(f"custom operation {name!r}: it needs a tensor, whose device runs it")
    if not isinstance(name, str):
        raise ArgumentMismatch(f"an operation's name is text, not {name!r}")
    if not 0 < len(name) <= MAX_NAME_CHARACTERS:
        raise UsageError(f"an operation's name has 1 to {MAX_NAME_CHARACTERS} characters")
    if isinstance(outputs, TensorSpec):
        (out,) = custom(name, *inputs, outputs=[outputs])
        return out
    if not isinstance(outputs, list | tuple) or not all(
        isinstance(spec, TensorSpec) for spec in outputs
    ):
        raise ArgumentMismatch(
            f"custom operation {name!r}: outputs is a TensorSpec(shape, dtype) or a list of them, "
            f"not {outputs!r}"
        )
    specs = tuple([_checked(name, spec) for spec in outputs])
    if not specs:
        raise UsageError(f"custom operation {name!r}: outputs must name at least one tensor")
    if len(inputs) + len(specs) > MAX_TENSORS:
        raise UsageError(
            f"custom operation {name!r}: it has at most {MAX_TENSORS:,} tensors, in and out, "
            f"not {len(inputs) + len(specs):,}"
        )
    return CUSTOM.apply_lists(inputs, (name,), specs)


def _checked(name: str, spec: TensorSpec) -> TensorSpec:
    try:
        return TensorSpec(checked_shape(normal_shape(spec.shape)), as_dtype(spec.dtype))
    except (LimitExceeded, ProtocolViolation) as error:
        raise ShapeMismatch(f"custom operation {name!r}: {error}") from None
