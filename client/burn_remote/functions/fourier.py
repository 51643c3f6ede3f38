"""Discrete Fourier transforms: the ``fft`` extension of the array API standard 2024.12.

``X[k] = sum over t of x[t] * exp(-2πi k t / n)`` for the n samples along an axis; the inverse has
the opposite sign. ``norm`` says what is divided by the number of samples: ``"backward"`` (the
inverse), ``"forward"`` (the transform), or ``"ortho"`` (both, by its square root). ``n`` and ``s``
truncate the axes or pad them with zeros; -1 in ``s`` stands for all samples. An axis that is given
twice is transformed twice.

float32 is computed in float32, and gives complex64. Integers, bools and 16-bit floats are converted
to float32 first, and real numbers to complex ones where a transform takes those. All raise
``ShapeMismatch`` for axes that do not exist or have no samples, and ``Unsupported`` on Burn's own
servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from burn_remote.arguments.arrays import as_dtype
from burn_remote.arguments.axes import normal_axes, normal_axis
from burn_remote.arguments.numbers import real_number, whole_number
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.dispatch.operators import Operator
from burn_remote.functions.arithmetic import multiply
from burn_remote.functions.casting import astype
from burn_remote.functions.complex_numbers import conj
from burn_remote.functions.creation import arange
from burn_remote.functions.logic import less
from burn_remote.functions.repetition import roll
from burn_remote.functions.selection import where
from burn_remote_protocol.dtypes import C64, C128, F32, F64
from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch, UsageError
from burn_remote_protocol.operations.families import fourier_rows
from burn_remote_protocol.tensors import MAX_ELEMENTS

if TYPE_CHECKING:
    from burn_remote.arguments.arrays import AnyDType
    from burn_remote.arguments.axes import Axes
    from burn_remote.functions.device_class import AnyDevice
    from burn_remote.functions.tensor import Tensor

__all__ = [
    "fft",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfftn",
    "rfft",
    "rfftfreq",
    "rfftn",
]

FFT: Final = Operator(fourier_rows.FFT)
INVERSE_FFT: Final = Operator(fourier_rows.INVERSE_FFT)
REAL_FFT: Final = Operator(fourier_rows.REAL_FFT)
INVERSE_REAL_FFT: Final = Operator(fourier_rows.INVERSE_REAL_FFT)
# The transforms of the axes before the last one.
OF_OTHER_AXES: Final = {REAL_FFT: FFT, INVERSE_REAL_FFT: INVERSE_FFT}

_NORMS: Final = {"backward": "Backward", "ortho": "Ortho", "forward": "Forward", None: "Backward"}
_OPPOSITE: Final = {"backward": "forward", "ortho": "ortho", "forward": "backward", None: "forward"}

Sizes = Sequence[int] | None


@explained
def fft(
    x: Tensor, /, n: int | None = None, axis: int = -1, norm: str | None = "backward"
) -> Tensor:
    """Return the spectrum of complex samples along an axis."""
    return _along_one(FFT, _as_complex(x), n, axis, norm)


@explained
def ifft(
    x: Tensor, /, n: int | None = None, axis: int = -1, norm: str | None = "backward"
) -> Tensor:
    """Return the complex samples that have this spectrum along an axis: the inverse of ``fft``."""
    return _along_one(INVERSE_FFT, _as_complex(x), n, axis, norm)


@explained
def fftn(x: Tensor, /, s: Sizes = None, axes: Axes = None, norm: str | None = "backward") -> Tensor:
    """Return the spectrum of complex samples along several axes, by default all.

    With ``s`` and without ``axes``, the last ``len(s)`` axes are transformed.
    """
    return _along_several(FFT, _as_complex(x), s, axes, norm)


@explained
def ifftn(
    x: Tensor, /, s: Sizes = None, axes: Axes = None, norm: str | None = "backward"
) -> Tensor:
    """Return the complex samples that have this spectrum: the inverse of ``fftn``."""
    return _along_several(INVERSE_FFT, _as_complex(x), s, axes, norm)


@explained
def rfft(
    x: Tensor, /, n: int | None = None, axis: int = -1, norm: str | None = "backward"
) -> Tensor:
    """Return the spectrum of real samples along an axis, for frequencies from 0 on.

    It has ``n // 2 + 1`` frequencies; those below 0 have the conjugate values.

    Raises ``DTypeMismatch`` for complex numbers.
    """
    return _along_one(REAL_FFT, _as_real(x), n, axis, norm)


@explained
def irfft(
    x: Tensor, /, n: int | None = None, axis: int = -1, norm: str | None = "backward"
) -> Tensor:
    """Return the real samples that have this spectrum along an axis: the inverse of ``rfft``.

    ``n`` is the number of samples, by default twice the number of frequencies minus 2. Imaginary
    parts of the first frequency and, for even ``n``, of the last one are ignored.
    """
    place = normal_axis(axis, x.ndim)
    count = 2 * (x.shape[place] - 1) if n is None else n
    return _along_one(INVERSE_REAL_FFT, _as_complex(x), count, place, norm)


@explained
def rfftn(
    x: Tensor, /, s: Sizes = None, axes: Axes = None, norm: str | None = "backward"
) -> Tensor:
    """Return the spectrum of real samples along several axes, by default all.

    Along the last of the axes, only the nonnegative frequencies are returned. Raises
    ``DTypeMismatch`` for complex numbers.
    """
    return _along_several(REAL_FFT, _as_real(x), s, axes, norm)


@explained
def irfftn(
    x: Tensor, /, s: Sizes = None, axes: Axes = None, norm: str | None = "backward"
) -> Tensor:
    """Return the real samples that have this spectrum: the inverse of ``rfftn``.

    By default, the last axis has ``2 * (m - 1)`` samples for ``m`` frequencies, also if its size in
    ``s`` is -1. This is PyTorch's rule; NumPy takes -1 for ``m`` samples.
    """
    places, sizes = _extent(x, s, axes)
    if sizes and (s is None or s[-1] == -1):
        sizes = (*sizes[:-1], 2 * (x.shape[places[-1]] - 1))
    return _transformed(INVERSE_REAL_FFT, _as_complex(x), places, sizes, norm)


@explained
def hfft(
    x: Tensor, /, n: int | None = None, axis: int = -1, norm: str | None = "backward"
) -> Tensor:
    """Return the real spectrum of a Hermitian signal.

    The sample of such a signal at -t is the conjugate of the one at t, so ``x`` has the samples at
    nonnegative times only. ``n`` is the number of frequencies, by default ``2 * (m - 1)`` for ``m``
    samples.
    """
    return irfft(conj(_as_complex(x)), n, axis, _opposite(norm))


@explained
def ihfft(
    x: Tensor, /, n: int | None = None, axis: int = -1, norm: str | None = "backward"
) -> Tensor:
    """Return the samples at nonnegative times of a real spectrum: the inverse of ``hfft``."""
    return conj(rfft(x, n, axis, _opposite(norm)))


@explained
def fftfreq(
    n: int, /, d: float = 1.0, *, dtype: AnyDType | None = None, device: AnyDevice | None = None
) -> Tensor:
    """Return the frequencies of ``fft`` of ``n`` samples at intervals ``d``, in cycles per unit.

    They are ``0, 1, …, (n - 1) // 2, -(n // 2), …, -1``, divided by ``d * n``. The dtype is float32
    by default.
    """
    count = whole_number("n", n, 1, MAX_ELEMENTS)
    step = 1.0 / (count * real_number("d", d))
    places = arange(count, device=device)
    if count > 1:
        places = where(less(places, (count + 1) // 2), places, places - count)
    return _frequencies(places, step, dtype)


@explained
def rfftfreq(
    n: int, /, d: float = 1.0, *, dtype: AnyDType | None = None, device: AnyDevice | None = None
) -> Tensor:
    """Return the frequencies of ``rfft``: ``0, 1, …, n // 2``, divided by ``d * n``."""
    count = whole_number("n", n, 1, MAX_ELEMENTS)
    step = 1.0 / (count * real_number("d", d))
    return _frequencies(arange(count // 2 + 1, device=device), step, dtype)


@explained
def fftshift(x: Tensor, /, axes: Axes = None) -> Tensor:
    """Move frequency 0 to the middle of each of the axes, by default all."""
    places = normal_axes(axes, x.ndim)
    return roll(x, [x.shape[place] // 2 for place in places], places)


@explained
def ifftshift(x: Tensor, /, axes: Axes = None) -> Tensor:
    """Move frequency 0 from the middle to the start of axes: the inverse of ``fftshift``."""
    places = normal_axes(axes, x.ndim)
    return roll(x, [-(x.shape[place] // 2) for place in places], places)


def _frequencies(places: Tensor, step: float, dtype: AnyDType | None) -> Tensor:
    wanted = F32 if dtype is None else as_dtype(dtype)
    if not wanted.is_floating:
        raise DTypeMismatch(f"frequencies are floating-point numbers, not {wanted}")
    return astype(multiply(astype(places, F64), step), wanted)


def _as_complex(x: Tensor) -> Tensor:
    return x if x.dtype.is_complex else astype(x, C128 if x.dtype is F64 else C64)


def _as_real(x: Tensor) -> Tensor:
    if x.dtype.is_complex:
        raise DTypeMismatch(
            f"{x.handle.spec} is complex, but a real transform takes real numbers; use fft, or "
            "burn_remote.real(x)"
        )
    return x if x.dtype is F64 else astype(x, F32)


def _opposite(norm: str | None) -> str:
    _check_norm(norm)
    return _OPPOSITE[norm]


def _check_norm(norm: str | None) -> str:
    found = _NORMS.get(norm)
    if found is None:
        raise UsageError(f"norm must be 'backward', 'ortho' or 'forward', not {norm!r}")
    return found


def _along_one(operator: Operator, x: Tensor, n: int | None, axis: int, norm: str | None) -> Tensor:
    place = normal_axis(axis, x.ndim)
    count = x.shape[place] if n is None else whole_number("n", n, 0, MAX_ELEMENTS)
    return _transformed(operator, x, (place,), (count,), norm)


def _along_several(operator: Operator, x: Tensor, s: Sizes, axes: Axes, norm: str | None) -> Tensor:
    places, sizes = _extent(x, s, axes)
    return _transformed(operator, x, places, sizes, norm)


def _extent(x: Tensor, s: Sizes, axes: Axes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the axes of a transform, and the number of samples along each."""
    if axes is None and s is not None:
        if len(s) > x.ndim:
            raise ShapeMismatch(f"s has {len(s)} sizes, but {x.handle.spec} has {x.ndim} axes")
        places = tuple(range(x.ndim - len(s), x.ndim))
    elif isinstance(axes, Sequence):
        places = tuple([normal_axis(axis, x.ndim) for axis in axes])
    else:
        places = normal_axes(axes, x.ndim)
    if s is None:
        return places, tuple([x.shape[place] for place in places])
    if len(s) != len(places):
        raise ShapeMismatch(f"s has {len(s)} sizes for {len(places)} axes")
    sizes = [whole_number("s", size, -1, MAX_ELEMENTS) for size in s]
    pairs = zip(sizes, places, strict=True)
    return places, tuple([x.shape[place] if size == -1 else size for size, place in pairs])


def _transformed(
    operator: Operator,
    x: Tensor,
    places: tuple[int, ...],
    sizes: tuple[int, ...],
    norm: str | None,
) -> Tensor:
    norm = _check_norm(norm)
    if len({*places}) == len(places):
        return operator.apply((x,), (places, sizes, norm))
    # One after another, in the order of NumPy, which matters for the sizes.
    steps = [
        (OF_OTHER_AXES.get(operator, operator), *step) for step in zip(places, sizes, strict=True)
    ]
    steps[-1] = (operator, *steps[-1][1:])
    if operator is not INVERSE_REAL_FFT:
        steps.reverse()
    for step, place, size in steps:
        x = step.apply((x,), ((place,), (size,), norm))
    return x
