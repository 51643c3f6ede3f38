"""Functions of NumPy that differ from ours in form, composed of ours.

``numpy_protocols`` calls them for tensors: ``numpy.pad(x, 1)``, ``numpy.average(x, weights=w)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from burn_remote.arguments.axes import normal_axis
from burn_remote.dispatch.operators import constant
from burn_remote.functions import (
    arithmetic,
    complex_numbers,
    counting,
    elementwise,
    factorizations,
    repetition,
    statistics,
)
from burn_remote.functions.dtype_information import finfo
from burn_remote.functions.manipulation import broadcast_to
from burn_remote.functions.nonzero_elements import argwhere, nonzero
from burn_remote.functions.operands import sent
from burn_remote.functions.padding import pad
from burn_remote.functions.selection import where
from burn_remote.functions.tensor_value import is_tensor

__all__ = ["FUNCTIONS", "LINEAR_ALGEBRA", "UFUNCS"]

# NumPy's mode of padding -> ours.
_MODES: Final = {
    "constant": "constant",
    "edge": "replicate",
    "reflect": "reflect",
    "wrap": "circular",
}


def _pad(
    array: Any, pad_width: Any, mode: str = "constant", *, constant_values: Any = 0, **options: Any
) -> Any:
    if options or mode not in _MODES or np.ndim(constant_values):
        raise TypeError(
            "numpy.pad of a tensor takes mode='constant' with one constant_values, 'edge', "
            "'reflect' or 'wrap'; for others, pass x.numpy() to it"
        )
    if isinstance(pad_width, dict):
        given = [(0, 0)] * array.ndim
        for axis, border in pad_width.items():
            given[axis] = (border, border) if np.ndim(border) == 0 else tuple(border)
        pad_width = given
    borders = np.broadcast_to(np.asarray(pad_width), (array.ndim, 2))
    flat = [int(size) for border in borders[::-1] for size in border]
    if any(size < 0 for size in flat):
        raise ValueError("pad_width can't contain negative values; x[1:-1] removes elements")
    return pad(array, flat, mode=_MODES[mode], value=constant_values)


def _average(
    a: Any,
    axis: Any = None,
    weights: Any = None,
    returned: bool = False,
    *,
    keepdims: bool = False,
) -> Any:
    if weights is None:
        found = statistics.mean(a, axis=axis, keepdims=keepdims)
        if not returned:
            return found
        return found, broadcast_to(constant(found, a.size // max(found.size, 1)), found.shape)
    a, weights = _beside(weights, a), _beside(a, weights)
    if weights.shape != a.shape:
        place = normal_axis(axis, a.ndim) if isinstance(axis, int) else None
        if place is None or weights.shape != (a.shape[place],):
            raise TypeError(
                "numpy.average of a tensor takes weights of the same shape, or one for each "
                "element along axis; write burn_remote.broadcast_to(weights, x.shape)"
            )
        weights = weights.reshape((weights.size,) + (1,) * (a.ndim - place - 1))
        weights = broadcast_to(weights, a.shape)
    total = statistics.sum(weights, axis=axis, keepdims=keepdims)
    found = statistics.sum(a * weights, axis=axis, keepdims=keepdims) / total
    return (found, total) if returned else found


def _diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    place = normal_axis(axis, a.ndim)
    borders = [
        None if border is None else _border(a, border, place) for border in (prepend, append)
    ]
    return repetition.diff(a, n, place, prepend=borders[0], append=borders[1])


def _border(a: Any, border: Any, axis: int) -> Any:
    """Return what is joined to ``a`` along an axis; a number is one element wide."""
    if np.ndim(border) == 0:
        shape = (*a.shape[:axis], 1, *a.shape[axis + 1 :])
        return broadcast_to(_beside(a, border), shape)
    return _beside(a, border)


def _isin(
    element: Any,
    test_elements: Any,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    kind: Any = None,
) -> Any:
    element, test_elements = _beside(test_elements, element), _beside(element, test_elements)
    return counting.isin(element, test_elements, invert=invert)


def _svd(
    a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False
) -> Any:
    if compute_uv:
        return factorizations.svd(a, full_matrices=full_matrices)
    return factorizations.svdvals(a)


def _beside(tensor: Any, operand: Any) -> Any:
    """Return an operand of a tensor as a tensor; an array or a list is sent to its device."""
    return operand if is_tensor(operand) else sent(tensor, np.asarray(operand))


def _nan_to_num(
    x: Any, copy: bool = True, nan: float = 0.0, posinf: Any = None, neginf: Any = None
) -> Any:
    if x.dtype.is_complex:
        parts = [
            _nan_to_num(part, nan=nan, posinf=posinf, neginf=neginf)
            for part in (complex_numbers.real(x), complex_numbers.imag(x))
        ]
        return complex_numbers.complex(*parts)
    if not x.dtype.is_floating:
        return x.clone()
    limits = finfo(x.dtype)
    x = where(elementwise.isnan(x), nan, x)
    x = where(x == math.inf, limits.max if posinf is None else posinf, x)
    return where(x == -math.inf, limits.min if neginf is None else neginf, x)


def _angle(z: Any, deg: bool = False) -> Any:
    found = complex_numbers.angle(z)
    return found * (180 / math.pi) if deg else found


def _ptp(a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    greatest: Any = statistics.max(a, axis=axis, keepdims=keepdims)
    return greatest - statistics.min(a, axis=axis, keepdims=keepdims)


def _at_least(count: int, x: Any) -> Any:
    if x.ndim >= count:
        return x
    if count == 3 and x.ndim:
        return x[None, :, None] if x.ndim == 1 else x[:, :, None]
    return x.reshape((1,) * (count - x.ndim) + tuple(x.shape))


def _all_at_least(count: int, arrays: Any) -> Any:
    made = tuple(_at_least(count, x) for x in arrays)
    return made[0] if len(made) == 1 else made


# NumPy's function -> our form of it.
FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "angle": _angle,
    "argwhere": argwhere,
    "atleast_1d": lambda *arrays: _all_at_least(1, arrays),
    "atleast_2d": lambda *arrays: _all_at_least(2, arrays),
    "atleast_3d": lambda *arrays: _all_at_least(3, arrays),
    "average": _average,
    "diff": _diff,
    "flatnonzero": lambda a, /: nonzero(a.flatten())[0],
    "imag": complex_numbers.imag,
    "isin": _isin,
    "nan_to_num": _nan_to_num,
    "pad": _pad,
    "ptp": _ptp,
    "real": complex_numbers.real,
}

# A function of numpy.linalg -> our form of it.
LINEAR_ALGEBRA: Final[dict[str, Callable[..., Any]]] = {"svd": _svd}

# NumPy's ufunc -> our form of it.
UFUNCS: Final[dict[str, Callable[..., Any]]] = {
    "deg2rad": lambda x, /: x * (math.pi / 180),
    "divmod": lambda x, y, /: (
        arithmetic.floor_divide(x, y),
        arithmetic.remainder(x, y),
    ),
    "degrees": lambda x, /: x * (180 / math.pi),
    "rad2deg": lambda x, /: x * (180 / math.pi),
    "radians": lambda x, /: x * (math.pi / 180),
    "rint": elementwise.round,
}
