"""Linear layers and their gradients.

``y = x W + b``, ``dx = dy W'``, and summed over the batch, ``dW = x' dy`` and ``db = dy``.
The weight is ``[d_input, d_output]`` as in Burn, the transpose of PyTorch's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from burn_remote_protocol.tensors import Shape, TensorSpec
from burn_remote_server.backends.array.core.kernel_forms import (
    ArraySpec,
    Parameters,
    Prepared,
    Run,
)
from burn_remote_server.backends.array.kernels.matrix_products import prepared_matmul
from burn_remote_server.backends.array.kernels.networks.module_kernels import (
    Array,
    Kernel,
    ModuleKernels,
)

__all__ = ["Linear"]


class Linear(ModuleKernels):
    """Linear layers and their gradients.

    ``x`` is ``[..., d_input]``, ``bias`` ``[d_output]``, the output and its gradient ``[...,
    d_output]``. The matrix products flatten the leading axes into one. The rules of the table have
    checked the shapes.
    """

    def table(self) -> Mapping[str, Kernel]:
        """Return the kernels by the names of their IR variants."""
        return {
            "Linear": Prepared(self.prepare_linear),
            "LinearXBackward": Prepared(self.prepare_x_backward),
            "LinearWeightBackward": Prepared(self.prepare_weight_backward),
            "LinearBiasBackward": Prepared(self.prepare_bias_backward),
        }

    def prepare_linear(self, first: ArraySpec, out: TensorSpec, parameters: Parameters) -> Run:
        """Return ``run(x, weight, bias)``: ``x W + b``. The bias may be absent."""
        rows, inner = flat = _flat(first.shape)
        multiply = prepared_matmul(self.xp, rows, inner, out.shape[-1])
        add = self.xp.add

        def run_flat(x: Array, weight: Array, bias: Array | None = None) -> Array:
            result = multiply(x, weight)
            return result if bias is None else add(result, bias, out=result)

        def run(x: Array, weight: Array, bias: Array | None = None) -> Array:
            return run_flat(x.reshape(flat), weight, bias).reshape(out.shape)

        return run_flat if len(first.shape) == 2 else run

    def prepare_x_backward(self, first: ArraySpec, out: TensorSpec, parameters: Parameters) -> Run:
        """Return ``run(weight, output_grad)``: the gradient with respect to ``x``."""
        inner, columns = first.shape[1], first.shape[0]
        rows, _ = _flat(out.shape)
        multiply = prepared_matmul(self.xp, rows, inner, columns)

        def run_flat(weight: Array, output_grad: Array) -> Array:
            return multiply(output_grad, weight.T)

        def run(weight: Array, output_grad: Array) -> Array:
            return run_flat(weight, output_grad.reshape(rows, inner)).reshape(out.shape)

        return run_flat if len(out.shape) == 2 else run

    def prepare_weight_backward(
        self, first: ArraySpec, out: TensorSpec, parameters: Parameters
    ) -> Run:
        """Return ``run(x, output_grad)``: the gradient with respect to the weight."""
        inner, rows = flat = _flat(first.shape)
        columns = out.shape[1]
        multiply = prepared_matmul(self.xp, rows, inner, columns)

        def run_flat(x: Array, output_grad: Array) -> Array:
            return multiply(x.T, output_grad)

        def run(x: Array, output_grad: Array) -> Array:
            return run_flat(x.reshape(flat), output_grad.reshape(inner, columns))

        return run_flat if len(first.shape) == 2 else run

    def prepare_bias_backward(
        self, first: ArraySpec, out: TensorSpec, parameters: Parameters
    ) -> Run:
        """Return ``run(output_grad)``: the gradient with respect to the bias."""
        flat = _flat(first.shape)
        sum_rows: Run = self.xp.add.reduce  # along the first axis

        def run(output_grad: Array) -> Array:
            return sum_rows(output_grad.reshape(flat))

        return sum_rows if len(first.shape) == 2 else run


def _flat(shape: Shape) -> tuple[int, int]:
    """Return a shape whose leading axes are flattened into one."""
    # Not -1, which cannot be inferred if the size is 0.
    return math.prod(shape[:-1]), shape[-1]
