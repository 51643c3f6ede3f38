"""Transposed convolutions.

It is the input gradient of the convolution with the same weight, stride, padding and dilation, of
an input of ``(size - 1) * stride + dilation * (kernel - 1) + 1 + padding_out - 2 * padding``
(Dumoulin & Visin, arXiv:1603.07285, chapter 4; the formula is Burn's and PyTorch's).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.kernels.module.checks import (
    check_groups,
    check_positive,
    check_rank,
    check_shape,
    refuse,
)
from burn_remote_server.backends.array.kernels.module.correlation import (
    AXES,
    Correlation,
    Geometry,
    Layer,
)
from burn_remote_server.backends.array.kernels.module.subject import Array, Kernel, Shape
from burn_remote_server.backends.array.kernels.module.windows import Axis, Windows

__all__ = ["TransposedConvolution"]


class TransposedGeometry(Geometry):
    """The options of a transposed convolution; ``padding_out`` adds to each axis' end."""

    padding_out: Shape


class TransposedConvolution(Correlation):
    """``x`` is ``[batch, channels, *sizes]``, ``weight`` ``[channels, filters / groups, *kernel]``,
    ``bias`` ``[filters]``, the output ``[batch, filters, *outputs]``."""

    def table(self) -> Mapping[str, Kernel]:
        """Return the kernels by the names of their IR variants."""
        return {
            "ConvTranspose1d": self.conv_transpose1d,
            "ConvTranspose2d": self.conv_transpose2d,
            "ConvTranspose3d": self.conv_transpose3d,
        }

    def conv_transpose1d(
        self,
        x: Array,
        weight: Array,
        bias: Array | None,
        *,
        out: TensorSpec,
        **options: Unpack[TransposedGeometry],
    ) -> Array:
        """Spread ``x`` ``[batch, channels, length]``."""
        return self._spread("ConvTranspose1d", x, weight, bias, options)

    def conv_transpose2d(
        self,
        x: Array,
        weight: Array,
        bias: Array | None,
        *,
        out: TensorSpec,
        **options: Unpack[TransposedGeometry],
    ) -> Array:
        """Spread ``x`` ``[batch, channels, height, width]``."""
        return self._spread("ConvTranspose2d", x, weight, bias, options)

    def conv_transpose3d(
        self,
        x: Array,
        weight: Array,
        bias: Array | None,
        *,
        out: TensorSpec,
        **options: Unpack[TransposedGeometry],
    ) -> Array:
        """Spread ``x`` ``[batch, channels, depth, height, width]``."""
        return self._spread("ConvTranspose3d", x, weight, bias, options)

    def _spread(
        self,
        operation: str,
        x: Array,
        weight: Array,
        bias: Array | None,
        options: TransposedGeometry,
    ) -> Array:
        layer = _checked_adjoint(operation, x, weight, options)
        if bias is not None:
            check_shape(operation, "bias", bias, (layer.channels,))
        out = self._input_gradient(weight, x, layer)
        if bias is not None:
            out += bias.reshape(-1, *(1,) * len(layer.windows))
        return out


def _checked_adjoint(operation: str, x: Array, weight: Array, options: TransposedGeometry) -> Layer:
    """Return the convolution whose output has the shape of ``x`` and whose input is wanted."""
    stride, padding, dilation = options["stride"], options["padding"], options["dilation"]
    rank, groups = len(stride), options["groups"]
    check_rank(operation, "x", x, rank + 2, AXES[rank])
    check_rank(operation, "weight", weight, x.ndim, "[channels, filters / groups, *kernel]")
    check_groups(operation, "groups", groups, channels=x.shape[1])
    expected = (x.shape[1], *weight.shape[1:])
    check_shape(operation, "weight", weight, expected, f"x has {x.shape[1]} channels")
    kernel = weight.shape[2:]
    check_positive(operation, "kernel_size", kernel)
    check_positive(operation, "stride", stride)
    check_positive(operation, "dilation", dilation)
    check_positive(operation, "spatial size of x", x.shape[2:])
    axes = []
    for size, taps, step, pad, gap, extra in zip(
        x.shape[2:], kernel, stride, padding, dilation, options["padding_out"], strict=True
    ):
        if min(pad, extra) < 0:
            raise refuse(operation, "padding", (pad, extra), "values of at least 0")
        reached = (size - 1) * step + gap * (taps - 1) + 1 + extra - 2 * pad
        if reached < 1:
            raise refuse(operation, "padding", padding, f"an output of 1 or more, not {reached}")
        axes.append(Axis(reached, taps, step, pad, gap, size))
    return Layer(Windows(axes), groups, weight.shape[1] * groups, x.shape[1])
