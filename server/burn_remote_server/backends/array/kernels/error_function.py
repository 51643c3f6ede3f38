"""The error function of arrays."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from burn_remote_server.backends.array.core.kernel_forms import Array

__all__ = ["DENOMINATOR_32", "LIMIT_32", "NUMERATOR_32", "erf"]

# erf(x) = x P(x^2) / Q(x^2) for |x| <= LIMIT_32, beyond which it is 1 in float32. P and Q minimize
# the maximal relative error (2.1e-8, by Lawson's iteratively reweighted least squares). All
# coefficients are positive, so nothing cancels. Coefficients start at the highest power.
NUMERATOR_32: Final = (
    2.02589558e-06, 2.84686888e-04, 3.80816404e-03, 5.28754517e-02, 1.91550493e-01, 1.12837911e+00,
)  # fmt: skip
DENOMINATOR_32: Final = (
    3.78316254e-05, 1.17072463e-03, 1.50550958e-02, 1.14559688e-01, 5.03089905e-01, 1.0,
)  # fmt: skip
LIMIT_32: Final = 3.95

# The four rational functions of Sun's fdlibm (s_erf.c), one per range of |x|. Coefficients start at
# the highest power.
_SMALL_P: Final = (
    -2.37630166566501626084e-05, -5.77027029648944159157e-03, -2.84817495755985104766e-02,
    -3.25042107247001499370e-01, 1.28379167095512558561e-01,
)  # fmt: skip
_SMALL_Q: Final = (
    -3.96022827877536812320e-06, 1.32494738004321644526e-04, 5.08130628187576562776e-03,
    6.50222499887672944485e-02, 3.97917223959155352819e-01, 1.0,
)  # fmt: skip
_MIDDLE_P: Final = (
    -2.16637559486879084300e-03, 3.54783043256182359371e-02, -1.10894694282396677476e-01,
    3.18346619901161753674e-01, -3.72207876035701323847e-01, 4.14856118683748331666e-01,
    -2.36211856075265944077e-03,
)  # fmt: skip
_MIDDLE_Q: Final = (
    1.19844998467991074170e-02, 1.36370839120290507362e-02, 1.26171219808761642112e-01,
    7.18286544141962662868e-02, 5.40397917702171048937e-01, 1.06420880400844228286e-01, 1.0,
)  # fmt: skip
_LARGE_P: Final = (
    -9.81432934416914548592e+00, -8.12874355063065934246e+01, -1.84605092906711035994e+02,
    -1.62396669462573470355e+02, -6.23753324503260060396e+01, -1.05586262253232909814e+01,
    -6.93858572707181764372e-01, -9.86494403484714822705e-03,
)  # fmt: skip
_LARGE_Q: Final = (
    -6.04244152148580987438e-02, 6.57024977031928170135e+00, 1.08635005541779435134e+02,
    4.29008140027567833386e+02, 6.45387271733267880336e+02, 4.34565877475229228821e+02,
    1.37657754143519042600e+02, 1.96512716674392571292e+01, 1.0,
)  # fmt: skip
_TAIL_P: Final = (
    -4.83519191608651397019e+02, -1.02509513161107724954e+03, -6.37566443368389627722e+02,
    -1.60636384855821916062e+02, -1.77579549177547519889e+01, -7.99283237680523006574e-01,
    -9.86494292470009928597e-03,
)  # fmt: skip
_TAIL_Q: Final = (
    -2.24409524465858183362e+01, 4.74528541206955367215e+02, 2.55305040643316442583e+03,
    3.19985821950859553908e+03, 1.53672958608443695994e+03, 3.25792512996573918826e+02,
    3.03380607434824582924e+01, 1.0,
)  # fmt: skip
_ERF_AT_1: Final = 8.45062911510467529297e-01
_SMALL: Final = 0.84375
_MIDDLE: Final = 1.25
_LARGE: Final = 1 / 0.35
_TAIL: Final = 6.0

# Elements per block. The four float32 arrays of a block fit into the processor's cache; in smaller
# blocks the fixed cost of each step, half a microsecond, dominates.
BLOCK: Final = 32_768
BLOCK_64: Final = 16_384


def erf(xp: Any, tensor: Array, *, out: Array | None = None) -> Array:
    """Return the error function of ``float32`` or ``float64`` numbers, within [-1, 1].

    Errors are at most 2 units in the last place in ``float64``, and 7 in ``float32`` (4e-7; 4 units
    for results below 0.25). ``out`` receives the result; it may be the tensor itself or an array of
    its shape and dtype.
    """
    function = _erf_32 if tensor.dtype == np.float32 else _erf_64
    if out is None or not out.flags.c_contiguous:
        result = xp.empty(tensor.shape, tensor.dtype)
    else:
        result = out
    function(xp, tensor.reshape(-1), result.reshape(-1))
    if out is None or out is result:
        return result
    out[...] = result
    return out


def _erf_32(xp: Any, x: Array, out: Array) -> None:
    multiply, add = xp.multiply, xp.add
    length = min(x.size, BLOCK)
    scratch = xp.empty((4, length), np.float32)
    for start in range(0, x.size, BLOCK):
        part = x[start : start + BLOCK]
        bounded, square, above, below = (row[: part.size] for row in scratch)
        xp.clip(part, -LIMIT_32, LIMIT_32, out=bounded)
        multiply(bounded, bounded, out=square)
        for sum_, coefficients in ((above, NUMERATOR_32), (below, DENOMINATOR_32)):
            multiply(square, coefficients[0], out=sum_)
            for coefficient in coefficients[1:-1]:
                add(sum_, coefficient, out=sum_)
                multiply(sum_, square, out=sum_)
            add(sum_, coefficients[-1], out=sum_)
        multiply(above, bounded, out=above)
        xp.divide(above, below, out=above)
        # Rounding must not give results above 1: programs take the logarithm of 1 - erf(x).
        xp.clip(above, -1.0, 1.0, out=out[start : start + BLOCK])


def _erf_64(xp: Any, x: Array, out: Array) -> None:
    for start in range(0, x.size, BLOCK_64):
        part = x[start : start + BLOCK_64]
        out[start : start + BLOCK_64] = _erf_of_block(xp, part)


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    result = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        result *= x
        result += coefficient
    return result


def _erf_of_block(xp: Any, x: Array) -> Array:
    size = xp.absolute(x)
    result = xp.where(size < _TAIL, size, 1.0)
    result[size != size] = np.nan
    for above, below, function in _RANGES:
        inside = (size >= above) & (size < below)
        if bool(xp.any(inside)):
            result[inside] = function(xp, size[inside])
    return xp.copysign(result, x)


def _small(xp: Any, size: Array) -> Array:
    square = size * size
    return size + size * (_polynomial(_SMALL_P, square) / _polynomial(_SMALL_Q, square))


def _middle(xp: Any, size: Array) -> Array:
    beyond = size - 1.0
    return _ERF_AT_1 + _polynomial(_MIDDLE_P, beyond) / _polynomial(_MIDDLE_Q, beyond)


def _large(xp: Any, size: Array) -> Array:
    return _from_1(xp, size, _LARGE_P, _LARGE_Q)


def _tail(xp: Any, size: Array) -> Array:
    return _from_1(xp, size, _TAIL_P, _TAIL_Q)


def _from_1(xp: Any, size: Array, p: tuple[float, ...], q: tuple[float, ...]) -> Array:
    inverse_square = 1.0 / (size * size)
    ratio = _polynomial(p, inverse_square) / _polynomial(q, inverse_square)
    # The square of a number truncated to float32 is exact in float64, so the larger part of the
    # exponent is exact.
    cut = size.astype(np.float32).astype(np.float64)
    exponential = xp.exp(-cut * cut - 0.5625) * xp.exp((cut - size) * (cut + size) + ratio)
    return 1.0 - exponential / size


_RANGES: Final = (
    (0.0, _SMALL, _small),
    (_SMALL, _MIDDLE, _middle),
    (_MIDDLE, _LARGE, _large),
    (_LARGE, _TAIL, _tail),
)
