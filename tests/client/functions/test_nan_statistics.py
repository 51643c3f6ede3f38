"""Reductions that leave NaN out, compared with NumPy's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import burn_remote as br

ARRAY = np.asarray([[1.0, np.nan, 3.0], [np.nan, np.nan, -2.0], [4.0, np.nan, 0.5]])
NAMES = ("nansum", "nanprod", "nanmax", "nanmin", "nanmean", "nanvar", "nanstd")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("axis", [None, 0, 1, (0, 1)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions_leave_nan_out(name: str, axis: Any, keepdims: bool) -> None:
    x = br.tensor(ARRAY, device="local")
    found = getattr(br, name)(x, axis=axis, keepdims=keepdims)
    np.testing.assert_allclose(found.numpy(), reference(name, ARRAY, axis, keepdims))


@pytest.mark.parametrize("name", NAMES)
def test_integers_have_no_nan(name: str) -> None:
    array = np.asarray([[1, 2], [3, 5]])
    found = getattr(br, name)(br.tensor(array, device="local"), axis=1)
    np.testing.assert_allclose(found.numpy(), getattr(np, name)(array, axis=1), rtol=1e-6)


@pytest.mark.parametrize("name", ["nanvar", "nanstd"])
def test_numpy_passes_ddof_as_the_correction(name: str) -> None:
    x = br.tensor(ARRAY, device="local")
    function: Callable[..., Any] = getattr(np, name)
    expected = function(ARRAY[:, 2], ddof=1)
    np.testing.assert_allclose(function(x[:, 2], ddof=1).numpy(), expected)
    same: Callable[..., Any] = np.std
    np.testing.assert_allclose(same(x[:, 2], ddof=1).numpy(), np.std(ARRAY[:, 2], ddof=1))


@pytest.mark.parametrize("name", ["nanvar", "nanstd"])
@pytest.mark.parametrize("axis", [None, 0, 1, ()])
def test_the_variance_of_complex_numbers_is_real(name: str, axis: Any) -> None:
    array = ARRAY + 1j * np.asarray([[2.0, 0.0, -1.0], [0.5, 3.0, np.nan], [7.0, 1.0, -4.0]])
    found = getattr(br, name)(br.tensor(array, device="local"), axis=axis, keepdims=True).numpy()
    expected = reference(name, array, axis, True)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_infinite_numbers_are_not_left_out(name: str, dtype: str) -> None:
    if dtype == "complex64" and name in ("nanmax", "nanmin"):
        pytest.skip("complex numbers have no order")
    array = np.asarray([[1, np.inf, 2, np.nan], [-np.inf, 1, np.nan, 3], [1, 2, 4, 3]], dtype)
    found = getattr(br, name)(br.tensor(array, device="local"), axis=1).numpy()
    with np.errstate(invalid="ignore"):
        expected = reference(name, array, 1, False)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_float16_is_accumulated_in_float32() -> None:
    array = np.full(4000, 10.0, np.float16)
    array[1] = np.nan
    assert float(br.nanmean(br.tensor(array, device="local"))) == 10.0


def reference(name: str, array: Any, axis: Any, keepdims: bool) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of columns that are all NaN
        return getattr(np, name)(array, axis=axis, keepdims=keepdims)
