"""The discrete Fourier transform of real signals, and its inverse.

``X[k] = sum over t of x[t] * exp(-2 pi i k t / n)`` for ``k = 0 .. n / 2``. The inverse has the
factor ``1 / n``. These are the definitions of NumPy and PyTorch. ``n`` truncates or zero-pads the
signal (for the inverse, the spectrum). Burn requires powers of two; here ``n`` is any length.
"""

from __future__ import annotations

from collections.abc import Mapping

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.kernels.networks.checks import (
    check_axis,
    check_shape,
    refuse,
)
from burn_remote_server.backends.array.kernels.networks.module_kernels import (
    Array,
    Kernel,
    ModuleKernels,
)

__all__ = ["Fourier"]


class Fourier(ModuleKernels):
    """Real Fourier transforms along one axis.

    A spectrum is two tensors, its real and imaginary parts, with ``n / 2 + 1`` entries along
    ``dim``.
    """

    def table(self) -> Mapping[str, Kernel]:
        """Return the kernels by the names of their IR variants."""
        return {"Rfft": self.rfft, "IRfft": self.irfft}

    def rfft(
        self, signal: Array, *, dim: int, n: int | None, out: tuple[TensorSpec, TensorSpec]
    ) -> tuple[Array, Array]:
        """Return the real and imaginary parts of the spectrum along ``dim``."""
        check_axis("Rfft", dim, signal)
        length = signal.shape[dim] if n is None else n
        if length < 1:
            raise refuse("Rfft", "n", length, "at least 1")
        spectrum = self.xp.fft.rfft(signal, n=length, axis=dim)
        # Copies, because a view of either part would keep the whole complex array alive.
        real, imaginary = spectrum.real.astype(signal.dtype), spectrum.imag.astype(signal.dtype)
        check_shape("Rfft", "spectrum", real, out[0].shape, "as declared")
        return real, imaginary

    def irfft(
        self, input_re: Array, input_im: Array, *, dim: int, n: int | None, out: TensorSpec
    ) -> Array:
        """Return the signal of ``n`` samples along ``dim``, by default ``2 * (entries - 1)``."""
        check_axis("IRfft", dim, input_re)
        check_shape("IRfft", "input_im", input_im, input_re.shape, "the shape of input_re")
        length = 2 * (input_re.shape[dim] - 1) if n is None else n
        if length < 1:
            raise refuse("IRfft", "n", length, "at least 1")
        imaginary = self.xp.multiply(input_im, 1j)
        signal = self.xp.fft.irfft(input_re + imaginary, n=length, axis=dim)
        check_shape("IRfft", "signal", signal, out.shape, "as declared")
        return signal.astype(input_re.dtype, copy=False)
