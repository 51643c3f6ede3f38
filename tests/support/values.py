"""Comparison of tensors with NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

import burn_remote as br

__all__ = ["same"]


def same(actual: br.Tensor, expected: Any, tolerance: float = 0.0) -> None:
    """Assert equal shape, dtype and elements; NaN equals NaN."""
    expected = np.asarray(expected)
    array = actual.numpy()
    assert array.shape == expected.shape == actual.shape
    assert array.dtype == expected.dtype
    if tolerance:
        np.testing.assert_allclose(array, expected, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(array, expected)
