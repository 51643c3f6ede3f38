"""NumPy's functions on tensors: ``numpy.exp(x)``, ``numpy.concatenate([x, y])``.

NumPy hands a call over to the tensors among its arguments (NEP 13 and NEP 18). The tables below
give the function of ``burn_remote`` that computes it on the device. Any other function raises
``TypeError`` and says what to write: nothing is read silently.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

import numpy as np

from burn_remote.arguments.axes import normal_axis
from burn_remote.diagnostics.advice import numpy_equivalent
from burn_remote.functions import distinct as distinct_elements
from burn_remote.functions import (
    elementwise,
    linear_algebra,
    manipulation,
    nan_statistics,
    numpy_calls,
    numpy_forms,
    repetition,
    searching,
    selection,
    statistics,
)
from burn_remote.functions.casting import distinct
from burn_remote.functions.gathering import take
from burn_remote.functions.tensor_value import is_tensor

__all__ = ["array_function", "array_ufunc"]

# NumPy's ufunc -> our function, where the names differ.
_UFUNCS: Final = {
    "absolute": "abs",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "conjugate": "conj",
    "fabs": "abs",
    "invert": "bitwise_invert",
    "left_shift": "bitwise_left_shift",
    "power": "pow",
    "right_shift": "bitwise_right_shift",
}
# Ufuncs of the same name and meaning here.
_SAME_UFUNCS: Final = frozenset({
    "add", "bitwise_and", "bitwise_or", "bitwise_xor", "ceil", "copysign", "cos", "cosh", "divide",
    "equal", "exp", "exp2", "expm1", "floor", "floor_divide", "greater", "greater_equal", "hypot",
    "isfinite", "isinf", "isnan", "less", "less_equal", "log", "log10", "log1p", "log2",
    "logaddexp", "logical_and", "logical_not", "logical_or", "logical_xor", "matmul", "maximum",
    "minimum", "multiply", "negative", "nextafter", "not_equal", "positive", "reciprocal",
    "remainder", "sign", "signbit", "sin", "sinh", "sqrt", "square", "subtract", "tan", "tanh",
    "trunc", "vecdot",
})  # fmt: skip

# Ufuncs of comparison operators. For ``numpy.float32(0.3) < x``, NumPy passes them the scalar as an
# array of no axes; the ufuncs of other operators get the scalar itself.
_COMPARISONS: Final = frozenset({
    "equal", "greater", "greater_equal", "less", "less_equal", "not_equal",
})  # fmt: skip


def _dot(a: Any, b: Any, /) -> Any:
    if a.ndim == 0 or b.ndim == 0:
        return a * b
    if b.ndim <= 2:
        return linear_algebra.matmul(a, b) if a.ndim <= 2 else _last_with(a, b, -min(b.ndim, 2))
    return _last_with(a, b, -2)


def _last_with(a: Any, b: Any, axis: int) -> Any:
    place = normal_axis(axis, b.ndim)
    return linear_algebra.tensordot(a, b, axes=((a.ndim - 1,), (place,)))


def _flat_if_no_axis(function: Callable[..., Any]) -> Callable[..., Any]:
    def cumulative(a: Any, /, axis: int | None = None, dtype: Any = None) -> Any:
        x = manipulation.flatten(a) if axis is None else a
        return function(x, axis=axis or 0, dtype=dtype)

    return cumulative


def _flat_without_axis(function: Callable[..., Any]) -> Callable[..., Any]:
    def ordered(a: Any, /, axis: int | None = -1, kind: Any = None, *, stable: Any = None) -> Any:
        # Each kind of NumPy gives the same result, because this order is always stable.
        return function(manipulation.flatten(a)) if axis is None else function(a, axis)

    return ordered


def _with_ddof(function: Callable[..., Any]) -> Callable[..., Any]:
    def spread(
        a: Any, /, axis: Any = None, *, ddof: float = 0, correction: float = 0, **options: Any
    ) -> Any:
        return function(a, axis=axis, correction=ddof or correction, **options)

    return spread


def _unique(
    ar: Any,
    /,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    *,
    equal_nan: bool = True,
) -> Any:
    values, indices, inverse, counts = distinct_elements.unique_all(ar)
    if equal_nan and ar.dtype.is_floating:
        # unique_all returns each NaN as a value of its own, after all other values.
        last = values.shape[0] - int(statistics.count_nonzero(elementwise.isnan(values)))
        if last < values.shape[0] - 1:
            inverse = selection.minimum(inverse, last)
            total = statistics.sum(counts[last:], keepdims=True)
            counts = manipulation.concat([counts[:last], total])
            values, indices = values[: last + 1], indices[: last + 1]
    chosen = {"indices": return_index, "inverse": return_inverse, "counts": return_counts}
    others = {"indices": indices, "inverse": inverse, "counts": counts}
    wanted = [others[name] for name, is_wanted in chosen.items() if is_wanted]
    return (values, *wanted) if wanted else values


def _cov(
    m: Any, /, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: Any = None,
    **weights: Any,
) -> Any:  # fmt: skip
    return _package().cov(m, y, rowvar=rowvar, bias=bias, correction=ddof, **weights)


# Functions whose arguments NumPy orders differently, or that only NumPy has.
_ADAPTED: Final[dict[str, Callable[..., Any]]] = {
    "copy": lambda a, /: distinct(a),
    "corrcoef": lambda x, /, y=None, rowvar=True: _package().corrcoef(x, y, rowvar=rowvar),
    "cov": _cov,
    "cumprod": _flat_if_no_axis(statistics.cumulative_prod),
    "cumsum": _flat_if_no_axis(statistics.cumulative_sum),
    "diagonal": lambda a, /, offset=0, axis1=0, axis2=1: _package().linalg.diagonal(
        manipulation.moveaxis(a, (axis1, axis2), (-2, -1)), offset=offset
    ),
    "dot": _dot,
    "iscomplexobj": lambda x, /: x.dtype.is_complex,
    "isrealobj": lambda x, /: not x.dtype.is_complex,
    "nancumprod": lambda a, /, axis=None, dtype=None: _flat_if_no_axis(statistics.cumulative_prod)(
        nan_statistics.without_nan(a, 1), axis=axis, dtype=dtype
    ),
    "nancumsum": lambda a, /, axis=None, dtype=None: _flat_if_no_axis(statistics.cumulative_sum)(
        nan_statistics.without_nan(a, 0), axis=axis, dtype=dtype
    ),
    "nanstd": _with_ddof(nan_statistics.nanstd),
    "nanvar": _with_ddof(nan_statistics.nanvar),
    "ndim": lambda a, /: a.ndim,
    "outer": lambda a, b, /: linear_algebra.outer(manipulation.flatten(a), manipulation.flatten(b)),
    "ravel": lambda a, /: manipulation.flatten(a),
    "repeat": lambda a, repeats, /, axis=None: repetition.repeat(a, repeats, axis=axis),
    "shape": lambda a, /: a.shape,
    "size": lambda a, /, axis=None: a.size if axis is None else a.shape[axis],
    "argsort": _flat_without_axis(searching.argsort),
    "sort": _flat_without_axis(searching.sort),
    "take": lambda a, indices, /, axis=None: take(
        manipulation.flatten(a) if axis is None else a, indices, axis=axis or 0
    ),
    "tensordot": lambda a, b, /, axes=2: linear_algebra.tensordot(a, b, axes=axes),
    "std": _with_ddof(statistics.std),
    "trace": lambda a, /, offset=0, axis1=0, axis2=1: _package().linalg.trace(
        manipulation.moveaxis(a, (axis1, axis2), (-2, -1)), offset=offset
    ),
    "unique": _unique,
    "var": _with_ddof(statistics.var),
    "vdot": lambda a, b, /: linear_algebra.vecdot(manipulation.flatten(a), manipulation.flatten(b)),
}

# NumPy's function -> our function; a name of numpy.linalg and numpy.fft has that namespace here.
_FUNCTIONS: Final = {
    **{name: name for name in (
        "all", "allclose", "any", "argmax", "argmin", "array_equal", "array_split", "astype",
        "bincount", "broadcast_arrays", "broadcast_to", "clip", "column_stack", "count_nonzero",
        "cross", "dsplit", "dstack", "fliplr", "flipud", "hsplit", "hstack", "interp", "isclose",
        "polyfit", "polyval", "rot90", "vsplit", "vstack", "cumulative_prod", "cumulative_sum",
        "diag", "einsum", "empty_like", "expand_dims", "flip", "full_like", "histogram", "kron",
        "matrix_transpose", "max", "mean", "median", "meshgrid", "min", "moveaxis", "nanmax",
        "nanmean", "nanmin", "nanprod", "nansum", "nonzero", "ones_like", "percentile",
        "permute_dims", "prod", "quantile", "reshape", "roll", "searchsorted", "split", "squeeze",
        "stack", "sum", "swapaxes", "take_along_axis", "tile", "transpose",
        "tril", "triu", "unique_all", "unique_counts", "unique_inverse", "unique_values",
        "unstack", "where", "zeros_like",
    )},
    "amax": "max",
    "amin": "min",
    "concatenate": "concat",
    "concat": "concat",
    "round": "round",
    "around": "round",
}  # fmt: skip
_NAMESPACES: Final = {"numpy.linalg": "linalg", "numpy.fft": "fft"}

# Arguments that change nothing if they have these values, which libraries pass explicitly.
_DEFAULTS: Final[Mapping[str, tuple[Any, ...]]] = {
    "casting": ("same_kind",),
    "copy": (None,),
    "dtype": (None,),
    "hermitian": (False,),
    "initial": (getattr(np, "_NoValue", None),),
    "kind": (None,),
    "method": ("linear",),
    "mode": ("raise",),
    # Ours chooses the order of a contraction itself.
    "optimize": (False, True, "greedy", "optimal"),
    "order": (None, "C", "K"),
    "out": (None,),
    "overwrite_input": (False,),
    "rcond": (None,),
    "sparse": (False,),
    "subok": (True,),
    "tol": (None,),
    "weights": (None,),
    "where": (True,),
}


def array_ufunc(x: Any, ufunc: Any, method: str, /, *inputs: Any, **options: Any) -> Any:
    """Compute a ufunc on the device.

    Raises ``TypeError`` for a ufunc, a method such as ``reduce``, or an option that is not in the
    table, and ``ArgumentMismatch`` for large arrays among the operands. In comparisons, an array of
    no axes counts as a scalar.
    """
    name = _UFUNCS.get(ufunc.__name__, ufunc.__name__)
    known = ufunc.__name__ in _UFUNCS or name in _SAME_UFUNCS
    function = vars(_package()).get(name) if known else numpy_forms.UFUNCS.get(name)
    if method != "__call__" or function is None:
        called = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        _refuse(f"numpy.{called}", None)
    if ufunc.__name__ in _COMPARISONS:
        inputs = tuple(
            one[()] if isinstance(one, np.ndarray) and one.ndim == 0 else one for one in inputs
        )
    called = f"numpy.{ufunc.__name__}"
    return numpy_calls.call(called, function, inputs, _without_defaults(called, options))


def array_function(
    x: Any,
    function: Callable[..., Any],
    types: object,
    arguments: tuple[Any, ...],
    options: Mapping[str, Any],
) -> Any:
    """Compute a function of NumPy on the device. Raises ``TypeError`` if it is not in the table."""
    name, module = function.__name__, function.__module__
    called = f"{module}.{name}"
    if name == "nan_to_num" and options.get("copy") is True:
        options = {key: value for key, value in options.items() if key != "copy"}
    ours = _ours(module, name)
    if ours is None:
        _refuse(called, x)
    arguments, options = numpy_calls.by_name(function, ours, arguments, options)
    return numpy_calls.call(called, ours, arguments, _without_defaults(called, options))


def _ours(module: str, name: str) -> Callable[..., Any] | None:
    """Return our function that computes one of NumPy's, or ``None``."""
    found: Callable[..., Any] | None
    if module == "numpy":
        found = _ADAPTED.get(name) or numpy_forms.FUNCTIONS.get(name)
        return found or vars(_package()).get(_FUNCTIONS.get(name, ""))
    found = numpy_forms.LINEAR_ALGEBRA.get(name) if module == "numpy.linalg" else None
    namespace = vars(_package()).get(_NAMESPACES.get(module, ""))
    if found is None and name in getattr(namespace, "__all__", ()):
        found = getattr(namespace, name)
    return found


def _without_defaults(called: str, options: Mapping[str, Any]) -> dict[str, Any]:
    remaining = {}
    for name, value in options.items():
        if any(value is default for default in _DEFAULTS.get(name, ())) or (
            isinstance(value, str | int | tuple) and value in _DEFAULTS.get(name, ())
        ):
            continue
        if name in ("out", "where", "order", "casting", "subok"):
            raise TypeError(
                f"{called} with {name}= is not computed on the device; omit {name}=, and use the "
                "result in place of out=, and where() in place of where="
            )
        remaining[name] = value
    return remaining


def _refuse(called: str, x: Any) -> NoReturn:
    name = called.rpartition(".")[2]
    instead = numpy_equivalent(name)
    if x is not None and is_tensor(x) and callable(getattr(type(x), name, None)):
        instead = f"x.{name}(…)"
    way = f"write {instead}, or pass" if instead else "pass"
    raise TypeError(
        f"{called} is not computed on the device, and would read the tensor; {way} x.numpy() to it"
    )


def _package() -> Any:
    return sys.modules[__name__.partition(".")[0]]
