"""CuPy as an array module, with the functions that it lacks or computes unlike NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy

from burn_remote_server.backends.cupy.division import floor_divide, fmod, remainder
from burn_remote_server.backends.cupy.index_updates import update_in_order
from burn_remote_server.backends.cupy.products import matmul

__all__ = ["CUPY", "Cupy"]


class _Function:
    """A binary function with NumPy's ``reduce``, ``accumulate`` and ``at``."""

    def __init__(self, function: Any, reduce: Callable[..., Any], update: str) -> None:
        self._function = function
        self._reduce = reduce
        self._update = update

    def __call__(self, *arrays: Any, **options: Any) -> Any:
        return self._function(*arrays, **options)

    def reduce(self, array: Any, axis: Any = 0, dtype: Any = None, keepdims: bool = False) -> Any:
        """Return the reduction along an axis."""
        if dtype is None:
            return self._reduce(array, axis=axis, keepdims=keepdims)
        return self._reduce(array, axis=axis, dtype=dtype, keepdims=keepdims)

    def accumulate(self, array: Any, axis: int = 0) -> Any:
        """Return the cumulative result along an axis, in logarithmically many steps."""
        lines = cupy.moveaxis(array, axis, -1)
        distance = 1
        while distance < lines.shape[-1]:
            later = self._function(lines[..., distance:], lines[..., :-distance])
            lines = cupy.concatenate([lines[..., :distance], later], axis=-1)
            distance *= 2
        return cupy.moveaxis(lines, -1, axis)

    def at(self, target: Any, positions: Any, values: Any) -> None:
        """Update elements of a one-dimensional array in the order of the positions."""
        update_in_order(target, positions, values, self._update)


class Cupy:
    """CuPy's functions, completed by those that it lacks or computes unlike NumPy."""

    add = _Function(cupy.add, cupy.sum, "Add")
    multiply = _Function(cupy.multiply, cupy.prod, "Mul")
    minimum = _Function(cupy.minimum, cupy.min, "Min")
    maximum = _Function(cupy.maximum, cupy.max, "Max")
    floor_divide = staticmethod(floor_divide)
    fmod = staticmethod(fmod)
    matmul = staticmethod(matmul)
    remainder = staticmethod(remainder)

    def __getattr__(self, name: str) -> Any:
        found = getattr(cupy, name)
        setattr(self, name, found)  # __getattr__ is not called again for this name
        return found


CUPY = Cupy()
