"""Kernels of complex numbers and their parts."""

from __future__ import annotations

from collections.abc import Mapping

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.backends.array.core.kernel_forms import (
    Array,
    Elementwise,
    Kernel,
    KernelFamily,
)

__all__ = ["ComplexFunctions"]


class ComplexFunctions(KernelFamily):
    """Parts of complex numbers, and conversions from real ones."""

    family = "Complex"
    is_elementwise = True

    def table(self) -> Mapping[str, Kernel]:
        return {
            "FromParts": self.from_parts,
            "IntoComplex": self.into_complex,
            "Real": self.real,
            "Imaginary": self.imaginary,
            "Abs": Elementwise(self.xp.absolute),
            "Angle": self.angle,
            "Conjugate": Elementwise(self.xp.conjugate),
            "Negative": Elementwise(self.xp.negative),
        }

    def from_parts(self, real: Array, imaginary: Array, *, out: TensorSpec) -> Array:
        """Return complex numbers with these parts, which broadcast."""
        numbers = self.xp.empty(out.shape, array_dtype(out.dtype))
        # Not ``real + 1j * imaginary``, which makes NaN of an infinite imaginary part.
        numbers.real = real
        numbers.imag = imaginary
        return numbers

    def into_complex(self, input: Array, *, out: TensorSpec) -> Array:
        """Return real numbers or bools as complex numbers."""
        return input.astype(array_dtype(out.dtype))

    def real(self, input: Array, *, out: TensorSpec) -> Array:
        """Return the real parts, as a copy: a view would keep the complex array alive."""
        return input.real.copy()

    def imaginary(self, input: Array, *, out: TensorSpec) -> Array:
        """Return the imaginary parts, as a copy."""
        return input.imag.copy()

    def angle(self, input: Array, *, out: TensorSpec) -> Array:
        """Return the angles in radians, from -π to π."""
        return self.xp.arctan2(input.imag, input.real)
