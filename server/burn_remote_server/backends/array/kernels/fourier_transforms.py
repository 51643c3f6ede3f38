"""Discrete Fourier transforms along several axes.

``X[k] = sum over t of x[t] * exp(-2 pi i k t / n)``; the inverse has the opposite sign. ``norm``
says which of the two is divided by the number of samples. float32 is computed in float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.backends.array.core.kernel_forms import Array, Kernel, KernelFamily

__all__ = ["FourierTransforms"]


class FourierTransforms(KernelFamily):
    """The transforms of the array library, applied to input that is truncated first."""

    family = "Fourier"

    def table(self) -> Mapping[str, Kernel]:
        return {
            "Fft": self.fft,
            "InverseFft": self.inverse_fft,
            "RealFft": self.real_fft,
            "InverseRealFft": self.inverse_real_fft,
        }

    def fft(self, input: Array, *, out: TensorSpec, **options: Any) -> Array:
        """Return the frequencies of complex samples."""
        return self._transformed(self.xp.fft.fftn, input, out, **options)

    def inverse_fft(self, input: Array, *, out: TensorSpec, **options: Any) -> Array:
        """Return the complex samples of frequencies."""
        return self._transformed(self.xp.fft.ifftn, input, out, **options)

    def real_fft(self, input: Array, *, out: TensorSpec, **options: Any) -> Array:
        """Return the frequencies of real samples, without those that are conjugates of others."""
        return self._transformed(self.xp.fft.rfftn, input, out, **options)

    def inverse_real_fft(self, input: Array, *, out: TensorSpec, **options: Any) -> Array:
        """Return the real samples of frequencies."""
        last = options["axes"][-1]
        kept = options["sizes"][-1] // 2 + 1
        # The library itself would pad the other axes before it truncates the last one.
        input = input[(slice(None),) * last + (slice(kept),)]
        return self._transformed(self.xp.fft.irfftn, input, out, **options)

    def _transformed(
        self,
        function: Any,
        input: Array,
        out: TensorSpec,
        *,
        axes: Sequence[int],
        sizes: Sequence[int],
        norm: str,
    ) -> Array:
        # Truncate all axes first: the library pads one axis before it truncates the next, so its
        # intermediate result could be larger than both input and output by orders of magnitude.
        kept = [slice(None)] * input.ndim
        for axis, size in zip(axes, sizes, strict=True):
            kept[axis] = slice(size)
        found = function(input[tuple(kept)], s=sizes, axes=axes, norm=norm.lower())
        return found.astype(array_dtype(out.dtype), copy=False)
