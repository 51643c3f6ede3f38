"""Random numbers of a session on a GPU."""

from __future__ import annotations

import os
from typing import Any

import cupy
import numpy as np

__all__ = ["CudaRandomStream"]


class CudaRandomStream:
    """CuPy's Philox generator. The same seed gives other numbers than NumPy's.

    A new generator runs a kernel, which fills 16 MB of the GPU's memory, on the current stream. Any
    thread may seed a session, so the generator is made when numbers are drawn: then the session's
    stream is the current one.
    """

    def __init__(self) -> None:
        self._made: Any = None
        self.seed(int.from_bytes(os.urandom(8), "little"))

    def seed(self, seed: int) -> None:
        """Restart the generator from a seed."""
        self._seed = seed % 2**64
        self._made = None

    @property
    def _generator(self) -> Any:
        if self._made is None:
            self._made = cupy.random.Generator(cupy.random.Philox4x3210(self._seed))
        return self._made

    def uniform(self, shape: tuple[int, ...]) -> Any:
        """Draw ``float64`` numbers from [0, 1)."""
        drawn = self._generator.random(shape)
        # cuRAND draws from (0, 1]; Burn's interval is [0, 1).
        return cupy.where(drawn >= 1.0, 0.0, drawn)

    def normal(self, shape: tuple[int, ...]) -> Any:
        """Draw ``float64`` numbers with mean 0 and standard deviation 1."""
        return self._generator.standard_normal(shape)

    def integers(self, low: int, above: int, shape: tuple[int, ...], dtype: Any) -> Any:
        """Draw integers from [low, above)."""
        high, rest = (
            self._generator.integers(0, 2**32, shape, dtype=np.uint32).astype(np.uint64)
            for _ in range(2)
        )
        bits = (high << np.uint64(32)) | rest
        span = above - low
        # The bias of the remainder towards small numbers is below span / 2**64.
        chosen = bits if span >= 2**64 else bits % np.uint64(span)
        return (chosen + np.uint64(low % 2**64)).astype(dtype)
