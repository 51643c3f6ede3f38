"""Tests of largest and smallest elements and their positions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from burn_remote_protocol.dtypes import I32, U8, DType
from burn_remote_protocol.tensors import TensorSpec
from support.elements import FLOATS, NUMBERS, arrays, assert_same
from support.kernels import Array, compute, spec_of

FILLED = hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=5)


def resized(tensor: Array, axis: int, size: int, dtype: DType) -> TensorSpec:
    return TensorSpec((*tensor.shape[:axis], size, *tensor.shape[axis + 1 :]), dtype)


def largest_first(row: Any) -> list[int]:
    """Return indices in descending order of elements: NaN first; of equal ones, the first."""

    def rank(position: int) -> tuple[bool, Any, int]:
        value = row[position]
        is_nan = isinstance(value, float) and math.isnan(value)
        return (not is_nan, 0 if is_nan else -value, position)

    return sorted(range(len(row)), key=rank)


@given(st.data(), st.sampled_from(NUMBERS))
def test_the_k_largest_come_first_and_in_order(data: st.DataObject, dtype: Any) -> None:
    tensor = data.draw(arrays(dtype, FILLED))
    axis = data.draw(st.integers(0, tensor.ndim - 1))
    count = data.draw(st.integers(0, tensor.shape[axis]))
    wide = tensor.astype(np.float64) if dtype in FLOATS else tensor

    out = resized(tensor, axis, count, I32)
    positions = compute("Numeric.ArgTopK", tensor, axis=axis, accumulator_len=count, out=out)
    values = compute("Numeric.TopK", tensor, axis=axis, accumulator_len=count)

    rows = np.moveaxis(wide, axis, -1)
    expected = np.empty((*rows.shape[:-1], count), np.int32)
    for row in np.ndindex(rows.shape[:-1]):
        expected[row] = largest_first(rows[row].tolist())[:count]
    assert_same(np.moveaxis(positions, axis, -1), expected)
    assert_same(values, np.take_along_axis(wide, positions, axis=axis).astype(dtype))


@pytest.mark.parametrize("count", [3, 6_000, 11_990])
def test_the_k_largest_of_long_rows_begin_with_nan(count: int) -> None:
    random = np.random.default_rng(3)
    tensor = random.standard_normal((4, 12_000)).astype(np.float32)
    tensor[random.random(tensor.shape) < 0.2] = np.nan

    seen = compute("Numeric.TopK", tensor, axis=1, accumulator_len=count)

    assert_same(seen, np.sort(tensor, axis=1)[:, ::-1][:, :count])


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("content", ["many values", "equal", "few values", "NaN", "more NaN"])
def test_the_few_largest_of_long_rows_are_the_first_of_equals(content: str, dtype: Any) -> None:
    random = np.random.default_rng(5)
    rows = random.permuted(np.arange(2400).reshape(2, 1, 1200) % 120, axis=-1).astype(dtype)
    if content == "equal":
        rows[:] = 1
    elif content == "few values":
        rows = (rows.astype(np.int64) % 7).astype(dtype)
    elif "NaN" in content and dtype in FLOATS:
        rows[0, 0, 5:8] = np.nan
        rows[1, 0, : 20 if content == "more NaN" else 1] = np.nan
    tensor = np.moveaxis(rows, -1, 1)

    out = resized(tensor, 1, 9, I32)
    seen = compute("Numeric.ArgTopK", tensor, axis=1, accumulator_len=9, out=out)

    wide = rows.astype(np.float64) if dtype in FLOATS else rows
    expected = [[largest_first(row[0].tolist())[:9]] for row in wide]
    assert_same(np.moveaxis(seen, 1, -1), np.array(expected, np.int32))


def test_positions_of_few_elements_sort_no_whole_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    sorted_sizes: list[int] = []

    def argsort(rows: Array, **options: Any) -> Array:
        sorted_sizes.append(rows.shape[-1])
        return sort(rows, **options)

    sort = np.argsort
    monkeypatch.setattr(np, "argsort", argsort)
    tensor = np.arange(10_000) % 100

    out = resized(tensor, 0, 3, I32)
    seen = compute("Numeric.ArgTopK", tensor, axis=0, accumulator_len=3, out=out)

    assert seen.tolist() == [99, 199, 299]
    assert sorted_sizes == [3]


@given(st.data(), st.sampled_from(NUMBERS))
def test_extremes_are_the_first_of_equals_and_nan_before_others(
    data: st.DataObject, dtype: Any
) -> None:
    tensor = data.draw(arrays(dtype, FILLED))
    axis = data.draw(st.integers(0, tensor.ndim - 1))
    wide = tensor.astype(np.float64) if dtype in FLOATS else tensor
    out = resized(tensor, axis, 1, U8)
    pair = (resized(tensor, axis, 1, spec_of(tensor).dtype), out)

    for function, name, both in (
        (np.argmax, "ArgMax", "MaxDimWithIndices"),
        (np.argmin, "ArgMin", "MinDimWithIndices"),
    ):
        expected = function(wide, axis=axis, keepdims=True)
        seen = compute(f"Numeric.{name}", tensor, axis=axis, accumulator_len=1, out=out)
        assert_same(seen, expected.astype(np.uint8))
        values, positions = compute(f"Numeric.{both}", tensor, dim=axis, out=pair)
        assert_same(positions, seen)
        assert_same(values, np.take_along_axis(wide, expected, axis=axis).astype(dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_first_nan_is_the_extreme(dtype: Any) -> None:
    tensor = np.array([1, np.nan, np.inf, np.nan], dtype)

    for name in ("ArgMax", "ArgMin"):
        out = TensorSpec((1,), I32)
        seen = compute(f"Numeric.{name}", tensor, axis=0, accumulator_len=1, out=out)
        assert seen.tolist() == [1]
