"""Which kernels does a GPU have that are not those of every array module?"""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
from cupyx.scipy.special import erf

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.dtypes import BFLOAT16
from burn_remote_server.backends.array.float_functions import FloatFunctions
from burn_remote_server.backends.array.indexing import BaseIndexing
from burn_remote_server.backends.array.kernels import KernelFamily, Parameters, Run, Seen
from burn_remote_server.backends.array.masking import BaseMasking
from burn_remote_server.backends.array.ranking import NumericRanking
from burn_remote_server.backends.array.scalars import scalar_array
from burn_remote_server.backends.cupy.library import CUPY
from burn_remote_server.backends.cupy.linear_algebra import CudaLinearAlgebra
from burn_remote_server.backends.cupy.modules import cuda_module_families
from burn_remote_server.backends.cupy.updates import update_in_order

__all__ = ["cuda_families"]


class CudaIndexing(BaseIndexing):
    """Updates in the order of the indices, assignments too."""

    def _update(self, target: Any, positions: Any, values: Any, update: str) -> None:
        update_in_order(target, positions, values, update)


class CudaFunctions(FloatFunctions):
    """CUDA has an error function."""

    def prepare_erf(self, first: Seen, out: TensorSpec, parameters: Parameters) -> Run:
        """Return the error function."""
        run: Run = erf
        return run

    def prepare_erf_into(self, first: Seen, out: TensorSpec, parameters: Parameters) -> Run | None:
        """Return nothing: sessions on a GPU do not reuse memory themselves."""
        return None


class CudaMasking(BaseMasking):
    """``bfloat16`` chosen as what it is made of: CuPy would make ``float32`` of it."""

    def mask_where(self, tensor: Any, mask: Any, value: Any, *, out: TensorSpec) -> Any:
        """Return the value's elements where the mask is true, the tensor's elsewhere."""
        return _chosen(mask, value, tensor)

    def prepare_mask_fill(self, first: Seen, out: TensorSpec, parameters: Parameters) -> Run:
        """Return a number where the mask is true, the tensor's elements elsewhere."""
        number = scalar_array(CUPY, parameters["value"], first.dtype)
        return lambda tensor, mask: _chosen(mask, number, tensor)


def _chosen(mask: Any, value: Any, tensor: Any) -> Any:
    if tensor.dtype != BFLOAT16:
        return cupy.where(mask, value, tensor)
    return cupy.where(mask, value.view(np.int16), tensor.view(np.int16)).view(BFLOAT16)


class CudaRanking(NumericRanking):
    """The first NaN and the first of equals, where CuPy takes any NaN."""

    def __init__(self, xp: Any) -> None:
        super().__init__(_FirstExtremes(xp))


class _FirstExtremes:
    """An array module with other positions of extremes."""

    def __init__(self, xp: Any) -> None:
        self._xp = xp

    def argmax(self, array: Any, axis: int, keepdims: bool) -> Any:
        return _first(array, cupy.max(array, axis=axis, keepdims=True), axis)

    def argmin(self, array: Any, axis: int, keepdims: bool) -> Any:
        return _first(array, cupy.min(array, axis=axis, keepdims=True), axis)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._xp, name)


def _first(array: Any, extreme: Any, axis: int) -> Any:
    """Return where the extreme, or a NaN, first stands along an axis."""
    is_there = array == extreme
    if array.dtype.kind == "f":
        is_there |= array != array
    return cupy.argmax(is_there, axis=axis, keepdims=True)


def cuda_families() -> list[KernelFamily]:
    """Return the families that take the place of those of ``shared_families``."""
    return [
        CudaFunctions(CUPY),
        CudaIndexing(CUPY),
        CudaLinearAlgebra(CUPY),
        CudaMasking(CUPY),
        CudaRanking(CUPY),
        *cuda_module_families(),
    ]
