"""Linear layers and their gradients.

``y = x W + b``, ``dx = dy W'``, and summed over the batch, ``dW = x' dy`` and ``db = dy``.
The weight is ``[d_input, d_output]`` as in Burn, the transpose of PyTorch's.
"""

from __future__ import annotations

from collections.abc import Mapping

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.kernels.matrix_products import matmul
from burn_remote_server.backends.array.kernels.networks.checks import (
    check_rank,
    check_shape,
    refuse,
)
from burn_remote_server.backends.array.kernels.networks.module_kernels import (
    Array,
    Kernel,
    ModuleKernels,
)

__all__ = ["Linear"]

WEIGHT = "[d_input, d_output]"


class Linear(ModuleKernels):
    """Linear layers and their gradients.

    ``x`` is ``[..., d_input]``, ``bias`` ``[d_output]``, the output and its gradient ``[...,
    d_output]``. The matrix products flatten the leading axes into one.
    """

    def table(self) -> Mapping[str, Kernel]:
        """Return the kernels by the names of their IR variants."""
        return {
            "Linear": self.linear,
            "LinearXBackward": self.linear_x_backward,
            "LinearWeightBackward": self.linear_weight_backward,
            "LinearBiasBackward": self.linear_bias_backward,
        }

    def linear(self, x: Array, weight: Array, bias: Array | None, *, out: TensorSpec) -> Array:
        """Return ``x W + b``."""
        check_rank("Linear", "weight", weight, 2, WEIGHT)
        d_input, d_output = weight.shape
        _check_last("Linear", "x", x, d_input)
        rows = matmul(self.xp, _rows(x), weight)
        if bias is not None:
            check_shape("Linear", "bias", bias, (d_output,))
            self.xp.add(rows, bias, out=rows)
        return _unflattened(rows, x)

    def linear_x_backward(self, weight: Array, output_grad: Array, *, out: TensorSpec) -> Array:
        """Return the gradient with respect to ``x``."""
        check_rank("LinearXBackward", "weight", weight, 2, WEIGHT)
        _check_last("LinearXBackward", "output_grad", output_grad, weight.shape[1])
        return _unflattened(matmul(self.xp, _rows(output_grad), weight.T), output_grad)

    def linear_weight_backward(self, x: Array, output_grad: Array, *, out: TensorSpec) -> Array:
        """Return the gradient with respect to the weight."""
        operation = "LinearWeightBackward"
        if x.ndim < 1:
            raise refuse(operation, "shape of x", x.shape, "[..., d_input]")
        check_shape(operation, "output_grad", output_grad, (*x.shape[:-1], *output_grad.shape[-1:]))
        return matmul(self.xp, _rows(x).T, _rows(output_grad))

    def linear_bias_backward(self, output_grad: Array, *, out: TensorSpec) -> Array:
        """Return the gradient with respect to the bias."""
        if output_grad.ndim < 1:
            raise refuse(
                "LinearBiasBackward", "shape of output_grad", output_grad.shape, "[..., d_output]"
            )
        return self.xp.add.reduce(_rows(output_grad), axis=0)


def _check_last(operation: str, argument: str, array: Array, size: int) -> None:
    if array.ndim < 1 or array.shape[-1] != size:
        expected = f"[..., {size}] to match the weight"
        raise refuse(operation, f"shape of {argument}", array.shape, expected)


def _unflattened(rows: Array, like: Array) -> Array:
    """Return rows in the leading axes of an array."""
    return rows if like.ndim == 2 else rows.reshape(*like.shape[:-1], rows.shape[1])


def _rows(array: Array) -> Array:
    if array.ndim == 2:
        return array
    size = array.shape[-1]
    # Not -1, which cannot be inferred if the size is 0.
    count = 1
    for length in array.shape[:-1]:
        count *= length
    return array.reshape(count, size)
