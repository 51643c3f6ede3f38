"""Extremes of rows have the values that NumPy's own reduction finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from burn_remote_server.backends.array.core.row_extremes import COPIED_ELEMENTS, row_extremes
from support.kernels import compute, on_host

DTYPES = [np.float32, np.float64, np.int64, np.int32, np.uint8]


def rows_of(count: int, length: int, dtype: Any) -> Any:
    random = np.random.default_rng(count + length)
    return (random.standard_normal((count, length)) * 100).astype(np.int64).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [1, 2, 10, 16, 17, 64])
@pytest.mark.parametrize("count", [1, 64, COPIED_ELEMENTS // 10 + 1])
def test_extremes_of_rows_equal_those_of_numpy(count: int, length: int, dtype: Any) -> None:
    array = rows_of(count, length, dtype)
    for name, expected in (("Max", array.max), ("Min", array.min)):
        seen = compute(f"Numeric.{name}Dim", array, axis=1, accumulator_len=1)
        assert seen.dtype == array.dtype
        np.testing.assert_array_equal(seen, expected(axis=1, keepdims=True))


@pytest.mark.parametrize("length", [10, 100])
def test_a_row_with_nan_has_the_extreme_nan(length: int) -> None:
    array = rows_of(128, length, np.float32)
    array[5, 3] = array[64, 0] = array[127, -1] = np.nan
    found = row_extremes(np, array.shape, array.dtype)
    assert found is not None
    for function in found:
        assert np.flatnonzero(np.isnan(function(array))).tolist() == [5, 64, 127]


def test_extremes_of_short_rows_own_their_memory() -> None:
    array = rows_of(128, 10, np.float32)
    found = row_extremes(np, array.shape, array.dtype)
    assert found is not None
    assert found.largest(array).base is None


def test_no_function_is_chosen_for_rows_without_elements() -> None:
    assert row_extremes(np, (64, 0), np.dtype(np.float32)) is None
    assert row_extremes(np, (0, 10), np.dtype(np.float32)) is None


@on_host
@pytest.mark.parametrize("name", ["Max", "Min"])
@pytest.mark.parametrize("layout", ["C", "F", "reversed", "several axes"])
def test_extremes_along_the_last_axis_do_not_depend_on_the_layout(name: str, layout: str) -> None:
    array = rows_of(192, 10, np.float32)
    given = {
        "C": array,
        "F": np.asfortranarray(array),
        "reversed": array[::-1, ::-1].copy()[::-1, ::-1],
        "several axes": array.reshape(3, 64, 10),
    }[layout]
    seen = compute(f"Numeric.{name}Dim", given, axis=given.ndim - 1, accumulator_len=1)
    expected = getattr(given, name.lower())(axis=-1, keepdims=True)
    np.testing.assert_array_equal(seen, expected)
