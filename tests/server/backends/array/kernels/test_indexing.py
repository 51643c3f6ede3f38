"""Tests of selecting and updating elements by indices."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from burn_remote_protocol.errors import ShapeMismatch
from support.elements import BOOL, INTEGERS, NUMBERS, arrays, assert_same
from support.kernels import Array, compute, new_session, received, sent, signature, spec_of

FILLED = hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=4)
UPDATES: dict[str, Callable[[Any, Any], Any]] = {
    "Assign": lambda old, new: new,
    "Add": np.add,
    "Mul": np.multiply,
    "Min": np.minimum,
    "Max": np.maximum,
}
EXACT = (*INTEGERS, BOOL, np.dtype("f8"))


def indices(data: st.DataObject, shape: tuple[int, ...], size: int) -> Array:
    dtype = data.draw(st.sampled_from(INTEGERS))
    return data.draw(hnp.arrays(dtype, shape, elements=st.integers(0, size - 1)))


def updated(tensor: Array, places: Any, values: Any, update: str) -> Array:
    """Update elements one by one in a loop."""
    result = tensor.copy()
    for place, value in zip(places, values, strict=True):
        with np.errstate(all="ignore"):
            result[place] = UPDATES[update](result[place], value)
    return result


@given(st.data(), st.sampled_from((*NUMBERS, BOOL)), st.integers(0, 4))
def test_slices_of_an_axis_are_selected(data: st.DataObject, dtype: Any, count: int) -> None:
    tensor = data.draw(arrays(dtype, FILLED))
    dim = data.draw(st.integers(0, tensor.ndim - 1))
    chosen = indices(data, (count,), tensor.shape[dim])

    seen = compute("Base.Select", tensor, chosen, dim=dim)

    assert_same(seen, np.take(tensor, chosen.astype(int), axis=dim))


@given(st.data(), st.sampled_from(EXACT), st.integers(0, 5), st.sampled_from(sorted(UPDATES)))
def test_selected_slices_are_updated_in_order(
    data: st.DataObject, dtype: Any, count: int, update: str
) -> None:
    tensor = data.draw(arrays(dtype, FILLED))
    dim = data.draw(st.integers(0, tensor.ndim - 1))
    chosen = indices(data, (count,), tensor.shape[dim])
    value = data.draw(arrays(dtype, (*tensor.shape[:dim], count, *tensor.shape[dim + 1 :])))

    seen = compute("Base.SelectAssign", tensor, chosen, value, dim=dim, update=update)

    places = [(*(slice(None),) * dim, int(index)) for index in chosen]
    assert_same(seen, updated(tensor, places, np.moveaxis(value, dim, 0), update))


@given(st.data(), st.sampled_from((*NUMBERS, BOOL)))
def test_elements_are_gathered_along_an_axis(data: st.DataObject, dtype: Any) -> None:
    tensor = data.draw(arrays(dtype, FILLED))
    dim = data.draw(st.integers(0, tensor.ndim - 1))
    shape = tuple(
        data.draw(st.integers(0, 5 if axis == dim else size))
        for axis, size in enumerate(tensor.shape)
    )
    chosen = indices(data, shape, tensor.shape[dim])

    seen = compute("Base.Gather", tensor, chosen, dim=dim)

    expected = np.empty(shape, dtype)
    for place in np.ndindex(shape):
        expected[place] = tensor[(*place[:dim], int(chosen[place]), *place[dim + 1 :])]
    assert_same(seen, expected)


@given(st.data(), st.sampled_from(EXACT), st.sampled_from(sorted(UPDATES)))
def test_elements_are_scattered_along_an_axis_in_order(
    data: st.DataObject, dtype: Any, update: str
) -> None:
    tensor = data.draw(arrays(dtype, FILLED))
    dim = data.draw(st.integers(0, tensor.ndim - 1))
    shape = tuple(
        data.draw(st.integers(0, 5 if axis == dim else size))
        for axis, size in enumerate(tensor.shape)
    )
    chosen = indices(data, shape, tensor.shape[dim])
    value = data.draw(arrays(dtype, shape))

    seen = compute("Base.Scatter", tensor, chosen, value, dim=dim, update=update)

    places = [(*at[:dim], int(chosen[at]), *at[dim + 1 :]) for at in np.ndindex(shape)]
    assert_same(seen, updated(tensor, places, value.reshape(-1), update))


@given(st.data(), st.sampled_from(EXACT), st.sampled_from(sorted(UPDATES)))
def test_coordinates_select_elements_or_slices(
    data: st.DataObject, dtype: Any, update: str
) -> None:
    tensor = data.draw(arrays(dtype, FILLED))
    depth = data.draw(st.integers(0, tensor.ndim))
    rows = data.draw(hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3))
    columns = [indices(data, rows, size).astype(np.int32) for size in tensor.shape[:depth]]
    chosen = np.stack(columns, axis=-1) if columns else np.empty((*rows, 0), np.int32)

    picked = compute("Base.GatherNd", tensor, chosen)
    places = [tuple(int(index) for index in chosen[at]) for at in np.ndindex(rows)]
    expected = [np.asarray(tensor[place]) for place in places]
    assert_same(picked, np.array(expected, dtype).reshape(picked.shape))

    values = data.draw(arrays(dtype, picked.shape))
    seen = compute("Base.ScatterNd", tensor, chosen, values, reduction=update)
    parts = [values[at] for at in np.ndindex(rows)]
    assert_same(seen, updated(tensor, places, parts, update))


@pytest.mark.parametrize("index", [-1, 3, -(2**31), 2**31 - 1])
def test_an_index_beyond_its_axis_raises(index: int) -> None:
    tensor = np.zeros((4, 3), np.float32)
    row, square = np.array([0, index], np.int32), np.array([[0, index]], np.int32)
    value, line = np.zeros((4, 2), np.float32), np.zeros((1, 2), np.float32)
    reason = re.escape(f"index {index} is out of range: axis 1 of [4, 3] has the indices 0 to 2")

    with pytest.raises(ShapeMismatch, match=reason):
        compute("Base.Select", tensor, row, dim=1)
    with pytest.raises(ShapeMismatch, match=reason):
        compute("Base.SelectAssign", tensor, row, value, dim=1, update="Add")
    with pytest.raises(ShapeMismatch, match=reason):
        compute("Base.Gather", tensor, square, dim=1)
    with pytest.raises(ShapeMismatch, match=reason):
        compute("Base.Scatter", tensor, square, line, dim=1, update="Assign")
    with pytest.raises(ShapeMismatch, match=reason):
        compute("Base.GatherNd", tensor, square)
    with pytest.raises(ShapeMismatch, match=reason):
        compute("Base.ScatterNd", tensor, square, line[0, :1], reduction="Max")


def test_an_index_into_an_empty_axis_raises() -> None:
    tensor, row = np.zeros((0, 3), np.float32), np.array([0])

    with pytest.raises(
        ShapeMismatch, match=re.escape("index 0 is out of range: axis 0 of [0, 3] is empty")
    ):
        compute("Base.Select", tensor, row, dim=0)


def test_low_precision_is_accumulated_in_float32() -> None:
    tensor, chosen = np.zeros(1, np.float16), np.zeros(5000, np.int64)

    seen = compute(
        "Base.SelectAssign", tensor, chosen, np.ones(5000, np.float16), dim=0, update="Add"
    )

    # A running sum in float16 would stop at 2048.
    assert seen.tolist() == [5000]


@pytest.mark.parametrize("count", [3, 2000])
def test_a_prepared_kernel_takes_the_indices_of_each_call(count: int) -> None:
    random = np.random.default_rng(0)
    tensor, value = random.normal(size=(count, 5)), random.normal(size=(count, 2))
    first, second = random.integers(0, 5, (2, count, 2))
    specs = [spec_of(array) for array in (tensor, first, value)]
    gather = new_session().bind(signature("Base.Gather", *specs[:2], dim=1))
    scatter = new_session().bind(signature("Base.Scatter", *specs, dim=1, update="Add"))

    for chosen in (first, second, first):
        rows = np.arange(count)[:, None]
        assert_same(received(gather(sent(tensor), sent(chosen))), tensor[rows, chosen])
        expected = tensor.copy()
        np.add.at(expected, (rows, chosen), value)
        assert_same(received(scatter(sent(tensor), sent(chosen), sent(value))), expected)
