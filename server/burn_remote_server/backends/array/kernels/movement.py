"""Operations that move elements without looking at them.

What can be a view of the input is one.
"""

from __future__ import annotations

from collections.abc import Mapping

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.kernel_forms import (
    Array,
    Kernel,
    KernelFamily,
    Parameters,
    Prepared,
    Run,
    Seen,
)
from burn_remote_server.backends.array.kernels.views import without_much_more

__all__ = ["BaseMovement"]


class BaseMovement(KernelFamily):
    """Tensors of any dtype."""

    family = "Base"
    low_precision = frozenset(
        {"Reshape", "SwapDims", "Permute", "Flip", "Expand", "Unfold", "RepeatDim", "Cat"}
    )

    def table(self) -> Mapping[str, Kernel]:
        return {
            "Reshape": Prepared(self.prepare_reshape),
            "SwapDims": self.swap_dims,
            "Permute": self.permute,
            "Flip": self.flip,
            "Expand": self.expand,
            "Unfold": self.unfold,
            "RepeatDim": self.repeat_dim,
            "Cat": self.cat,
        }

    def prepare_reshape(self, first: Seen, out: TensorSpec, parameters: Parameters) -> Run:
        """Give the elements another shape."""
        shape = out.shape

        def run(input: Array) -> Array:
            return input.reshape(shape)

        return run

    def swap_dims(self, input: Array, *, dim1: int, dim2: int, out: TensorSpec) -> Array:
        """Exchange two axes."""
        return input.swapaxes(dim1, dim2)

    def permute(self, input: Array, *, axes: tuple[int, ...], out: TensorSpec) -> Array:
        """Put the axes in another order."""
        return input.transpose(axes)

    def flip(self, input: Array, *, axes: tuple[int, ...], out: TensorSpec) -> Array:
        """Turn axes around."""
        return input[
            tuple(
                slice(None, None, -1) if axis in axes else slice(None) for axis in range(input.ndim)
            )
        ]

    def expand(self, input: Array, *, out: TensorSpec) -> Array:
        """Repeat axes of size 1, and new ones in front, as often as the shape says."""
        return self.xp.broadcast_to(input, out.shape)

    def unfold(self, input: Array, *, dim: int, size: int, step: int, out: TensorSpec) -> Array:
        """Return all windows of an axis: ``[…, windows, …, size]``; they share their elements."""
        strides = list(input.strides)
        strides.append(strides[dim])
        strides[dim] *= step
        windows = self.xp.lib.stride_tricks.as_strided(input, out.shape, strides)
        return without_much_more(windows)

    def repeat_dim(self, tensor: Array, *, dim: int, times: int, out: TensorSpec) -> Array:
        """Put an axis one after the other so many times."""
        shape = tensor.shape
        apart = (*shape[:dim], times, *shape[dim:])
        repeated = self.xp.broadcast_to(self.xp.expand_dims(tensor, dim), apart)
        return repeated.reshape(out.shape)

    def cat(self, tensors: list[Array], *, dim: int, out: TensorSpec) -> Array:
        """Put tensors one after the other along an axis."""
        return self.xp.concatenate(tensors, axis=dim)
