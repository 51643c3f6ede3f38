"""Numeric gradients of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["numeric_gradient"]

Array = np.ndarray[Any, Any]


def numeric_gradient(
    function: Callable[[Array], Array], x: Array, output_grad: Array, step: float = 1e-5
) -> Array:
    """Return the gradient of ``sum(function(x) * output_grad)`` by central differences in f64."""
    assert x.dtype == np.float64
    gradient = np.empty_like(x)
    for place in np.ndindex(x.shape):
        shifted = []
        for sign in (1, -1):
            moved = x.copy()
            moved[place] += sign * step
            shifted.append(np.sum(function(moved) * output_grad))
        gradient[place] = (shifted[0] - shifted[1]) / (2 * step)
    return gradient
