"""Operations of random programs that only servers with extension rows have.

Matrices are made well conditioned on both sides, so that the results of factorizations are known up
to rounding. Vectors are compared by products in which their signs and phases cancel.
"""

from __future__ import annotations

import itertools
import math
import string
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

import burn_remote as br
from differential.drawing import (
    BOOLS,
    COMPLEX,
    EVERY,
    FLOATS,
    INTEGERS,
    NUMBERS,
    Draw,
    NothingFits,
)
from differential.operations import (
    Arguments,
    Row,
    along,
    like,
    one,
    pair,
    tame,
    two,
    with_axis,
    without_signed_zeros,
)
from differential.reference import in_double, rounded_once
from support.kernels import Array

__all__ = ["EXTENSION_ROWS"]

INEXACT: Final = FLOATS + COMPLEX
WIDE: Final = (np.dtype("f4"), np.dtype("f8"))
LARGEST_SIDE: Final = 6

# -- matrices -------------------------------------------------------------------------------------


def _without_warnings(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of NumPy that warns of slices without numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return function(*arguments)


def matrices(draw: Draw) -> Arguments:
    """Choose a batch of small tame matrices."""
    name = draw.tame(INEXACT, least_rank=2)
    array = draw.array(name)
    if max(array.shape[-2:]) > LARGEST_SIDE or array.size > 800:
        raise NothingFits
    return (name,), ()


def matrices_and(choices: Sequence[Any]) -> Callable[[Draw], Arguments]:
    def drawn(draw: Draw) -> Arguments:
        names, _ = matrices(draw)
        return names, (draw.one_of(choices),)

    return drawn


def equations(draw: Draw) -> Arguments:
    (name,), _ = matrices(draw)
    array = draw.array(name)
    right = draw.random.integers(-8, 9, (min(array.shape[-2:]), draw.integer(1, 3))) / 4
    return (name,), (right.astype(array.dtype),)


def conditioned(x: Any) -> Any:
    """Return square matrices with a dominant diagonal."""
    side = min(x.shape[-2:])
    if isinstance(x, br.Tensor):
        wide = x.astype(br.float32) if x.dtype in (br.float16, br.bfloat16) else x
        # Without an upload, which a compiled function could not repeat.
        eye = br.eye(side, dtype=wide.dtype, device=x.device)
        return wide[..., :side, :side] / 1000 + eye * (2 * side)
    return x[..., :side, :side] / 1000 + 2 * side * np.eye(side)


def adjoint(x: Any) -> Any:
    return br.conj(x.mT) if isinstance(x, br.Tensor) else np.swapaxes(x, -1, -2).conj()


def hermitian(x: Any) -> Any:
    matrix = conditioned(x)
    return matrix + adjoint(matrix)


def in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a reference in double precision whose results of 16-bit floats are float32."""
    compute = in_double(function)

    def computed(x: Array, *others: Any) -> Any:
        wide = x.astype(np.float32) if x.dtype in FLOATS[:2] else x
        return compute(wide, *others)

    return computed


def matrix_row(
    name: str,
    function: Callable[..., Any],
    reference: Callable[..., Any],
    draw: Callable[[Draw], Arguments] = matrices,
) -> Row:
    return Row(name, draw, function, in_float32(reference), 32)


def product_of(parts: Any) -> Any:
    """Multiply the factors of a singular value decomposition."""
    u, s, vh = parts
    return (u * s[..., None, :]) @ vh


def spectrum_of(parts: Any) -> Any:
    """Multiply the factors of a spectral decomposition, with the squares of the values."""
    values, vectors = parts
    return (vectors * (values * values)[..., None, :]) @ adjoint(vectors)


def factors_product(q: br.Tensor, r: br.Tensor) -> br.Tensor:
    return q @ r


def rectangular(x: Any) -> Any:
    """Return tame matrices divided by 1000, so that elements are at most 1; 16-bit as float32."""
    if isinstance(x, br.Tensor):
        wide = x.astype(br.float32) if x.dtype in (br.float16, br.bfloat16) else x
        return wide / 1000
    return x / 1000


MATRICES: Final = (
    matrix_row("inv", lambda x: br.linalg.inv(conditioned(x)),
               lambda x: np.linalg.inv(conditioned(x))),
    matrix_row("det", lambda x: br.linalg.det(conditioned(x) / 10),
               lambda x: np.linalg.det(conditioned(x) / 10)),
    matrix_row("slogdet", lambda x, k: br.linalg.slogdet(conditioned(x))[k % 2],
               lambda x, k: np.linalg.slogdet(conditioned(x))[k], matrices_and([0, 1])),
    matrix_row("solve", lambda x, y: br.linalg.solve(conditioned(x), like(x, y)),
               lambda x, y: np.linalg.solve(
                   conditioned(x), np.broadcast_to(y, (*x.shape[:-2], *y.shape))), equations),
    matrix_row("lstsq", lambda x, y: br.linalg.lstsq(conditioned(x), like(x, y)).solution,
               lambda x, y: np.linalg.solve(
                   conditioned(x), np.broadcast_to(y, (*x.shape[:-2], *y.shape))), equations),
    matrix_row("cholesky", lambda x: br.linalg.cholesky(hermitian(x)),
               lambda x: np.linalg.cholesky(hermitian(x))),
    matrix_row("eigvalsh", lambda x: br.linalg.eigvalsh(hermitian(x)),
               lambda x: np.linalg.eigvalsh(hermitian(x))),
    matrix_row("eigh", lambda x: spectrum_of(br.linalg.eigh(hermitian(x))),
               lambda x: hermitian(x) @ hermitian(x)),
    matrix_row("eigvals", lambda x: br.linalg.eigvals(conditioned(x)).sum(axis=-1),
               lambda x: np.trace(conditioned(x), axis1=-2, axis2=-1) + 0j),
    matrix_row("svd", lambda x: product_of(br.linalg.svd(rectangular(x), full_matrices=False)),
               rectangular),
    matrix_row("svdvals", lambda x: br.linalg.svdvals(rectangular(x)),
               lambda x: np.linalg.svdvals(rectangular(x))),
    matrix_row("qr", lambda x: factors_product(*br.linalg.qr(rectangular(x))), rectangular),
    matrix_row("qr_diagonal",
               lambda x: br.abs(br.linalg.diagonal(br.linalg.qr(conditioned(x)).R)),
               lambda x: np.abs(np.diagonal(np.linalg.qr(conditioned(x)).R, 0, -2, -1))),
    matrix_row("pinv", lambda x: br.linalg.pinv(conditioned(x)),
               lambda x: np.linalg.inv(conditioned(x))),
    matrix_row("matrix_power", lambda x, k: br.linalg.matrix_power(conditioned(x) / 12, k),
               lambda x, k: np.linalg.matrix_power(conditioned(x) / 12, k),
               matrices_and([-2, -1, 0, 1, 2, 3, 5])),
    matrix_row("matrix_norm", lambda x, k: br.linalg.matrix_norm(rectangular(x), ord=k),
               lambda x, k: np.linalg.matrix_norm(rectangular(x), ord=k),
               matrices_and(["fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf])),
    matrix_row("kron", lambda x, y: br.kron(rectangular(x), like(x, y)),
               lambda x, y: np.kron(rectangular(x), y), equations),
    Row("trace", matrices, br.linalg.trace,
        in_double(lambda x: np.trace(x, axis1=-2, axis2=-1)), 2),
    Row("diagonal", matrices_and([-2, -1, 0, 1, 3]),
        lambda x, k: br.linalg.diagonal(x, offset=k), lambda x, k: np.diagonal(x, k, -2, -1)),
    Row("rot90", matrices_and([-1, 0, 1, 2, 3, 6]),
        lambda x, k: br.rot90(x, k, (-2, -1)), lambda x, k: np.rot90(x, k, (-2, -1))),
)  # fmt: skip

# -- Fourier transforms ---------------------------------------------------------------------------


def signal(dtypes: Sequence[Any]) -> Callable[[Draw], Arguments]:
    def drawn(draw: Draw) -> Arguments:
        name = draw.tame(dtypes, least_rank=1)
        axis = draw.axis_of(name, nonempty=True)
        size = draw.array(name).shape[axis]
        if size > 400:
            raise NothingFits
        length = draw.one_of([None, draw.integer(2, 9), size + 1])
        if length is None and size == 1:  # the default length of an inverse would be 0
            length = 3
        return (name,), (length, axis, draw.one_of(["backward", "ortho", "forward"]))

    return drawn


def all_axes(dtypes: Sequence[Any]) -> Callable[[Draw], Arguments]:
    def drawn(draw: Draw) -> Arguments:
        name = draw.tame(dtypes, least_rank=1)
        if draw.array(name).size > 2000:
            raise NothingFits
        return (name,), (draw.one_of(["backward", "ortho", "forward"]),)

    return drawn


def repeated_axes(dtypes: Sequence[Any]) -> Callable[[Draw], Arguments]:
    def drawn(draw: Draw) -> Arguments:
        name = draw.tame(dtypes, least_rank=1)
        if draw.array(name).size > 2000:
            raise NothingFits
        count = draw.integer(1, 3)
        axes = tuple(draw.axis_of(name, nonempty=True) for _ in range(count))
        return (name,), (tuple(draw.integer(2, 6) for _ in range(count)), axes)

    return drawn


FOURIER: Final = (
    *(
        Row(name, signal(dtypes), getattr(br.fft, name), in_double(getattr(np.fft, name)), 32)
        for name, dtypes in (
            *(("fft", WIDE + COMPLEX), ("ifft", WIDE + COMPLEX), ("rfft", WIDE)),
            *(("irfft", COMPLEX), ("hfft", COMPLEX), ("ihfft", WIDE)),
        )
    ),
    *(
        Row(
            name,
            all_axes(dtypes),
            lambda x, norm, name=name: getattr(br.fft, name)(x, norm=norm),
            in_double(lambda x, norm, name=name: getattr(np.fft, name)(x, norm=norm)),
            32,
        )
        for name, dtypes in (("fftn", WIDE + COMPLEX), ("ifftn", WIDE + COMPLEX), ("rfftn", WIDE))
    ),
    *(
        Row(
            f"{name}_repeated",
            repeated_axes(dtypes),
            lambda x, s, axes, name=name: getattr(br.fft, name)(x, s, axes, "ortho"),
            in_double(lambda x, s, axes, name=name: getattr(np.fft, name)(x, s, axes, "ortho")),
            32,
        )
        for name, dtypes in (
            *(("fftn", WIDE + COMPLEX), ("ifftn", WIDE + COMPLEX)),
            *(("rfftn", WIDE), ("irfftn", COMPLEX)),
        )
    ),
    Row("fftshift", one(EVERY, exact=False, least_rank=1), br.fft.fftshift, np.fft.fftshift),
    Row("ifftshift", one(EVERY, exact=False, least_rank=1), br.fft.ifftshift, np.fft.ifftshift),
)

# -- complex numbers ------------------------------------------------------------------------------


def as_complex(draw: Draw) -> Arguments:
    return (draw.tensor(EVERY),), (draw.one_of(COMPLEX),)


def converted_to_complex(x: Array, dtype: Any) -> Array:
    return np.asarray(x).astype(dtype)


def combined(x: Array, y: Array) -> Array:
    shape = np.broadcast_shapes(x.shape, y.shape)
    result = np.empty(shape, "c8" if x.dtype == np.dtype("f4") else "c16")
    result.real, result.imag = x, y
    return result


def close_to(function: Any, reference: Any, name: str, rounds: int = 4) -> Row:
    return Row(name, tame(COMPLEX), function, in_double(reference), rounds)


def small(x: Any) -> Any:
    """Return numbers of absolute values up to 2."""
    return x / 500


NUMBERS_WITH_PARTS: Final = (
    *pair(br.add, np.add, "complex_add", COMPLEX),
    *pair(br.subtract, np.subtract, "complex_subtract", COMPLEX),
    Row("complex_multiply", lambda draw: tame_pair(draw), br.multiply, in_double(np.multiply), 4),
    Row("complex_divide", lambda draw: tame_pair(draw),
        lambda x, y: x / br.where(y == 0, 1, y),
        in_double(lambda x, y: x / np.where(y == 0, 1, y)), 16),
    Row("complex_equal", two(COMPLEX), br.equal, np.equal),
    Row("complex_not_equal", two(COMPLEX), br.not_equal, np.not_equal),
    Row("complex_where", two(COMPLEX), lambda x, y: br.where(x == y, x, y),
        lambda x, y: np.where(x == y, x, y)),
    Row("conj", one(COMPLEX), br.conj, np.conj),
    Row("complex_negative", one(COMPLEX), br.negative, np.negative),
    Row("real", one(COMPLEX), br.real, np.real),
    Row("imag", one(COMPLEX), br.imag, np.imag),
    Row("complex_isnan", one(COMPLEX), br.isnan, np.isnan),
    Row("complex_isinf", one(COMPLEX), br.isinf, np.isinf),
    Row("complex_isfinite", one(COMPLEX), br.isfinite, np.isfinite),
    Row("complex_logical_not", one(COMPLEX), br.logical_not, np.logical_not),
    Row("complex_astype", as_complex, lambda x, dtype: x.astype(dtype), converted_to_complex),
    Row("complex", two(WIDE), br.complex, combined),
    close_to(br.abs, np.abs, "complex_abs"),
    close_to(br.angle, np.angle, "complex_angle"),
    close_to(br.square, np.square, "complex_square"),
    close_to(br.sqrt, np.sqrt, "complex_sqrt"),
    close_to(lambda x: br.exp(small(x)), lambda x: np.exp(small(x)), "complex_exp"),
    close_to(lambda x: br.expm1(small(x)), lambda x: np.expm1(small(x)), "complex_expm1", 16),
    close_to(lambda x: br.sin(small(x)), lambda x: np.sin(small(x)), "complex_sin"),
    close_to(lambda x: br.cosh(small(x)), lambda x: np.cosh(small(x)), "complex_cosh"),
    close_to(lambda x: br.tanh(x), np.tanh, "complex_tanh", 16),
    close_to(lambda x: br.log(x + 1500), lambda x: np.log(x + 1500), "complex_log"),
    close_to(br.sum, np.sum, "complex_sum"),
    close_to(br.mean, np.mean, "complex_mean"),
    close_to(lambda x: br.sign(x), lambda x: np.where(x == 0, 0, x / np.where(x == 0, 1, abs(x))),
             "complex_sign", 8),
    Row("complex_cumulative_sum", with_axis(COMPLEX, tame=True),
        lambda x, axis: br.cumulative_sum(x, axis=axis),
        in_double(lambda x, axis: np.cumsum(x, axis)), 8),
    Row("complex_matmul", lambda draw: with_right(draw), lambda x, y: x @ like(x, y),
        in_double(np.matmul), 16),
)  # fmt: skip


def tame_pair(draw: Draw) -> Arguments:
    first = draw.tame(COMPLEX)
    second = draw.beside(first)
    if not np.isfinite(draw.array(second)).all() or (np.abs(draw.array(second)) > 1e3).any():
        raise NothingFits
    return (first, second), ()


def with_right(draw: Draw) -> Arguments:
    name = draw.tame(COMPLEX, least_rank=2)
    array = draw.array(name)
    shape = (array.shape[-1], draw.integer(1, 4))
    if array.size * shape[1] > 8000:
        raise NothingFits
    parts = draw.random.integers(-4, 5, (2, *shape))
    return (name,), ((parts[0] + 1j * parts[1]).astype(array.dtype),)


# -- searches and counts --------------------------------------------------------------------------


def sorted_and(draw: Draw) -> Arguments:
    name = draw.tensor(NUMBERS)
    array = draw.array(name)
    if np.isnan(array.astype(np.float64)).any() or array.size > 2000:
        raise NothingFits
    return (name,), (draw.elements((draw.integer(0, 6),), array.dtype), draw.chance(0.5))


def masked(draw: Draw) -> Arguments:
    first = draw.tensor(EVERY, exact=False, least_rank=1)
    mask = draw.like(first, BOOLS)
    return (first, mask), ()


def counts(draw: Draw) -> Arguments:
    name = draw.tensor(INTEGERS)
    return (name,), (draw.integer(1, 20),)


def in_bins(draw: Draw) -> Arguments:
    name = draw.tensor(WIDE)
    low = draw.integer(-8, 4)
    return (name,), (draw.integer(1, 9), (low, low + draw.integer(1, 9)))


def members(draw: Draw) -> Arguments:
    name = draw.tensor(NUMBERS)
    if draw.array(name).size > 2000:
        raise NothingFits
    return (name,), (draw.elements((draw.integer(0, 5),), draw.array(name).dtype),)


def unsigned_zeros(x: Array) -> Array:
    return np.where(x == 0, x.dtype.type(0), x)


def nonzero_axis(draw: Draw) -> Arguments:
    name = draw.tensor(EVERY, least_rank=1)
    return (name,), (draw.integer(0, draw.array(name).ndim - 1),)


def sorted_flat(x: Array) -> Array:
    return np.asarray(rounded_once(lambda one: np.sort(one.reshape(-1)))(x))


SEARCHES: Final = (
    Row("unique_values", one(NUMBERS), lambda x: br.unique_values(x) + 0,
        lambda x: unsigned_zeros(rounded_once(lambda y: np.unique(y, equal_nan=False))(x)),
        waits=True),
    Row("unique_counts", one(NUMBERS), lambda x: br.unique_counts(x).counts,
        lambda x: rounded_once(
            lambda y: np.unique(y, return_counts=True, equal_nan=False)[1])(x), waits=True),
    Row("unique_inverse", one(INTEGERS), lambda x: br.unique_inverse(x).inverse_indices,
        lambda x: np.unique(x, return_inverse=True)[1].reshape(x.shape), waits=True),
    Row("nonzero", nonzero_axis, lambda x, axis: br.nonzero(x)[axis],
        lambda x, axis: np.nonzero(x)[axis], waits=True),
    Row("argwhere", one(EVERY, least_rank=1), br.argwhere, np.argwhere, waits=True),
    Row("boolean_mask", masked, lambda x, mask: x[mask], lambda x, mask: x[mask], waits=True),
    Row("searchsorted", sorted_and,
        lambda x, values, right: br.searchsorted(
            br.sort(br.flatten(x)), like(x, values), side="right" if right else "left"),
        lambda x, values, right: np.searchsorted(
            as_wide(sorted_flat(x)), as_wide(values), "right" if right else "left")),
    Row("isin", members, lambda x, others: br.isin(x, like(x, others)),
        lambda x, others: np.isin(as_wide(x), as_wide(others))),
    Row("bincount", counts, lambda x, n: br.bincount(br.flatten(x % n), length=n),
        lambda x, n: np.bincount(np.ravel(np.remainder(x, x.dtype.type(n))).astype(int),
                                 minlength=n)),
    Row("histogram", in_bins, lambda x, n, ends: br.histogram(x, n, ends)[0],
        lambda x, n, ends: counted_in_bins(x, n, ends)),
    Row("isclose", two(NUMBERS), br.isclose,
        lambda x, y: np.isclose(as_wide(x), as_wide(y))),
)  # fmt: skip


def as_wide(x: Array) -> Array:
    """Return 16-bit floats as float32, and other numbers as they are."""
    return x.astype(np.float32) if x.dtype in FLOATS[:2] else x


def counted_in_bins(x: Array, bins: int, ends: tuple[float, float]) -> Array:
    """Count with edges in the dtype of the elements, each with a comparison of its own."""
    step = (x.dtype.type(ends[1]) - x.dtype.type(ends[0])) / x.dtype.type(bins)
    edges = np.arange(bins).astype(x.dtype) * step + x.dtype.type(ends[0])
    edges = np.append(edges, x.dtype.type(ends[1]))
    inside = [(x >= low) & (x < high) for low, high in itertools.pairwise(edges)]
    inside[-1] |= x == edges[-1]
    return np.array([one.sum() for one in inside])


# -- statistics, products and functions -----------------------------------------------------------


def vectors(draw: Draw) -> Arguments:
    first = draw.tame(INEXACT, least_rank=1)
    second = draw.like(first)
    array = draw.array(second)
    if not np.isfinite(array.astype(np.complex128)).all() or np.abs(array).max(initial=0) > 1e3:
        raise NothingFits
    return (first, second), (draw.axis_of(first),)


def fractions(draw: Draw) -> Arguments:
    name = draw.tame(FLOATS, least_rank=1)
    return (name,), (draw.integer(0, 8) / 8, draw.axis_of(name, nonempty=True))


def observations(draw: Draw) -> Arguments:
    name = draw.tame(FLOATS + COMPLEX, rank=2)
    rows, columns = draw.array(name).shape
    if columns < 2 or rows > 8:
        raise NothingFits
    return (name,), (draw.integer(0, 1),)


def coefficients(draw: Draw) -> Arguments:
    name = draw.tame((*WIDE, *COMPLEX))
    return (name,), (tuple(draw.integer(-4, 4) / 2 for _ in range(draw.integer(1, 4))),)


def contraction(draw: Draw) -> Arguments:
    """Choose an einsum of one tensor: an order of some of its axes, the others are summed."""
    name = draw.tame(INEXACT, least_rank=1)
    rank = draw.array(name).ndim
    letters = string.ascii_lowercase[:rank]
    kept = draw.integer(0, rank)
    chosen = "".join(letters[int(place)] for place in draw.random.permutation(rank)[:kept])
    return (name,), (f"{letters}->{chosen}",)


def joined(draw: Draw) -> Arguments:
    name = draw.tensor(EVERY, exact=False)
    if draw.array(name).size > 2000:
        raise NothingFits
    return (name,), (draw.one_of(["hstack", "vstack", "dstack", "column_stack"]),)


def parted(draw: Draw) -> Arguments:
    name = draw.tensor(EVERY, exact=False, least_rank=1)
    return (name,), (draw.integer(1, 5), draw.axis_of(name))


def with_array(draw: Draw) -> Arguments:
    name = draw.tensor(NUMBERS)
    array = draw.array(name)
    shape = array.shape[draw.integer(0, array.ndim) :]
    if array.size > 2000:
        raise NothingFits
    return (name,), (draw.elements(shape, array.dtype), draw.chance(0.5))


def interpolated(draw: Draw) -> Arguments:
    name = draw.tame(WIDE)
    places = np.unique(draw.random.integers(-40, 41, draw.integer(1, 6)) / 4)
    values = draw.random.integers(-8, 9, places.size) / 4
    dtype = draw.array(name).dtype
    return (name,), (places.astype(dtype), values.astype(dtype))


OTHERS: Final = (
    Row("hypot", two(WIDE), br.hypot, np.hypot, 2),
    # The sign of NaN depends on the operation that made it.
    Row("copysign", two(WIDE), lambda x, y: br.copysign(x, br.where(br.isnan(y), 1, y)),
        lambda x, y: np.copysign(x, np.where(np.isnan(y), 1, y))),
    Row("nextafter", two(WIDE), br.nextafter, np.nextafter),
    Row("signbit", one(FLOATS), lambda x: br.signbit(br.where(br.isnan(x), 1, x)),
        lambda x: np.signbit(np.where(np.isnan(x), 1, x))),
    Row("logaddexp", two(WIDE), br.logaddexp, np.logaddexp, 8),
    Row("asinh", tame(), br.asinh, in_double(np.arcsinh), 4),
    Row("expm1", tame(), lambda x: br.expm1(x / 500), in_double(lambda x: np.expm1(x / 500)), 8),
    Row("log2", tame(), lambda x: br.log2(br.abs(x) + 1),
        in_double(lambda x: np.log2(np.abs(x) + 1)), 8),
    Row("log10", tame(), lambda x: br.log10(br.abs(x) + 1),
        in_double(lambda x: np.log10(np.abs(x) + 1)), 8),
    Row("var", with_axis(FLOATS, nonempty=True, tame=True), lambda x, axis: br.var(x / 100, axis),
        in_double(lambda x, axis: np.var(x / 100, axis)), 16),
    Row("complex_var", with_axis(COMPLEX, nonempty=True, tame=True),
        lambda x, axis: br.abs(x - br.mean(x, axis=axis, keepdims=True)).max(axis=axis),
        in_double(lambda x, axis: np.abs(x - x.mean(axis, keepdims=True)).max(axis)), 16),
    Row("median", with_axis(FLOATS, nonempty=True, tame=True),
        lambda x, axis: br.median(x.astype(wide_dtype(x)), axis),
        lambda x, axis: np.median(as_wide(x), axis), 4),
    Row("quantile", fractions, lambda x, q, axis: br.quantile(x.astype(wide_dtype(x)), q, axis),
        lambda x, q, axis: np.quantile(as_wide(x), q, axis).astype(as_wide(x).dtype), 4),
    *(
        Row(name, with_axis(FLOATS, nonempty=True, tame=True),
            lambda x, axis, name=name: getattr(br, name)(
                br.where(x > 4, math.inf, br.where(x < -4, math.nan, x)) / 8, axis),
            in_double(lambda x, axis, name=name: _without_warnings(
                getattr(np, name),
                np.where(x > 4, math.inf, np.where(x < -4, math.nan, x)) / 8, axis)), 16)
        for name in ("nansum", "nanmean", "nanvar", "nanstd", "nanprod")
    ),
    along("nanmax", FLOATS, lambda x, axis: np.fmax.reduce(x, axis), nonempty=True),
    along("nanmin", FLOATS, lambda x, axis: np.fmin.reduce(x, axis), nonempty=True),
    Row("vecdot", vectors, lambda x, y, axis: br.vecdot(x, y, axis=axis) / 1000,
        in_double(lambda x, y, axis: (x.conj() * y).sum(axis) / 1000), 16),
    Row("einsum", contraction, lambda x, equation: br.einsum(equation, x / 100),
        in_double(lambda x, equation: np.einsum(equation, x / 100)), 16),
    Row("cov", observations,
        lambda x, ddof: br.cov(x.astype(wide_dtype(x)) / 100, correction=ddof),
        in_float32(lambda x, ddof: np.cov(x / 100, ddof=ddof)), 64),
    Row("polyval", coefficients, lambda x, p: br.polyval(p, x / 500),
        in_double(lambda x, p: np.polyval(p, x / 500)), 16),
    Row("interp", interpolated, lambda x, places, values: br.interp(x, places, values),
        in_double(np.interp), 64),
    Row("joined", joined, lambda x, name: getattr(br, name)([x, x]),
        lambda x, name: getattr(np, name)([x, x])),
    Row("array_split", parted, lambda x, count, axis: br.array_split(x, count, axis)[-1],
        lambda x, count, axis: np.array_split(x, count, axis)[-1]),
    Row("add_array", with_array, lambda x, y, swap: y + x if swap else x + y,
        lambda x, y, swap: rounded_once(np.add)(*((y, x) if swap else (x, y)))),
)  # fmt: skip


def wide_dtype(x: br.Tensor) -> br.DType:
    return br.float32 if x.dtype in (br.float16, br.bfloat16) else x.dtype


EXTENSION_ROWS: Final = {
    row.name: without_signed_zeros(row) if row.name in ("nanmax", "nanmin") else row
    for row in (*MATRICES, *FOURIER, *NUMBERS_WITH_PARTS, *SEARCHES, *OTHERS)
}
