"""Gradients that are stored as their transpose.

The weight of a linear layer is usually the transpose of a parameter, so the next step of the
backward pass transposes the gradient of the weight back. That step returns the stored matrix, and
no operation is issued for either transpose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from burn_remote.dispatch.operators import Operator
from burn_remote_protocol.operations.families import base
from burn_remote_protocol.tensors import TensorSpec

if TYPE_CHECKING:
    from burn_remote.runner.interface import RunnerClient

__all__ = ["Transposed"]

SWAP_DIMS: Final = Operator(base.SWAP_DIMS)


@final
class Transposed:
    """A gradient that is the transpose of the tensor ``matrix``, which has two axes."""

    __slots__ = ("matrix",)

    def __init__(self, matrix: Any) -> None:
        self.matrix = matrix

    @property
    def spec(self) -> TensorSpec:
        """The shape and dtype of the gradient."""
        spec = self.matrix.handle.spec
        return TensorSpec(spec.shape[::-1], spec.dtype)

    @property
    def client(self) -> RunnerClient:
        """The receiver of operations on the matrix."""
        client: RunnerClient = self.matrix.handle.client
        return client

    def tensor(self) -> Any:
        """Return a tensor of this gradient; issues one operation."""
        return SWAP_DIMS.apply((self.matrix,), (0, 1))
