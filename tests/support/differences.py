"""Gradients by finite differences, the reference for gradient rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import burn_remote as br

__all__ = ["numeric_gradients"]

# Central differences have errors of STEP ** 2 and of the rounding divided by STEP.
STEP = 1e-6


def numeric_gradients(
    function: Callable[..., br.Tensor], device: br.Device, *arrays: np.ndarray[Any, Any]
) -> list[np.ndarray[Any, Any]]:
    """Return the gradient of a function of float64 tensors with one result, for each argument."""

    def value(place: int, index: tuple[int, ...], change: float) -> float:
        changed = [array.copy() for array in arrays]
        changed[place][index] += change
        return float(function(*[device.tensor(array) for array in changed]).detach().item())

    found = []
    for place, array in enumerate(arrays):
        gradient = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            gradient[index] = value(place, index, STEP) - value(place, index, -STEP)
        found.append(gradient / (2 * STEP))
    return found
