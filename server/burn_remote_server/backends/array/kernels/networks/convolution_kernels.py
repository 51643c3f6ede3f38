"""Convolutions and transposed convolutions of one, two and three dimensions.

``y[n, o] = bias[o] + sum over c, tap of weight[o, c, tap] * x[n, c, window + tap]`` for the input
channels ``c`` of the group of ``o`` (Dumoulin & Visin, arXiv:1603.07285, chapter 2). As in Burn and
PyTorch the kernel is not flipped.

A transposed convolution is the input gradient of the convolution with the same weight, stride,
padding and dilation, for an input of the size
``(size - 1) * stride + dilation * (kernel - 1) + 1 + padding_out - 2 * padding`` (chapter 4; the
formula is Burn's and PyTorch's).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Unpack

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.kernels.networks.checks import (
    check_groups,
    check_positive,
    check_rank,
    check_shape,
    refuse,
)
from burn_remote_server.backends.array.kernels.networks.correlation import (
    AXES,
    Correlation,
    Geometry,
    Layer,
    checked_layer,
)
from burn_remote_server.backends.array.kernels.networks.module_kernels import Array, Kernel, Shape
from burn_remote_server.backends.array.kernels.networks.windows import Axis, Windows

__all__ = ["Convolution", "TransposedConvolution"]


class Convolution(Correlation):
    """Convolutions and their gradients.

    ``x`` is ``[batch, channels, *sizes]``, ``weight`` ``[filters, channels / groups, *kernel]``,
    ``bias`` ``[filters]``, the output and its gradient ``[batch, filters, *outputs]``.
    """

    def table(self) -> Mapping[str, Kernel]:
        """Return the kernels by the names of their IR variants."""
        return {
            "Conv1d": partial(self._forward, "Conv1d"),
            "Conv1dXBackward": partial(self._x_backward, "Conv1dXBackward"),
            "Conv1dWeightBackward": partial(self._weight_backward, "Conv1dWeightBackward"),
            "Conv1dBiasBackward": partial(_bias_backward, "Conv1dBiasBackward", 1),
            "Conv2d": partial(self._forward, "Conv2d"),
            "Conv2dXBackward": partial(self._x_backward, "Conv2dXBackward"),
            "Conv2dWeightBackward": partial(self._weight_backward, "Conv2dWeightBackward"),
            "Conv2dBiasBackward": partial(_bias_backward, "Conv2dBiasBackward", 2),
            "Conv3d": partial(self._forward, "Conv3d"),
            "Conv3dXBackward": partial(self._x_backward, "Conv3dXBackward"),
            "Conv3dWeightBackward": partial(self._weight_backward, "Conv3dWeightBackward"),
            "Conv3dBiasBackward": partial(_bias_backward, "Conv3dBiasBackward", 3),
        }

    def _forward(
        self,
        operation: str,
        x: Array,
        weight: Array,
        bias: Array | None,
        *,
        out: TensorSpec,
        **options: Unpack[Geometry],
    ) -> Array:
        """Convolve ``x``."""
        layer = checked_layer(operation, x, weight, options)
        if bias is not None:
            check_shape(operation, "bias", bias, (layer.filters,))
        result = self._correlate(x, weight, layer)
        if bias is not None:
            result += bias.reshape(-1, *(1,) * len(layer.windows))
        return result

    def _x_backward(
        self,
        operation: str,
        x: Array,
        weight: Array,
        output_grad: Array,
        *,
        out: TensorSpec,
        **options: Unpack[Geometry],
    ) -> Array:
        """Return the gradient with respect to ``x``."""
        layer = checked_layer(operation, x, weight, options)
        expected = (x.shape[0], layer.filters, *layer.windows.outputs)
        check_shape(operation, "output_grad", output_grad, expected)
        return self._input_gradient(weight, output_grad, layer)

    def _weight_backward(
        self,
        operation: str,
        x: Array,
        weight: Array,
        output_grad: Array,
        *,
        out: TensorSpec,
        **options: Unpack[Geometry],
    ) -> Array:
        """Return the gradient with respect to ``weight``."""
        layer = checked_layer(operation, x, weight, options)
        expected = (x.shape[0], layer.filters, *layer.windows.outputs)
        check_shape(operation, "output_grad", output_grad, expected)
        return self._weight_gradient(x, output_grad, layer, weight.shape)


def _bias_backward(
    operation: str, rank: int, x: Array, bias: Array, output_grad: Array, *, out: TensorSpec
) -> Array:
    """Return the gradient with respect to ``bias``, of a convolution of either kind."""
    check_rank(operation, "output_grad", output_grad, rank + 2, AXES[rank])
    check_shape(operation, "bias", bias, (output_grad.shape[1],))
    return output_grad.sum(axis=(0, *range(2, rank + 2)))


class TransposedGeometry(Geometry):
    """The options of a transposed convolution; ``padding_out`` extends the end of each axis."""

    padding_out: Shape


class TransposedConvolution(Correlation):
    """Transposed convolutions and their gradients.

    ``x`` is ``[batch, channels, *sizes]``, ``weight`` ``[channels, filters / groups, *kernel]``,
    ``bias`` ``[filters]``, the output ``[batch, filters, *outputs]``.
    """

    def table(self) -> Mapping[str, Kernel]:
        """Return the kernels by the names of their IR variants."""
        return {
            "ConvTranspose1d": partial(self._spread, "ConvTranspose1d"),
            "ConvTranspose1dWeightBackward": partial(
                self._weight_backward, "ConvTranspose1dWeightBackward"
            ),
            "ConvTranspose1dBiasBackward": partial(
                _bias_backward, "ConvTranspose1dBiasBackward", 1
            ),
            "ConvTranspose2d": partial(self._spread, "ConvTranspose2d"),
            "ConvTranspose2dWeightBackward": partial(
                self._weight_backward, "ConvTranspose2dWeightBackward"
            ),
            "ConvTranspose2dBiasBackward": partial(
                _bias_backward, "ConvTranspose2dBiasBackward", 2
            ),
            "ConvTranspose3d": partial(self._spread, "ConvTranspose3d"),
            "ConvTranspose3dWeightBackward": partial(
                self._weight_backward, "ConvTranspose3dWeightBackward"
            ),
            "ConvTranspose3dBiasBackward": partial(
                _bias_backward, "ConvTranspose3dBiasBackward", 3
            ),
        }

    def _weight_backward(
        self,
        operation: str,
        x: Array,
        weight: Array,
        output_grad: Array,
        *,
        out: TensorSpec,
        **options: Unpack[TransposedGeometry],
    ) -> Array:
        """Return the gradient with respect to ``weight``."""
        layer = _checked_adjoint(operation, x, weight, options)
        expected = (x.shape[0], layer.channels, *layer.windows.sizes)
        check_shape(operation, "output_grad", output_grad, expected)
        # In the convolution whose adjoint this is, the gradient is the input and ``x`` the output.
        return self._weight_gradient(output_grad, x, layer, weight.shape)

    def _spread(
        self,
        operation: str,
        x: Array,
        weight: Array,
        bias: Array | None,
        *,
        out: TensorSpec,
        **options: Unpack[TransposedGeometry],
    ) -> Array:
        """Apply a transposed convolution to ``x``."""
        layer = _checked_adjoint(operation, x, weight, options)
        if bias is not None:
            check_shape(operation, "bias", bias, (layer.channels,))
        result = self._input_gradient(weight, x, layer)
        if bias is not None:
            result += bias.reshape(-1, *(1,) * len(layer.windows))
        return result


def _checked_adjoint(operation: str, x: Array, weight: Array, options: TransposedGeometry) -> Layer:
    """Return the convolution of which this operation is the input gradient; ``x`` is its output."""
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
