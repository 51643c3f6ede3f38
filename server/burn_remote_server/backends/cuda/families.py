"""Which kernels does a GPU have that are not those of every array module?"""

from __future__ import annotations

from typing import Any

from cupyx.scipy.special import erf

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.float_functions import FloatFunctions
from burn_remote_server.backends.array.indexing import BaseIndexing
from burn_remote_server.backends.array.kernels import KernelFamily
from burn_remote_server.backends.cuda.library import CUPY
from burn_remote_server.backends.cuda.linear_algebra import CudaLinearAlgebra
from burn_remote_server.backends.cuda.updates import update_in_order

__all__ = ["cuda_families"]


class CudaIndexing(BaseIndexing):
    """Updates in the order of the indices, assignments too."""

    def _update(self, target: Any, positions: Any, values: Any, update: str) -> None:
        update_in_order(target, positions, values, update)


class CudaFunctions(FloatFunctions):
    """CUDA has an error function."""

    def erf(self, input: Any, *, out: TensorSpec) -> Any:
        """Return the error function."""
        return erf(input)


def cuda_families() -> list[KernelFamily]:
    """Return the families that take the place of those of ``shared_families``."""
    return [CudaFunctions(CUPY), CudaIndexing(CUPY), CudaLinearAlgebra(CUPY)]
