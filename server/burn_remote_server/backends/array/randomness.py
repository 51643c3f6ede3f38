"""Where do a session's random numbers come from?

A counter-based generator (Philox) per session: the same seed gives the same numbers on every server
of the same backend, whatever other sessions draw.
"""

from __future__ import annotations

import secrets
from typing import Any

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.dtypes import array_dtype
from burn_remote_server.backends.array.family import KernelFamily
from burn_remote_server.backends.interface import Kernel

__all__ = ["RandomKernels"]


class RandomKernels(KernelFamily):
    """``Float.Random`` and ``Numeric.IntRandom``, with the state of one session.

    ``Default`` is uniform in [0, 1) for floats and over 0 … 255 for integers; ``Uniform`` excludes its
    upper end.
    """

    def __init__(self, xp: Any) -> None:
        super().__init__(xp)
        self.seed(secrets.randbits(64))

    def seed(self, seed: int) -> None:
        """Start anew."""
        self._generator = self.xp.random.Generator(self.new_bits(seed))

    def new_bits(self, seed: int) -> Any:
        """Return the array module's counter-based bit generator."""
        return self.xp.random.Philox(seed)

    def table(self) -> dict[str, Kernel]:
        return {"Random": self.random, "IntRandom": self.int_random}

    def random(self, *, distribution: tuple[Any, ...], out: TensorSpec) -> Any:
        dtype = array_dtype(out.dtype)
        draw = self._generator
        match distribution:
            case ("Uniform", low, high):
                return (draw.random(out.shape, dtype=dtype) * (high - low) + low).astype(dtype)
            case ("Normal", mean, deviation):
                return (draw.standard_normal(out.shape, dtype=dtype) * deviation + mean).astype(
                    dtype
                )
            case ("Bernoulli", probability):
                return (draw.random(out.shape) < probability).astype(dtype)
        return draw.random(out.shape, dtype=dtype)

    def int_random(self, *, distribution: tuple[Any, ...], out: TensorSpec) -> Any:
        dtype = array_dtype(out.dtype)
        draw = self._generator
        match distribution:
            case ("Uniform", low, high):
                values = draw.random(out.shape) * (high - low) + low
            case ("Normal", mean, deviation):
                values = draw.standard_normal(out.shape) * deviation + mean
            case ("Bernoulli", probability):
                values = draw.random(out.shape) < probability
            case _:
                values = draw.random(out.shape) * 256
        return self.xp.floor(values).astype(dtype)
