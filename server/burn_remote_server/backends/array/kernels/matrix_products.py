"""Matrix products on a CPU, on a number of threads that depends on their shapes alone.

The number of BLAS threads is a setting of the process, and some BLAS kernels round differently if a
product is divided differently. So a large product that left its number of threads to the BLAS had
other last bits while another session multiplied on one thread. Here, the BLAS computes on one
thread only, and large products are divided among the threads of a pool.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import Any, Final, NamedTuple

import numpy as np

from burn_remote_server.backends.array.core.kernel_forms import Array
from burn_remote_server.backends.array.kernels.blas_threads import is_small, on_one_thread
from burn_remote_server.backends.interface import Run

__all__ = ["cores", "divided", "matmul", "parts_of", "prepared_matmul"]

# The least number of multiplications in a part: half a millisecond. Passing a part to another
# thread takes up to a tenth of that.
PART_MULTIPLICATIONS: Final = 2**24
# Parts begin at multiples of this: the widest tile of OpenBLAS's kernels has so many rows.
ALIGNMENT: Final = 32


def matmul(xp: Any, lhs: Array, rhs: Array, out: Array | None = None) -> Array:
    """Multiply matrices, as ``xp.matmul``. Only NumPy's products are limited and divided."""
    if xp is not np or min(lhs.ndim, rhs.ndim) < 2:
        return xp.matmul(lhs, rhs) if out is None else xp.matmul(lhs, rhs, out=out)
    rows, inner = lhs.shape[-2:]
    columns = rhs.shape[-1]
    if is_small(rows, inner, columns):
        return np.matmul(lhs, rhs, out=out)
    if lhs.ndim == rhs.ndim == 2 and rows * inner * columns < 2 * PART_MULTIPLICATIONS:
        # ``parts_of`` returns none. Asking it took 7 to 9 µs within a training step.
        return on_one_thread(np.matmul)(lhs, rhs, out)
    shape = _result_shape(lhs, rhs)
    return on_one_thread(divided(np.matmul, parts_of(shape, inner, cores()), out))(lhs, rhs)


def prepared_matmul(xp: Any, rows: int, inner: int, columns: int) -> Run:
    """Return ``matmul`` for two matrices of known sizes, on as many threads."""
    if xp is not np:
        multiply: Run = xp.matmul
        return multiply
    if is_small(rows, inner, columns):
        return np.matmul
    return on_one_thread(divided(np.matmul, parts_of((rows, columns), inner, cores())))


def _result_shape(lhs: Array, rhs: Array) -> tuple[int, ...]:
    batch = lhs.shape[:-2]
    if batch != rhs.shape[:-2]:
        batch = np.broadcast_shapes(batch, rhs.shape[:-2])
    return (*batch, lhs.shape[-2], rhs.shape[-1])


@cache
def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Part(NamedTuple):
    """A range of a product's result along one axis: 0 for the batch, -2 for rows, or -1."""

    axis: int
    range: slice

    def compute(self, multiply: Run, lhs: Array, rhs: Array, result: Array) -> None:
        """Write this part of the product to ``result``."""
        if self.axis == 0:
            lhs, rhs = (
                each[self.range]
                if each.ndim == result.ndim and each.shape[0] == result.shape[0]
                else each
                for each in (lhs, rhs)
            )
            multiply(lhs, rhs, out=result[self.range])
        elif self.axis == -2:
            multiply(lhs[..., self.range, :], rhs, out=result[..., self.range, :])
        else:
            multiply(lhs, rhs[..., self.range], out=result[..., self.range])


def parts_of(shape: Sequence[int], inner: int, most: int) -> Sequence[Part]:
    """Divide the result of a product into at most ``most`` parts; none if it is too small.

    ``shape`` is that of the result, ``inner`` the number of multiplications for each element.
    """
    count = min(most, math.prod(shape) * inner // PART_MULTIPLICATIONS)
    if count < 2:
        return ()
    if len(shape) > 2 and shape[0] >= count:
        axis, length, alignment = 0, shape[0], 1
    else:
        axis = -2 if shape[-2] >= shape[-1] else -1
        length, alignment = shape[axis], ALIGNMENT
    size = math.ceil(length / count / alignment) * alignment
    firsts = range(0, length, size)
    return [Part(axis, slice(first, min(first + size, length))) for first in firsts]


def divided(multiply: Run, parts: Sequence[Part], out: Array | None = None) -> Run:
    """Return a product that the calling thread computes together with the threads of a pool."""
    if len(parts) < 2:
        return multiply if out is None else partial(multiply, out=out)

    def run(lhs: Array, rhs: Array) -> Array:
        result = out
        if result is None:
            result = np.empty(_result_shape(lhs, rhs), np.result_type(lhs, rhs))

        def compute(part: Part) -> None:
            part.compute(multiply, lhs, rhs, result)

        others: list[Future[None]] = []
        try:
            try:
                for part in parts[1:]:
                    others.append(_pool().submit(compute, part))  # noqa: PERF401 - may raise
            except RuntimeError:  # the system has no more threads
                _discard_pool()
                for part in parts[1 + len(others) :]:
                    compute(part)
            compute(parts[0])
            _complete(parts[1 : 1 + len(others)], others, compute)
        finally:
            for other in others:
                other.cancel()
        return result

    return run


def _complete(parts: Sequence[Part], others: Sequence[Future[None]], compute: Run) -> None:
    """Compute the parts that no thread has begun, and wait for the others."""
    for part, other in zip(reversed(parts), reversed(others), strict=True):
        if other.cancel():
            compute(part)
    for other in others:
        if not other.cancelled():
            other.result()


@cache
def _pool() -> ThreadPoolExecutor:
    # Infinities and NaN are ordinary results; see ``NumpyBackend.prepare_thread``.
    ignore = partial(np.seterr, all="ignore")
    return ThreadPoolExecutor(max(1, cores() - 1), "product", initializer=ignore)


def _discard_pool() -> None:
    """Have the next product make another pool.

    A pool that could not start a thread keeps the call, and would run it at any later time.
    """
    pool = _pool()
    _pool.cache_clear()
    pool.shutdown(wait=False, cancel_futures=True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has no threads of its parent
