"""How are the reducing, ranking and accumulating operations of the family Numeric computed?"""

from __future__ import annotations

from typing import Any

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.dtypes import array_dtype
from burn_remote_server.backends.array.family import KernelFamily
from burn_remote_server.backends.interface import Kernel

__all__ = ["ReductionKernels"]


class ReductionKernels(KernelFamily):
    """Reductions keep their dtype (integers wrap around) and the axis, with size 1; a reduction of
    everything has the shape [1]. The first of equal elements wins."""

    def table(self) -> dict[str, Kernel]:
        return {
            "Sum": self.sum,
            "SumDim": self.sum_dim,
            "Prod": self.prod,
            "ProdDim": self.prod_dim,
            "Mean": self.mean,
            "MeanDim": self.mean_dim,
            "Max": self.max,
            "MaxDim": self.max_dim,
            "MaxDimWithIndices": self.max_dim_with_indices,
            "Min": self.min,
            "MinDim": self.min_dim,
            "MinDimWithIndices": self.min_dim_with_indices,
            "MaxAbs": self.max_abs,
            "MaxAbsDim": self.max_abs_dim,
            "ArgMax": self.argmax,
            "ArgMin": self.argmin,
            "TopK": self.topk,
            "ArgTopK": self.argtopk,
            "CumSum": self.cumsum,
            "CumProd": self.cumprod,
            "CumMin": self.cummin,
            "CumMax": self.cummax,
        }

    def sum(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.sum(tensor, dtype=tensor.dtype).reshape(out.shape)

    def sum_dim(self, tensor: Any, *, axis: int, accumulator_len: int, out: TensorSpec) -> Any:
        return self.xp.sum(tensor, axis=axis, dtype=tensor.dtype, keepdims=True)

    def prod(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.prod(tensor, dtype=tensor.dtype).reshape(out.shape)

    def prod_dim(self, tensor: Any, *, axis: int, accumulator_len: int, out: TensorSpec) -> Any:
        return self.xp.prod(tensor, axis=axis, dtype=tensor.dtype, keepdims=True)

    def mean(self, tensor: Any, *, out: TensorSpec) -> Any:
        total = self.xp.sum(tensor, dtype=tensor.dtype).reshape(out.shape)
        return self._divided(total, tensor.size)

    def mean_dim(self, tensor: Any, *, axis: int, accumulator_len: int, out: TensorSpec) -> Any:
        total = self.xp.sum(tensor, axis=axis, dtype=tensor.dtype, keepdims=True)
        return self._divided(total, tensor.shape[axis])

    def max(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.max(tensor).reshape(out.shape)

    def max_dim(self, tensor: Any, *, axis: int, accumulator_len: int, out: TensorSpec) -> Any:
        return self.xp.max(tensor, axis=axis, keepdims=True)

    def max_dim_with_indices(
        self, tensor: Any, *, dim: int, out: tuple[TensorSpec, TensorSpec]
    ) -> tuple[Any, Any]:
        indices = self.xp.argmax(tensor, axis=dim, keepdims=True)
        return self._with_indices(tensor, indices, dim, out)

    def min(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.min(tensor).reshape(out.shape)

    def min_dim(self, tensor: Any, *, axis: int, accumulator_len: int, out: TensorSpec) -> Any:
        return self.xp.min(tensor, axis=axis, keepdims=True)

    def min_dim_with_indices(
        self, tensor: Any, *, dim: int, out: tuple[TensorSpec, TensorSpec]
    ) -> tuple[Any, Any]:
        indices = self.xp.argmin(tensor, axis=dim, keepdims=True)
        return self._with_indices(tensor, indices, dim, out)

    def max_abs(self, tensor: Any, *, out: TensorSpec) -> Any:
        return self.xp.max(self.xp.abs(tensor)).reshape(out.shape)

    def max_abs_dim(self, tensor: Any, *, axis: int, accumulator_len: int, out: TensorSpec) -> Any:
        return self.xp.max(self.xp.abs(tensor), axis=axis, keepdims=True)

    def argmax(self, tensor: Any, *, axis: int, accumulator_len: int, out: TensorSpec) -> Any:
        return self.xp.argmax(tensor, axis=axis, keepdims=True).astype(array_dtype(out.dtype))

    def argmin(self, tensor: Any, *, axis: int, accumulator_len: int, out: TensorSpec) -> Any:
        return self.xp.argmin(tensor, axis=axis, keepdims=True).astype(array_dtype(out.dtype))

    def topk(self, tensor: Any, *, axis: int, accumulator_len: int, out: TensorSpec) -> Any:
        order = self._descending(tensor, axis, out.shape[axis])
        return self.xp.take_along_axis(tensor, order, axis=axis)

    def argtopk(self, tensor: Any, *, axis: int, accumulator_len: int, out: TensorSpec) -> Any:
        order = self._descending(tensor, axis, out.shape[axis])
        return order.astype(array_dtype(out.dtype))

    def cumsum(self, tensor: Any, *, axis: int, out: TensorSpec) -> Any:
        return self.xp.cumsum(tensor, axis=axis, dtype=tensor.dtype)

    def cumprod(self, tensor: Any, *, axis: int, out: TensorSpec) -> Any:
        return self.xp.cumprod(tensor, axis=axis, dtype=tensor.dtype)

    def cummin(self, tensor: Any, *, axis: int, out: TensorSpec) -> Any:
        return self.xp.minimum.accumulate(tensor, axis=axis)

    def cummax(self, tensor: Any, *, axis: int, out: TensorSpec) -> Any:
        return self.xp.maximum.accumulate(tensor, axis=axis)

    # -- parts --------------------------------------------------------------------------------

    def _divided(self, total: Any, count: int) -> Any:
        if total.dtype.kind == "f":
            return total / total.dtype.type(count)
        # Integer means truncate toward zero; of nothing they are zero.
        return (self.xp.sign(total) * (self.xp.abs(total) // max(count, 1))).astype(total.dtype)

    def _with_indices(
        self, tensor: Any, indices: Any, dim: int, out: tuple[TensorSpec, TensorSpec]
    ) -> tuple[Any, Any]:
        values = self.xp.take_along_axis(tensor, indices, axis=dim)
        return values, indices.astype(array_dtype(out[1].dtype))

    def _descending(self, tensor: Any, axis: int, count: int) -> Any:
        """Return the positions of the largest elements, the first of equal ones first."""
        xp = self.xp
        backwards = xp.argsort(xp.flip(tensor, axis), axis=axis, kind="stable")
        order = tensor.shape[axis] - 1 - xp.flip(backwards, axis)
        return order[(slice(None),) * axis + (slice(0, count),)]
