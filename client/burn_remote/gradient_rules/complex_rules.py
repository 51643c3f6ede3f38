"""Gradients of the extension rows for complex numbers and Fourier transforms.

The gradient of a real number L with respect to a complex z = x + iy is dL/dx + i dL/dy, as in
PyTorch: the direction of the steepest ascent. For a linear operation, the gradient of the input is
the adjoint operation applied to the gradient of the output.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from burn_remote.autodiff.rule_table import rule
from burn_remote.dispatch.operators import Operator, upload
from burn_remote.functions.arithmetic import divide, multiply, negative
from burn_remote.functions.casting import astype, converted_to
from burn_remote.functions.complex_numbers import complex, conj, imag, real
from burn_remote.functions.elementwise import square
from burn_remote.functions.logic import equal
from burn_remote.functions.selection import mask_fill
from burn_remote.gradient_rules.spreading import resized, zeros
from burn_remote_protocol.operations.families import complex_rows, fourier_rows

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

FFT: Final = Operator(fourier_rows.FFT)
INVERSE_FFT: Final = Operator(fourier_rows.INVERSE_FFT)
REAL_FFT: Final = Operator(fourier_rows.REAL_FFT)

# -- Parts of complex numbers ---------------------------------------------------------------------

rule(
    complex_rows.FROM_PARTS,
    real=lambda grad: real(grad),
    imaginary=lambda grad: imag(grad),
)
rule(
    complex_rows.INTO_COMPLEX,
    input=lambda grad, input_spec: astype(real(grad), input_spec.dtype),
)
rule(complex_rows.REAL, input=lambda grad, input_spec: converted_to(grad, input_spec.dtype))
rule(
    complex_rows.IMAGINARY,
    input=lambda grad: complex(zeros(grad, grad.handle.spec), grad),
)
rule(complex_rows.CONJUGATE, input=lambda grad: conj(grad))
rule(complex_rows.NEGATIVE, input=lambda grad: negative(grad))


def _of_absolute_value(grad: Tensor, input: Tensor, out: Tensor) -> Tensor:
    # The absolute value has no derivative at 0; 0 is the least of its subgradients.
    return multiply(input, astype(divide(grad, mask_fill(out, equal(out, 0), 1)), input.dtype))


def _of_angle(grad: Tensor, input: Tensor) -> Tensor:
    # The angle has no derivative at 0; the gradient there is 0, as in PyTorch.
    x, y = real(input), imag(input)
    scale = divide(grad, mask_fill(square(x) + square(y), equal(input, 0), math.inf))
    return complex(negative(multiply(scale, y)), multiply(scale, x))


rule(complex_rows.ABS, input=_of_absolute_value)
rule(complex_rows.ANGLE, input=_of_angle)

# -- Fourier transforms ---------------------------------------------------------------------------

# The adjoint of a transform is its inverse with the opposite normalization.
_ADJOINT_NORMS: Final = {"Backward": "Forward", "Ortho": "Ortho", "Forward": "Backward"}


def _fitted(x: Tensor, axes: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
    """Remove the elements that the transform padded, and append zeros for those it truncated."""
    for axis in axes:
        x = resized(x, axis, shape[axis])
    return x


def _of_fft(grad: Tensor, axes: Any, sizes: Any, norm: str, input_spec: Any) -> Tensor:
    found = INVERSE_FFT.apply((grad,), (axes, sizes, _ADJOINT_NORMS[norm]))
    return _fitted(found, axes, input_spec.shape)


def _of_inverse_fft(grad: Tensor, axes: Any, sizes: Any, norm: str, input_spec: Any) -> Tensor:
    found = FFT.apply((grad,), (axes, sizes, _ADJOINT_NORMS[norm]))
    return _fitted(found, axes, input_spec.shape)


def _of_real_fft(grad: Tensor, axes: Any, sizes: Any, norm: str, input_spec: Any) -> Tensor:
    # The transform omits half of the frequencies. Their gradients are zeros, which the inverse
    # appends as padding.
    found = INVERSE_FFT.apply((grad,), (axes, sizes, _ADJOINT_NORMS[norm]))
    return _fitted(real(found), axes, input_spec.shape)


def _of_inverse_real_fft(grad: Tensor, axes: Any, sizes: Any, norm: str, input_spec: Any) -> Tensor:
    found = REAL_FFT.apply((grad,), (axes, sizes, _ADJOINT_NORMS[norm]))
    # Each frequency stands for itself and its conjugate, except for the first one and, if the
    # number of samples is even, the last one.
    counts = np.full(sizes[-1] // 2 + 1, 2.0)
    counts[0] = 1.0
    if sizes[-1] % 2 == 0:
        counts[-1] = 1.0
    rank = len(grad.shape)
    weights = upload(found, counts.reshape([-1 if axis == axes[-1] else 1 for axis in range(rank)]))
    return _fitted(multiply(found, astype(weights, found.dtype)), axes, input_spec.shape)


rule(fourier_rows.FFT, input=_of_fft)
rule(fourier_rows.INVERSE_FFT, input=_of_inverse_fft)
rule(fourier_rows.REAL_FFT, input=_of_real_fft)
rule(fourier_rows.INVERSE_REAL_FFT, input=_of_inverse_real_fft)
