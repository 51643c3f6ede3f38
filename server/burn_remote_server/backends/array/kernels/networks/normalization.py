"""Layer normalization (Ba et al., 2016) and batch normalization (Ioffe and Szegedy, 2015).

Both follow the steps of the compositions in ``burn_remote.functional``, in the same order, so their
results have the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.kernels.networks.module_kernels import (
    Array,
    Kernel,
    ModuleKernels,
)

__all__ = ["Normalization"]


class Normalization(ModuleKernels):
    """``(x - mean) / sqrt(variance + epsilon) * gamma + beta``."""

    def table(self) -> Mapping[str, Kernel]:
        """Return the kernels by the names of their IR variants."""
        return {"LayerNorm": self.layer_norm, "BatchNorm": self.batch_norm}

    def layer_norm(
        self, input: Array, gamma: Array, beta: Array | None, *, epsilon: float, out: TensorSpec
    ) -> Array:
        """Normalize the last axis by its mean and its biased variance."""
        normal = input - self._mean(input)
        scale = self._scale(self._mean(normal * normal), epsilon)
        return _scaled(normal, scale, gamma, beta)

    def batch_norm(
        self,
        x: Array,
        gamma: Array,
        beta: Array,
        mean: Array,
        variance: Array,
        *,
        epsilon: float,
        out: TensorSpec,
    ) -> Array:
        """Normalize each channel of ``x`` ``[batch, channels, …]`` by the given statistics."""
        shape = (-1, *(1,) * (x.ndim - 2))
        gamma, beta, mean, variance = (
            each.reshape(shape) for each in (gamma, beta, mean, variance)
        )
        return _scaled(x - mean, self._scale(variance, epsilon), gamma, beta)

    def _mean(self, x: Array) -> Array:
        xp, dtype = self.xp, x.dtype
        sums = xp.add.reduce(x, axis=-1, dtype=dtype, keepdims=True)
        return xp.true_divide(sums, dtype.type(x.shape[-1]))

    def _scale(self, variance: Array, epsilon: float) -> Array:
        return self.xp.reciprocal(self.xp.sqrt(variance + variance.dtype.type(epsilon)))


def _scaled(distance: Array, scale: Array, gamma: Array, beta: Array | None) -> Array:
    distance *= scale
    distance *= gamma
    if beta is not None:
        distance += beta
    return distance
