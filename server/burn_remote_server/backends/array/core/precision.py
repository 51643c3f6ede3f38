"""Computation on ``float16`` and ``bfloat16`` tensors in ``float32``.

On a CPU, matrix products of these dtypes are 180 times slower than those of ``float32``, and their
sums overflow at 65,504 or stop growing at 256. Kernels receive ``float32`` copies, and only the
result is rounded.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from burn_remote_server.backends.array.core.array_dtypes import LOW_PRECISION
from burn_remote_server.backends.array.core.kernel_forms import ArraySpec, Run

__all__ = ["in_float32", "widened"]

FLOAT32: Final = np.dtype(np.float32)


def widened(seen: ArraySpec) -> ArraySpec:
    """Return the shape and dtype that a wrapped kernel receives for this input."""
    return ArraySpec(seen.shape, FLOAT32) if seen.dtype in LOW_PRECISION else seen


def _widened(tensor: Any) -> Any:
    if tensor is None:
        return None
    return tensor.astype(FLOAT32) if tensor.dtype in LOW_PRECISION else tensor


def in_float32(run: Run, out: Any) -> Run:
    """Wrap a kernel: widen low-precision inputs to ``float32`` and round the results.

    ``out`` is the array dtype of the only output, or a tuple with ``None`` for absent outputs.
    Lists of tensors are passed on unchanged: kernels that take lists only move elements.
    """
    if type(out) is tuple:

        def run_several(*tensors: Any) -> Any:
            results = run(*[_widened(tensor) for tensor in tensors])
            return tuple(
                None if result is None else result.astype(dtype, copy=False)
                for result, dtype in zip(results, out, strict=True)
            )

        return run_several

    def run_one(*tensors: Any) -> Any:
        return run(*[_widened(tensor) for tensor in tensors]).astype(out, copy=False)

    return run_one
