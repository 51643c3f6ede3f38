"""Embedding: lookup of rows of a table by index, and the gradient of the table."""

from __future__ import annotations

import math
from collections.abc import Mapping

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.kernels.networks.checks import (
    check_range,
    check_rank,
    check_shape,
)
from burn_remote_server.backends.array.kernels.networks.module_kernels import (
    Array,
    Kernel,
    ModuleKernels,
)

__all__ = ["Embedding"]


class Embedding(ModuleKernels):
    """Embedding lookups and their gradients.

    ``weights`` is ``[rows, dim]``; ``indices`` has any shape, usually ``[batch, length]``; the
    output and its gradient are ``[*indices, dim]``.
    """

    low_precision = frozenset({"Embedding"})

    def table(self) -> Mapping[str, Kernel]:
        """Return the kernels by the names of their IR variants."""
        return {"Embedding": self.embedding, "EmbeddingBackward": self.embedding_backward}

    def embedding(self, weights: Array, indices: Array, *, out: TensorSpec) -> Array:
        """Return the rows of ``weights`` at ``indices``; ``weights`` has any dtype."""
        check_rank("Embedding", "weights", weights, 2, "[rows, dim]")
        rows = self._checked("Embedding", indices, weights.shape[0])
        return self.xp.take(weights, rows, axis=0)

    def embedding_backward(
        self, weights: Array, out_grad: Array, indices: Array, *, out: TensorSpec
    ) -> Array:
        """Return the gradient of ``weights``: the sum of ``out_grad`` over each row's uses."""
        operation = "EmbeddingBackward"
        check_rank(operation, "weights", weights, 2, "[rows, dim]")
        rows, dim = weights.shape
        check_shape(operation, "out_grad", out_grad, (*indices.shape, dim))
        chosen = self._checked(operation, indices, rows)
        used = math.prod(indices.shape)
        sums = self.xp.zeros((rows, dim), out_grad.dtype)
        self._scatter_add_rows(sums, chosen.reshape(used), out_grad.reshape(used, dim))
        return sums

    def _checked(self, operation: str, indices: Array, rows: int) -> Array:
        """Return indices as row numbers. Raises ``ShapeMismatch`` if one is out of range."""
        check_range(operation, "indices", indices, 0, rows)
        return indices
