"""Gradients whose elements are all the same number, which need no tensor yet.

A backward pass starts with a gradient of 1, and the gradients of a mean, a sum or a reshape of it
are uniform too. So the backward pass computes their number in this process, and fills one tensor
where a formula needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from burn_remote.autodiff.transposed_gradients import Transposed
from burn_remote.dispatch.operators import filled
from burn_remote_protocol.errors import UsageError

if TYPE_CHECKING:
    from burn_remote.runner.interface import RunnerClient
    from burn_remote_protocol.tensors import TensorSpec

__all__ = ["Uniform", "one_for", "tensor_of"]


@final
class Uniform:
    """A gradient of the shape and dtype ``spec`` whose elements are all ``number``.

    ``kind`` is the class of tensors, and ``client`` receives the operation that fills one.
    """

    __slots__ = ("client", "kind", "number", "spec")

    def __init__(
        self, kind: type[Any], client: RunnerClient, spec: TensorSpec, number: float
    ) -> None:
        self.kind = kind
        self.client = client
        self.spec = spec
        self.number = number

    def like(self, spec: TensorSpec, number: float) -> Uniform:
        """Return a gradient of another shape and number for the same device."""
        return Uniform(self.kind, self.client, spec, number)

    def tensor(self) -> Any:
        """Return a tensor of this gradient; issues one operation."""
        return self.kind(filled(self.client, self.spec, self.number))


# The classes of gradients for which no tensor was made yet.
_WITHOUT_TENSOR: Final = frozenset({Uniform, Transposed})


def one_for(kind: type[Any], handle: Any) -> Uniform:
    """Return the gradient of a result with respect to itself.

    Raises ``UsageError`` for a complex result, which needs an explicit gradient.
    """
    if handle.spec.dtype.is_complex:
        raise UsageError(
            f"{handle.spec} is complex, and only a real number can be minimized; differentiate its "
            "real part, its absolute value or another real number, or give the gradient"
        )
    return Uniform(kind, handle.client, handle.spec, 1.0)


def tensor_of(gradient: Any) -> Any:
    """Return a gradient as a tensor."""
    return gradient.tensor() if type(gradient) in _WITHOUT_TENSOR else gradient
