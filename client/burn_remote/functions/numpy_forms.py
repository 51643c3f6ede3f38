"""Functions of NumPy that differ from ours in form, composed of ours.

``numpy_protocols`` calls them for tensors: ``numpy.pad(x, 1)``, ``numpy.average(x, weights=w)``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, Final

import numpy as np

__all__ = ["FUNCTIONS", "UFUNCS"]

# NumPy's mode of padding -> ours.
_MODES: Final = {
    "constant": "constant",
    "edge": "replicate",
    "reflect": "reflect",
    "wrap": "circular",
}


def _ours() -> Any:
    return sys.modules[__name__.partition(".")[0]]


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
    return _ours().pad(array, flat, mode=_MODES[mode], value=constant_values)


def _average(a: Any, axis: Any = None, weights: Any = None, *, keepdims: bool = False) -> Any:
    if weights is None:
        return _ours().mean(a, axis=axis, keepdims=keepdims)
    if tuple(weights.shape) != tuple(a.shape):
        raise TypeError(
            "numpy.average of a tensor takes weights of the same shape; write "
            "burn_remote.broadcast_to(weights, x.shape)"
        )
    total = _ours().sum(a * weights, axis=axis, keepdims=keepdims)
    return total / _ours().sum(weights, axis=axis, keepdims=keepdims)


def _nan_to_num(
    x: Any, copy: bool = True, nan: float = 0.0, posinf: Any = None, neginf: Any = None
) -> Any:
    br = _ours()
    if not x.dtype.is_floating:
        return x.clone()
    limits = br.finfo(x.dtype)
    x = br.where(br.isnan(x), nan, x)
    x = br.where(x == math.inf, limits.max if posinf is None else posinf, x)
    return br.where(x == -math.inf, limits.min if neginf is None else neginf, x)


def _angle(z: Any, deg: bool = False) -> Any:
    found = _ours().angle(z)
    return found * (180 / math.pi) if deg else found


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
    "argwhere": lambda a, /: _ours().argwhere(a),
    "atleast_1d": lambda *arrays: _all_at_least(1, arrays),
    "atleast_2d": lambda *arrays: _all_at_least(2, arrays),
    "atleast_3d": lambda *arrays: _all_at_least(3, arrays),
    "average": _average,
    "flatnonzero": lambda a, /: _ours().nonzero(a.flatten())[0],
    "imag": lambda val, /: _ours().imag(val),
    "nan_to_num": _nan_to_num,
    "pad": _pad,
    "ptp": lambda a, /, axis=None, *, keepdims=False: (
        _ours().max(a, axis=axis, keepdims=keepdims) - _ours().min(a, axis=axis, keepdims=keepdims)
    ),
    "real": lambda val, /: _ours().real(val),
}

# NumPy's ufunc -> our form of it.
UFUNCS: Final[dict[str, Callable[..., Any]]] = {
    "deg2rad": lambda x, /: x * (math.pi / 180),
    "degrees": lambda x, /: x * (180 / math.pi),
    "rad2deg": lambda x, /: x * (180 / math.pi),
    "radians": lambda x, /: x * (math.pi / 180),
    "rint": lambda x, /: _ours().round(x),
}
