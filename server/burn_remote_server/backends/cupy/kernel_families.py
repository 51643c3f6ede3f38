"""Kernel families that replace the shared ones on a GPU."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
from cupyx.scipy.special import erf

from burn_remote_protocol.tensors import Shape, TensorSpec
from burn_remote_server.backends.array.core.array_dtypes import BFLOAT16
from burn_remote_server.backends.array.core.kernel_forms import (
    ArraySpec,
    KernelFamily,
    Parameters,
    Run,
)
from burn_remote_server.backends.array.core.scalars import scalar_array
from burn_remote_server.backends.array.kernels.activations import Activations, Softmaxes
from burn_remote_server.backends.array.kernels.float_functions import FloatFunctions
from burn_remote_server.backends.array.kernels.indexing import BaseIndexing, BaseMasking
from burn_remote_server.backends.array.kernels.movement import BaseMovement
from burn_remote_server.backends.array.kernels.ranking import NumericRanking
from burn_remote_server.backends.array.kernels.reduction import NumericReduction
from burn_remote_server.backends.cupy.array_module import CUPY
from burn_remote_server.backends.cupy.index_updates import (
    update_in_order,
    update_slices_in_order,
    updates_slices,
)
from burn_remote_server.backends.cupy.linear_algebra import CudaLinearAlgebra, CudaMatrixKernels
from burn_remote_server.backends.cupy.network_modules import cuda_module_families
from burn_remote_server.backends.cupy.range_checks import checked_positions
from burn_remote_server.backends.cupy.row_kernels import are_fitting
from burn_remote_server.backends.cupy.row_reductions import log_softmax, softmax
from burn_remote_server.backends.cupy.sums import sum_of

__all__ = ["cuda_families"]


class CudaIndexing(BaseIndexing):
    """Index updates in the order of the indices, also for assignments."""

    def select_assign(
        self, tensor: Any, indices: Any, value: Any, *, dim: int, update: str, out: TensorSpec
    ) -> Any:
        """Return the tensor with the indexed slices along axis ``dim`` updated by ``value``."""
        if not updates_slices(indices.size):
            return super().select_assign(tensor, indices, value, dim=dim, update=update, out=out)
        chosen = self._checked(indices, tensor.shape, dim)
        result = cupy.array(tensor, order="C")
        update_slices_in_order(result, chosen, value, dim, update)
        return result

    def _checked(self, indices: Any, shape: Shape, axis: int) -> Any:
        if not indices.size or not shape[axis]:
            return super()._checked(indices, shape, axis)
        compare = super()._checked
        return checked_positions(indices, shape[axis], lambda: compare(indices, shape, axis))

    def _update(self, target: Any, positions: Any, values: Any, update: str) -> None:
        update_in_order(target, positions, values, update)


class CudaFunctions(FloatFunctions):
    """Float functions with CUDA's error function."""

    def prepare_erf(self, first: ArraySpec, out: TensorSpec, parameters: Parameters) -> Run:
        """Return the kernel of the error function."""
        run: Run = erf
        return run

    def prepare_erf_into(
        self, first: ArraySpec, out: TensorSpec, parameters: Parameters
    ) -> Run | None:
        """Return ``None``: sessions on a GPU do not reuse input memory."""
        return None


class CudaActivations(Activations):
    """Activation functions with CUDA's error function."""

    def _erf(self, x: Any) -> Any:
        return erf(x)


class CudaSoftmaxes(Softmaxes):
    """Softmax of rows as one kernel."""

    def softmax(self, input: Any, *, axis: int, out: TensorSpec) -> Any:
        """Return ``exp(input) / sum(exp(input))`` along an axis, without overflow."""
        if _are_rows(input, axis):
            return softmax(input)
        return super().softmax(input, axis=axis, out=out)

    def log_softmax(self, input: Any, *, axis: int, out: TensorSpec) -> Any:
        """Return the logarithm of the softmax along an axis, without underflow."""
        if _are_rows(input, axis):
            return log_softmax(input)
        return super().log_softmax(input, axis=axis, out=out)


def _are_rows(array: Any, axis: int) -> bool:
    return (
        axis == array.ndim - 1
        and are_fitting(array.shape, array.dtype)
        and bool(array.flags.c_contiguous)
    )


class CudaMasking(BaseMasking):
    """Masking that keeps ``bfloat16``: CuPy would convert it to ``float32``."""

    def mask_where(self, tensor: Any, mask: Any, value: Any, *, out: TensorSpec) -> Any:
        """Return the value's elements where the mask is true, else the tensor's."""
        return _chosen(mask, value, tensor)

    def prepare_mask_fill(self, first: ArraySpec, out: TensorSpec, parameters: Parameters) -> Run:
        """Return the kernel that puts a scalar where the mask is true."""
        number = scalar_array(CUPY, parameters["value"], first.dtype)
        return lambda tensor, mask: _chosen(mask, number, tensor)


def _chosen(mask: Any, value: Any, tensor: Any) -> Any:
    if tensor.dtype != BFLOAT16:
        return cupy.where(mask, value, tensor)
    return cupy.where(mask, value.view(np.int16), tensor.view(np.int16)).view(BFLOAT16)


class CudaMovement(BaseMovement):
    """Movement whose window views never keep uncounted memory alive."""

    def unfold(self, input: Any, *, dim: int, size: int, step: int, out: TensorSpec) -> Any:
        """Return all windows of an axis: ``[…, windows, …, size]``."""
        windows = super().unfold(input, dim=dim, size=size, step=step, out=out)
        # The result of CuPy's ``as_strided`` has no ``base``, so the session's quota counts the
        # bytes of its elements. These must be at least the bytes of the allocation that it keeps.
        return windows if windows.nbytes >= input.data.mem.size else windows.copy()


class CudaReduction(NumericReduction):
    """Reductions with a kernel for sums over an axis that is not the last."""

    def __init__(self, xp: Any) -> None:
        super().__init__(xp)
        self._sum = sum_of


class CudaRanking(NumericRanking):
    """Ranking that returns the first of several NaNs or equal values, where CuPy returns any."""

    def __init__(self, xp: Any) -> None:
        super().__init__(_RankingFunctions(xp))


class _RankingFunctions:
    """An array module that ranks as NumPy does.

    ``argmax`` and ``argmin`` return the first position; ``partition`` orders NaN last.
    """

    def __init__(self, xp: Any) -> None:
        self._xp = xp

    def argmax(self, array: Any, axis: int, keepdims: bool) -> Any:
        return _first(array, cupy.max(array, axis=axis, keepdims=True), axis)

    def argmin(self, array: Any, axis: int, keepdims: bool) -> Any:
        return _first(array, cupy.min(array, axis=axis, keepdims=True), axis)

    def partition(self, array: Any, place: int, axis: int) -> Any:
        # CuPy's own kernel compares NaN as if it were equal to every number. Sorting costs little
        # more: CuPy uses that kernel only for long lines of which nearly all elements are kept, and
        # sorts other lines.
        return cupy.sort(array, axis=axis)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._xp, name)


def _first(array: Any, extreme: Any, axis: int) -> Any:
    """Return the first position of the extreme, or of a NaN, along an axis."""
    is_there = array == extreme
    if array.dtype.kind == "f":
        is_there |= array != array
    return cupy.argmax(is_there, axis=axis, keepdims=True)


def cuda_families() -> list[KernelFamily]:
    """Return the families that replace those of ``shared_families``."""
    return [
        CudaActivations(CUPY),
        CudaFunctions(CUPY),
        CudaIndexing(CUPY),
        CudaLinearAlgebra(CUPY),
        CudaMasking(CUPY),
        CudaMatrixKernels(CUPY),
        CudaMovement(CUPY),
        CudaRanking(CUPY),
        CudaReduction(CUPY),
        CudaSoftmaxes(CUPY),
        *cuda_module_families(),
    ]
