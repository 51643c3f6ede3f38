"""Random tensors. On each kind of backend, a seed gives the same tensors on every machine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.backends.array.core.kernel_forms import Array, Kernel, KernelFamily
from burn_remote_server.backends.array.kernels.casting import conversion

__all__ = ["FloatRandom", "IntRandom", "RandomSource", "RandomStream"]

Distribution = tuple[Any, ...]


class RandomSource(Protocol):
    """A generator of the random numbers of one session."""

    def seed(self, seed: int) -> None:
        """Restart the sequence from a seed."""
        ...

    def uniform(self, shape: tuple[int, ...]) -> Array:
        """Draw ``float64`` numbers from [0, 1)."""
        ...

    def normal(self, shape: tuple[int, ...]) -> Array:
        """Draw ``float64`` numbers with mean 0 and standard deviation 1."""
        ...

    def integers(self, low: int, above: int, shape: tuple[int, ...], dtype: Any) -> Array:
        """Draw integers from [low, above)."""
        ...


class RandomStream:
    """A Philox generator of the array module: counter-based, the same on every machine."""

    def __init__(self, xp: Any) -> None:
        self._xp = xp
        self._generator = self._new(None)

    def _new(self, seed: int | None) -> Any:
        return self._xp.random.Generator(self._xp.random.Philox(seed))

    def seed(self, seed: int) -> None:
        """Restart the sequence from a seed."""
        self._generator = self._new(seed)

    def uniform(self, shape: tuple[int, ...]) -> Array:
        """Draw ``float64`` numbers from [0, 1)."""
        return self._generator.random(shape)

    def normal(self, shape: tuple[int, ...]) -> Array:
        """Draw ``float64`` numbers with mean 0 and standard deviation 1."""
        return self._generator.standard_normal(shape)

    def integers(self, low: int, above: int, shape: tuple[int, ...], dtype: Any) -> Array:
        """Draw integers from [low, above)."""
        return self._generator.integers(low, above, shape, dtype=dtype)


class _Random(KernelFamily):
    """Kernels that draw numbers of one kind, by ``_uniform``."""

    def __init__(self, xp: Any, source: RandomSource) -> None:
        super().__init__(xp)
        self._source = source

    def random(self, *, distribution: Distribution, out: TensorSpec) -> Array:
        """Draw a tensor."""
        kind, *numbers = distribution
        if kind == "Bernoulli":
            return self._bernoulli(out, *numbers)
        if kind == "Normal":
            return self._normal(out, *numbers)
        return self._uniform(out, *numbers)

    @abstractmethod
    def _uniform(self, out: TensorSpec, *bounds: float) -> Array:
        """Draw from the range between two bounds, or from the default range without bounds."""

    def _bernoulli(self, out: TensorSpec, probability: float) -> Array:
        if not 0.0 <= probability <= 1.0:
            raise UsageError(f"a probability must be between 0 and 1, not {probability}")
        drawn = self._source.uniform(out.shape) < probability
        return drawn.astype(array_dtype(out.dtype))

    def _normal(self, out: TensorSpec, mean: float, deviation: float) -> Array:
        if not deviation >= 0.0:
            raise UsageError(f"a standard deviation must be 0 or more, not {deviation}")
        drawn = self._source.normal(out.shape) * deviation + mean
        return conversion(self.xp, drawn.dtype, array_dtype(out.dtype))(drawn)


class FloatRandom(_Random):
    """Floating-point numbers, drawn in ``float64`` and rounded once; by default from [0, 1)."""

    family = "Float"

    def table(self) -> Mapping[str, Kernel]:
        return {"Random": self.random}

    def _uniform(self, out: TensorSpec, *bounds: float) -> Array:
        low, above = bounds or (0.0, 1.0)
        if not low <= above:
            raise UsageError(f"a range must not start above its end: {low} to {above}")
        xp, dtype = self.xp, array_dtype(out.dtype)
        wide = self._source.uniform(out.shape) * (above - low) + low
        drawn = conversion(xp, wide.dtype, dtype)(wide)
        # Rounding may give the end of the range, which is excluded.
        below = np.nextafter(dtype.type(above), dtype.type(low))
        return xp.minimum(drawn, xp.asarray(below, dtype=dtype)) if low < above else drawn


class IntRandom(_Random):
    """Integers; by default from the whole range of the dtype."""

    family = "Numeric"

    def table(self) -> Mapping[str, Kernel]:
        return {"IntRandom": self.random}

    def _uniform(self, out: TensorSpec, *bounds: float) -> Array:
        dtype = array_dtype(out.dtype)
        limits = np.iinfo(dtype)
        low, above = limits.min, limits.max + 1
        if bounds:
            low, above = (min(max(int(bound), limits.min), above) for bound in bounds)
        if not low < above:
            raise UsageError(f"the range {low} to {above}, end excluded, contains no integer")
        return self._source.integers(low, above, out.shape, dtype)
