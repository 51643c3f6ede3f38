"""The kernels of extension rows against NumPy.

Burn wrote no traffic for these rows, so each is compared with NumPy's own function of float64 or
complex128 copies of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import pytest

from burn_remote_protocol.dtypes import C64, C128, DType
from burn_remote_protocol.operations.shape_rules.checks import COMPLEX
from burn_remote_protocol.operations.table import KINDS, TABLE
from burn_remote_protocol.operations.vocabularies import EXTENSION
from burn_remote_protocol.operations.wire_values import Scalar
from burn_remote_protocol.tensors import Slice, TensorSpec
from support.kernels import compute

Array = np.ndarray[Any, Any]

RANDOM: Final = np.random.default_rng(20261122)


class Comparison(NamedTuple):
    """A call of an extension row, and what it must agree with.

    ``reference`` receives the tensors in double precision and the parameters; it returns one array,
    or a tuple for several outputs.
    """

    reference: Callable[..., Any]
    tensors: tuple[Array, ...]
    parameters: dict[str, Any]
    out: tuple[TensorSpec, ...]
    tolerance: float


COMPARISONS: Final[dict[str, list[Comparison]]] = {}


def compare(
    name: str,
    reference: Callable[..., Any],
    *tensors: Array,
    out: tuple[TensorSpec, ...] = (),
    tolerance: float = 1e-6,
    **parameters: Any,
) -> None:
    COMPARISONS.setdefault(name, []).append(
        Comparison(reference, tensors, parameters, out, tolerance)
    )


def floats(*shape: int, dtype: Any = np.float32) -> Array:
    return np.asarray(RANDOM.normal(size=shape)).astype(dtype)


def updated(x: Array, places: Array, y: Array, dim: int, update: str) -> Array:
    """Return ``x`` with its rows at different places updated."""
    found = x.copy()
    for place, row in zip(places, y, strict=True):
        found[place] = {"Assign": row, "Add": x[place] + row, "Mul": x[place] * row}[update]
    return found


_dtype: Any
_real: Any
_function: Any
_draw: Any
_DTYPES: Final[dict[Any, DType]] = {np.complex64: C64, np.complex128: C128}

# -- Elementwise ----------------------------------------------------------------------------------

for _dtype in (np.float32, np.float64):
    compare("Float.Hypot", np.hypot, floats(3, 4, dtype=_dtype), floats(3, 4, dtype=_dtype))
    compare("Float.Hypot", np.hypot, floats(3, 1, dtype=_dtype), floats(1, 4, dtype=_dtype))
compare("Float.Hypot", np.hypot, np.full(2, 1e38, np.float32), np.full(2, 1e38, np.float32))
compare("Float.Hypot", np.hypot, floats(9, dtype=np.float16), floats(9, dtype=np.float16),
        tolerance=1e-3)  # fmt: skip


for _every, _loss in ((np.float16, 2e-3), (np.float32, 1e-6), (np.float64, 1e-14)):
    _pair = (floats(3, 4, dtype=_every), floats(4, dtype=_every))
    for _edge in ((np.nan, 1), (-np.inf, -0.0), (-0.0, -1), (np.inf, -np.inf), (1e4, 1e4)):
        _ends = tuple(np.full(3, one, _every) for one in _edge)
        compare("Elementwise.CopySign", np.copysign, *_ends, tolerance=_loss)
        compare("Elementwise.LogAddExp", np.logaddexp, *_ends, tolerance=_loss)
    compare("Elementwise.CopySign", np.copysign, *_pair, tolerance=_loss)
    compare("Elementwise.LogAddExp", np.logaddexp, *_pair, tolerance=_loss)
    _positive = np.array([0.0, 1e-4, 1, 8, 1000, np.inf, np.nan, -1], _every)
    compare("Elementwise.Log2", np.log2, _positive, tolerance=_loss)
    compare("Elementwise.Log10", np.log10, _positive, tolerance=_loss)
    compare("Elementwise.Expm1", np.expm1, _positive[:4], tolerance=_loss)
# NumPy computes this function exactly where quotient and remainder are representable.
for _every, _loss in ((np.float16, 2e-3), (np.float32, 0), (np.float64, 0)):
    _dividends = np.array([1, -1, 7.5, -7.5, 0.0, -0.0, np.inf, np.nan, 30, 3], _every)[:, None]
    _divisors = np.array([0.1, -0.1, 3, -3, np.inf, -np.inf, np.nan, 1e-3, 2.5], _every)
    compare("Elementwise.FloorDivide", np.floor_divide, _dividends, _divisors, tolerance=_loss)
    for _number in (3.0, -2.5, 0.0):
        compare(
            "Elementwise.FloorDivideScalar",
            lambda x, rhs: np.floor_divide(x, rhs),
            _dividends,
            tolerance=_loss,
            rhs=_number,
        )
# The next numbers are those of the dtype, not of double precision.
for _every, _step in ((np.float16, 2.0**-10), (np.float32, 2.0**-23), (np.float64, 2.0**-52)):
    compare(
        "Elementwise.NextAfter",
        lambda x, direction, step=_step: np.where(direction > x, x + step, x - step / 2),
        np.ones(2, _every),
        np.array([2, 0], _every),
        tolerance=1e-17,
    )

# -- Linear algebra -------------------------------------------------------------------------------


def definite(*shape: int, dtype: Any = np.float32) -> Array:
    factor = RANDOM.normal(size=shape)
    product = factor @ np.swapaxes(factor, -1, -2) / max(1, shape[-1])
    return np.asarray(product + np.eye(shape[-1])).astype(dtype)


def of_columns(array: Array) -> Array:
    """Return the same matrices with columns instead of rows in consecutive memory."""
    return np.swapaxes(np.ascontiguousarray(np.swapaxes(array, -1, -2)), -1, -2)


# A transposed, an empty and a large matrix, and batches, also empty ones.
_SQUARES: Final = [(1, 1), (3, 3), (2, 3, 3), (2, 1, 4, 4), (0, 3, 3), (2, 0, 0), (40, 40)]
_MATRICES: Final = [*_SQUARES, (4, 3), (3, 4), (2, 5, 2), (0, 3), (3, 0), (2, 0, 3), (2, 3, 0)]


for _each, _bound in ((np.float16, 2e-2), (np.float32, 1e-4), (np.float64, 1e-10)):
    for _shape in _SQUARES:
        for _matrix in (
            definite(*_shape, dtype=_each),
            of_columns(definite(*_shape, dtype=_each)),
        ):
            _L = "LinearAlgebra"
            if _each is not np.float16 or _shape[-1] < 10:  # a large one overflows
                compare(f"{_L}.Det", np.linalg.det, _matrix, tolerance=_bound)
            compare(f"{_L}.Slogdet", np.linalg.slogdet, _matrix, tolerance=_bound)
            compare(f"{_L}.Inv", np.linalg.inv, _matrix, tolerance=_bound)
            compare(f"{_L}.Eigvalsh", np.linalg.eigvalsh, _matrix, tolerance=_bound)
            for _upper in (False, True):
                compare(
                    f"{_L}.Cholesky", np.linalg.cholesky, _matrix, upper=_upper, tolerance=_bound
                )
            _right = floats(*_shape[:-1], 2, dtype=_each)
            compare(f"{_L}.Solve", np.linalg.solve, _matrix, _right, tolerance=_bound)
    for _shape in _MATRICES:
        compare(
            "LinearAlgebra.Svdvals",
            np.linalg.svdvals,
            floats(*_shape, dtype=_each),
            tolerance=_bound,
        )
compare(
    "LinearAlgebra.Solve", np.linalg.solve, definite(2, 1, 3, 3), floats(1, 4, 3, 2), tolerance=1e-4
)
compare("LinearAlgebra.Solve", np.linalg.solve, definite(1, 3, 3), floats(4, 3, 2), tolerance=1e-4)

# Vectors are unique up to their signs: absolute values are compared, of distinct values in double
# precision. test_matrix_kernels.py tests the properties of the factors in each precision.
UP_TO_SIGNS: Final = {f"LinearAlgebra.{name}" for name in ("Eig", "Eigh", "Svd", "Qr")}
for _shape in _SQUARES:
    compare("LinearAlgebra.Eigh", np.linalg.eigh, definite(*_shape, dtype=np.float64))
for _shape in _MATRICES:
    _matrix = floats(*_shape, dtype=np.float64)
    for _is_larger in (False, True):
        compare("LinearAlgebra.Svd", np.linalg.svd, _matrix, full_matrices=_is_larger)
        compare(
            "LinearAlgebra.Qr",
            lambda array, complete: np.linalg.qr(array, "complete" if complete else "reduced"),
            _matrix,
            complete=_is_larger,
        )

# Eigenvalues have the order of the algorithm, for triangular matrices that of the diagonal.
for _size in (0, 1, 4):
    for _general in (np.float64, np.complex128):
        _matrix = (np.triu(floats(2, _size, _size)) + np.diag(np.arange(_size) * 9)).astype(
            _general
        )
        _as_complex = np.result_type(_general, np.complex64)
        compare(
            "LinearAlgebra.Eig",
            lambda array, to=_as_complex: tuple(one.astype(to) for one in np.linalg.eig(array)),
            _matrix,
        )
        compare(
            "LinearAlgebra.Eigvals",
            lambda array, to=_as_complex: np.linalg.eigvals(array).astype(to),
            _matrix,
        )

# -- Complex numbers ------------------------------------------------------------------------------


def complexes(*shape: int, dtype: Any = np.complex64) -> Array:
    return np.asarray(RANDOM.normal(size=shape) + 1j * RANDOM.normal(size=shape)).astype(dtype)


def hermitian(*shape: int, dtype: Any = np.complex64) -> Array:
    """Return positive definite matrices."""
    factor = complexes(*shape, dtype=np.complex128)
    product = factor @ np.swapaxes(factor, -1, -2).conj() / max(1, shape[-1])
    return np.asarray(product + np.eye(shape[-1])).astype(dtype)


for _precision, _bound in ((np.complex64, 1e-4), (np.complex128, 1e-10)):
    for _shape in _SQUARES:
        for _matrix in (
            hermitian(*_shape, dtype=_precision),
            of_columns(hermitian(*_shape, dtype=_precision)),
        ):
            compare(f"{_L}.Det", np.linalg.det, _matrix, tolerance=_bound)
            compare(f"{_L}.Slogdet", np.linalg.slogdet, _matrix, tolerance=_bound)
            compare(f"{_L}.Inv", np.linalg.inv, _matrix, tolerance=_bound)
            compare(f"{_L}.Eigvalsh", np.linalg.eigvalsh, _matrix, tolerance=_bound)
            for _upper in (False, True):
                compare(
                    f"{_L}.Cholesky", np.linalg.cholesky, _matrix, upper=_upper, tolerance=_bound
                )
            _right = complexes(*_shape[:-1], 2, dtype=_precision)
            compare(f"{_L}.Solve", np.linalg.solve, _matrix, _right, tolerance=_bound)
    for _shape in _MATRICES:
        _matrix = complexes(*_shape, dtype=_precision)
        compare(f"{_L}.Svdvals", np.linalg.svdvals, _matrix, tolerance=_bound)
for _shape in _SQUARES:
    compare(f"{_L}.Eigh", np.linalg.eigh, hermitian(*_shape, dtype=np.complex128))
for _shape in _MATRICES:
    _matrix = complexes(*_shape, dtype=np.complex128)
    for _is_larger in (False, True):
        compare(f"{_L}.Svd", np.linalg.svd, _matrix, full_matrices=_is_larger)
        compare(
            f"{_L}.Qr",
            lambda array, complete: np.linalg.qr(array, "complete" if complete else "reduced"),
            _matrix,
            complete=_is_larger,
        )

for _real, _dtype in ((np.float32, np.complex64), (np.float64, np.complex128)):
    _tolerance = 1e-5 if _dtype is np.complex64 else 1e-12
    _z = complexes(3, 4, dtype=_dtype)
    compare("Complex.FromParts", lambda re, im: re + 1j * im, floats(3, 4, dtype=_real),
            floats(1, 4, dtype=_real))  # fmt: skip
    compare("Complex.Real", np.real, _z)
    compare("Complex.Imaginary", np.imag, _z)
    compare("Complex.Abs", np.abs, _z, tolerance=_tolerance)
    compare("Complex.Angle", np.angle, _z, tolerance=_tolerance)
    compare("Complex.Conjugate", np.conj, _z)
    compare("Complex.Negative", np.negative, _z)
    compare("Complex.IntoComplex", lambda x: x.astype(complex), floats(5, dtype=_real),
            out=(TensorSpec((5,), _DTYPES[_dtype]),))  # fmt: skip
compare("Complex.IntoComplex", lambda x: x.astype(complex), np.array([True, False]),
        out=(TensorSpec((2,), C64),))  # fmt: skip
compare("Complex.IntoComplex", lambda x: x.astype(complex), floats(4, dtype=np.float16),
        out=(TensorSpec((4,), C64),))  # fmt: skip
compare("Complex.Negative", lambda x: -x, np.array([np.inf + 1j, complex(1, -np.inf)]))

# -- Fourier transforms ---------------------------------------------------------------------------

_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "Fft": np.fft.fftn,
    "InverseFft": np.fft.ifftn,
    "RealFft": np.fft.rfftn,
    "InverseRealFft": np.fft.irfftn,
}


def transformed(name: str) -> Callable[..., Array]:
    def reference(x: Array, axes: Any, sizes: Any, norm: str) -> Array:
        return np.asarray(_FUNCTIONS[name](x, s=sizes, axes=axes, norm=norm.lower()))

    return reference


for _name in _FUNCTIONS:
    for _double in (False, True):
        _draw = floats if _name == "RealFft" else complexes
        for _axes, _sizes, _norm in (
            ((1,), (6,), "Backward"),
            ((0, 2), (3, 5), "Ortho"),
            ((2, 0), (9, 2), "Forward"),  # padded and truncated
            ((0, 1, 2), (1, 7, 4), "Backward"),
            ((2,), (101,), "Backward"),  # a prime length
        ):
            _dtype = (
                [np.float32, np.float64] if _name == "RealFft" else [np.complex64, np.complex128]
            )
            _x = _draw(3, 6, 5).astype(_dtype[_double])
            compare(f"Fourier.{_name}", transformed(_name), _x,
                    axes=_axes, sizes=_sizes, norm=_norm,
                    tolerance=1e-11 if _double else 2e-5)  # fmt: skip

# -- Burn's operations on complex numbers ---------------------------------------------------------

for _dtype in (np.complex64, np.complex128):
    _tolerance = 2e-4 if _dtype is np.complex64 else 1e-11
    _z, _w = complexes(3, 4, dtype=_dtype), complexes(1, 4, dtype=_dtype)
    for _name, _function in (
        *(("Exp", np.exp), ("Log", np.log), ("Log1p", np.log1p), ("Sqrt", np.sqrt)),
        *(("Recip", np.reciprocal), ("Cos", np.cos), ("Cosh", np.cosh), ("Sin", np.sin)),
        *(("Sinh", np.sinh), ("Tan", np.tan), ("Tanh", np.tanh), ("ArcCos", np.arccos)),
        *(("ArcCosh", np.arccosh), ("ArcSin", np.arcsin), ("ArcSinh", np.arcsinh)),
        *(("ArcTan", np.arctan), ("ArcTanh", np.arctanh), ("IsNan", np.isnan)),
        ("IsInf", np.isinf),
    ):
        compare(f"Float.{_name}", _function, _z, tolerance=_tolerance)
    compare("Float.IsNan", np.isnan, np.array([complex(np.nan, 1), complex(np.inf, 0), 1j]))
    compare("Float.IsInf", np.isinf, np.array([complex(np.nan, 1), complex(0, -np.inf), 1j]))
    compare("Float.Powf", np.power, _z, _w, tolerance=_tolerance)
    for _exponent in (2.0, 3.0, -1.0, 1.0, 0.5):
        compare("Float.PowfScalar", lambda x, rhs: x**rhs, _z, rhs=_exponent, tolerance=_tolerance)
    compare("Float.Matmul", np.matmul, complexes(2, 3, 4, dtype=_dtype), complexes(1, 4, 5,
            dtype=_dtype), tolerance=_tolerance)  # fmt: skip
    for _name, _function in (
        *(("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply), ("Div", np.divide)),
    ):
        compare(f"Numeric.{_name}", _function, _z, _w, tolerance=_tolerance)
        compare(f"Numeric.{_name}Scalar", lambda x, rhs, _f=_function: _f(x, rhs), _z, rhs=1.5,
                tolerance=_tolerance)  # fmt: skip
    compare("Numeric.Full", lambda value: np.full((2, 3), value, complex), value=2.5,
            out=(TensorSpec((2, 3), _DTYPES[_dtype]),))  # fmt: skip
    for _name, _function in (("Sum", np.sum), ("Mean", np.mean), ("Prod", np.prod)):
        compare(f"Numeric.{_name}", lambda x, _f=_function: _f(x).reshape(1), _z,
                tolerance=_tolerance)  # fmt: skip
        compare(f"Numeric.{_name}Dim", lambda x, axis, accumulator_len, _f=_function: _f(x, axis,
                keepdims=True), _z, axis=1, accumulator_len=1, tolerance=_tolerance)  # fmt: skip
    compare("Numeric.CumSum", np.cumsum, _z, axis=1, tolerance=_tolerance)
    compare("Numeric.CumProd", np.cumprod, _z, axis=0, tolerance=_tolerance)
    compare("Numeric.Powi", np.power, _z, np.array([[3, -2, 0, 1]]), tolerance=_tolerance)
    compare("Numeric.PowiScalar", lambda x, rhs: x**rhs, _z, rhs=-3, tolerance=_tolerance)
    # Powers that a float32 exponent cannot hold.
    compare("Numeric.PowiScalar", lambda x, rhs: x**rhs, np.array([1j, -1, 0.5], _dtype),
            rhs=2**24 + 1, tolerance=1e-3)  # fmt: skip

    _mask, _places = np.array([[True, False, True, False]]), np.array([2, 0])
    _u = complexes(2, 4, dtype=_dtype)
    _spec = TensorSpec((4, 3), _DTYPES[_dtype])
    compare("Base.Reshape", lambda x: x.reshape(4, 3), _z, out=(_spec,))
    compare("Base.SwapDims", lambda x, dim1, dim2: x.swapaxes(dim1, dim2), _z, dim1=0, dim2=1)
    compare("Base.Permute", np.transpose, _z, axes=(1, 0))
    compare("Base.Flip", lambda x, axes: np.flip(x, axes), _z, axes=(0, 1))
    compare("Base.Expand", lambda x: np.broadcast_to(x, (4, 4)), _w,
            out=(TensorSpec((4, 4), _DTYPES[_dtype]),))  # fmt: skip
    compare("Base.Unfold", lambda x, dim, size, step: np.stack([x[:, 0:2], x[:, 2:4]], 1), _z,
            dim=1, size=2, step=2)  # fmt: skip
    compare("Base.Slice", lambda x, ranges: x[1:, ::2], _z,
            ranges=(Slice(1, None, 1), Slice(0, None, 2)))  # fmt: skip
    compare("Base.SliceAssign", lambda x, y, ranges: np.concatenate([x[:1], y]), _z, _u,
            ranges=(Slice(1, None, 1), Slice(0, None, 1)))  # fmt: skip
    compare("Base.Select", lambda x, i, dim: np.take(x, i, dim), _z, _places, dim=0)
    for _update in ("Assign", "Add", "Mul"):
        compare("Base.SelectAssign", updated, _z, _places, _u, dim=0, update=_update,
                tolerance=_tolerance)  # fmt: skip
        compare("Base.ScatterNd", lambda x, i, y, reduction: updated(x, i[:, 0], y, 0, reduction),
                _z, _places[:, None], _u, reduction=_update, tolerance=_tolerance)  # fmt: skip
        compare("Base.Scatter", lambda x, i, y, dim, update: updated(x, i[:, 0], y, dim, update),
                _z, np.repeat(_places[:, None], 4, 1), _u, dim=0, update=_update,
                tolerance=_tolerance)  # fmt: skip
    compare("Base.MaskWhere", lambda x, m, y: np.where(m, y, x), _z, _mask, _w)
    compare("Base.MaskFill", lambda x, m, value: np.where(m, value, x), _z, _mask, value=2.5)
    compare("Base.Gather", lambda x, i, dim: np.take_along_axis(x, i, dim), _z,
            np.array([[1, 0, 2, 2]]), dim=0)  # fmt: skip
    compare("Base.GatherNd", lambda x, i: x[i[:, 0], i[:, 1]], _z, np.array([[0, 1], [2, 3]]))
    compare("Base.Equal", np.equal, _z, _z[:1])
    compare("Base.EqualElem", lambda x, rhs: x == rhs, np.array([2, 2j, 3], _dtype), rhs=2.0)
    compare("Base.NotEqual", np.not_equal, _z, _z[:1])
    compare("Base.NotEqualElem", lambda x, rhs: x != rhs, np.array([2, 2j, 3], _dtype), rhs=2.0)
    _sparse = np.array([[0, 1j], [0, 0], [2, 1j]], _dtype)
    for _name, _function in (("All", np.all), ("Any", np.any)):
        compare(f"Base.{_name}", lambda x, _f=_function: _f(x).reshape(1), _sparse)
        compare(f"Base.{_name}Dim", lambda x, axis, accumulator_len, _f=_function: _f(x, axis,
                keepdims=True), _sparse, axis=1, accumulator_len=1)  # fmt: skip
    compare("Numeric.SumDims", lambda x, axes: x.sum(tuple(axes), keepdims=True), _z, axes=(0, 1),
            tolerance=_tolerance)  # fmt: skip
    compare("Numeric.Pad", lambda x, padding, mode: np.pad(x, padding, constant_values=2), _z,
            padding=((1, 0), (0, 2)), mode=("Constant", Scalar("Float", 2.0)))  # fmt: skip
    compare("Base.RepeatDim", lambda x, dim, times: np.repeat(x, times, dim), _w, dim=0, times=3)
    compare("Base.Cat", lambda x, y, dim: np.concatenate([x, y], dim), _z, _w, dim=0)
    compare("Base.Cast", lambda x: x.astype(np.complex64), _z, out=(TensorSpec((3, 4), C64),))
    compare("Base.Cast", lambda x: x, _z, out=(TensorSpec((3, 4), C128),))
    compare("Base.Empty", lambda: np.zeros((2, 3), complex), out=(TensorSpec((2, 3), C64),))
    compare("Base.Ones", lambda: np.ones((2, 3), complex), out=(TensorSpec((2, 3), C64),))
    compare("Base.Zeros", lambda: np.zeros((2, 3), complex), out=(TensorSpec((2, 3), C64),))


# -- Searches -------------------------------------------------------------------------------------


def repeated(*shape: int, dtype: Any = np.float32) -> Array:
    """Return few distinct numbers, with zeros, NaN and infinity among floats."""
    drawn = RANDOM.integers(-2, 3, shape) if np.dtype(dtype).kind != "u" else None
    array = np.asarray(RANDOM.integers(0, 3, shape) if drawn is None else drawn).astype(dtype)
    if array.dtype.kind == "f" and array.size > 5:
        array.reshape(-1)[:4] = [np.nan, np.inf, -0.0, np.nan]
    return array


def order_of(array: Array) -> tuple[Array, Array]:
    count = np.unique(array, equal_nan=False).size
    return np.argsort(array, kind="stable"), np.array([count])


def parts_of(array: Array, order: Array, count: int) -> tuple[Array, ...]:
    return tuple(
        np.unique(
            array, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
        )
    )[1:]


_KINDS: Final = (np.bool_, np.int8, np.uint16, np.int64, np.float16, np.float32, np.float64)
for _kind in _KINDS:
    for _shape in [(12,), (3, 4), (2, 3, 4), (0, 3), (1, 1, 7)]:
        _array = repeated(*_shape, dtype=_kind)
        compare(
            "Search.Nonzero",
            lambda array, count: np.stack(np.nonzero(array)),
            _array,
            count=int(np.count_nonzero(_array)),
        )
    for _size in (0, 1, 40):
        _array = repeated(_size, dtype=_kind)
        compare("Search.UniqueOrder", order_of, _array)
        _order, (_count,) = order_of(_array)
        compare("Search.Unique", parts_of, _array, _order, count=int(_count))
        compare(
            "Search.Unique", parts_of, _array[::-1], order_of(_array[::-1])[0], count=int(_count)
        )
        for _behind in (False, True):
            compare(
                "Search.SearchSorted",
                lambda ordered, values, right: np.searchsorted(
                    ordered, values, side="right" if right else "left"
                ),
                np.sort(_array),
                repeated(3, 4, dtype=_kind),
                right=_behind,
            )


# -- The comparison -------------------------------------------------------------------------------

CASES: Final = [
    pytest.param(name, case, id=f"{name}-{place}")
    for name, cases in COMPARISONS.items()
    for place, case in enumerate(cases)
]


def doubled(array: Array) -> Array:
    """Return floating-point and complex elements in double precision, others as they are."""
    if array.dtype.kind == "c":
        return array.astype(np.complex128)
    return array if array.dtype.kind in "iub" else array.astype(np.float64)


def determined(name: str, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return the parts of a factorization that the matrix determines.

    The last columns of square factors of other matrices can be any orthonormal ones, which
    ``test_factors_have_orthonormal_vectors`` checks.
    """
    if name == "LinearAlgebra.Svd":
        u, values, vh = arrays
        rank = values.shape[-1]
        return u[..., :rank], values, vh[..., :rank, :]
    if name == "LinearAlgebra.Qr":
        q, r = arrays
        return q[..., : min(r.shape[-2:])], r
    return arrays


@pytest.mark.parametrize("name, case", CASES)
def test_the_kernel_agrees_with_numpy(name: str, case: Comparison) -> None:
    tensors = [[*case.tensors]] if name == "Base.Cat" else case.tensors
    found = compute(name, *tensors, out=case.out, **case.parameters)
    with np.errstate(all="ignore"):
        expected = case.reference(*map(doubled, case.tensors), **case.parameters)

    found, expected = (one if isinstance(one, tuple) else (one,) for one in (found, expected))
    for seen, right in zip(found, expected, strict=True):
        assert seen.shape == right.shape
    pairs = zip(determined(name, found), determined(name, expected), strict=True)
    for seen, right in pairs:
        if name in UP_TO_SIGNS:
            seen, right = np.abs(seen), np.abs(right)
        np.testing.assert_allclose(doubled(seen), right, rtol=case.tolerance, atol=case.tolerance)


FACTORS: Final = [
    pytest.param(*case.values, id=case.id)
    for case in CASES
    if case.values[0] in ("LinearAlgebra.Svd", "LinearAlgebra.Qr")
]


@pytest.mark.parametrize("name, case", FACTORS)
def test_factors_have_orthonormal_vectors(name: str, case: Comparison) -> None:
    found = compute(name, *case.tensors, out=case.out, **case.parameters)
    assert isinstance(found, tuple)
    columns = [found[0]]
    if name == "LinearAlgebra.Svd":
        columns.append(np.conj(np.swapaxes(found[2], -1, -2)))
    for vectors in map(doubled, columns):
        products = np.conj(np.swapaxes(vectors, -1, -2)) @ vectors
        unit = np.broadcast_to(np.eye(vectors.shape[-1]), products.shape)
        np.testing.assert_allclose(products, unit, rtol=case.tolerance, atol=case.tolerance)


def test_every_extension_row_is_compared() -> None:
    extensions = {str(row) for row in TABLE.values() if row.lifetime == EXTENSION}

    assert extensions <= set(COMPARISONS)


def test_every_row_that_complex_numbers_have_is_compared_with_complex_tensors() -> None:
    kinds = [kind for kind in KINDS.values() if kind.categories == COMPLEX]
    rows = {str(row) for row in TABLE.values() for kind in kinds if kind.has(row)}
    compared = {
        name
        for name, cases in COMPARISONS.items()
        for case in cases
        if any(tensor.dtype.kind == "c" for tensor in case.tensors)
        or any(spec.dtype.is_complex for spec in case.out)
    }

    assert rows
    assert rows <= compared
