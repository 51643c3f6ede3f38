"""Tests of reshaping, permuting, repeating and slicing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from burn_remote_protocol.tensors import Slice, TensorSpec
from support.elements import BOOL, NUMBERS, arrays, assert_same, shapes
from support.kernels import compute, on_host, spec_of

ANY = (*NUMBERS, BOOL)
LINES = hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4)


@given(st.data(), st.sampled_from(ANY))
def test_elements_keep_their_order_in_another_shape(data: st.DataObject, dtype: Any) -> None:
    tensor = data.draw(arrays(dtype))

    flat = compute("Base.Reshape", tensor, out=TensorSpec((tensor.size,), spec_of(tensor).dtype))
    assert_same(flat, tensor.reshape(-1))
    assert_same(compute("Base.Reshape", flat, out=spec_of(tensor)), tensor)


@given(st.data(), st.sampled_from(ANY))
def test_axes_are_exchanged_permuted_and_reversed(data: st.DataObject, dtype: Any) -> None:
    tensor = data.draw(arrays(dtype, LINES))
    axes = st.integers(0, tensor.ndim - 1)
    first, second, order = data.draw(st.tuples(axes, axes, st.permutations(range(tensor.ndim))))
    turned = tuple(data.draw(st.lists(axes, unique=True)))

    swapped = compute("Base.SwapDims", tensor, dim1=first, dim2=second)
    assert_same(swapped, np.swapaxes(tensor, first, second))
    permuted = compute("Base.Permute", tensor, axes=tuple(order))
    assert_same(permuted, np.transpose(tensor, order))
    assert_same(compute("Base.Flip", tensor, axes=turned), np.flip(tensor, turned))


@on_host
def test_rearrangements_are_views_where_possible() -> None:
    tensor = np.arange(12, dtype=np.float16).reshape(3, 4)
    wide = TensorSpec((2, 3, 4), spec_of(tensor).dtype)

    for view in (
        compute("Base.Reshape", tensor, out=TensorSpec((4, 3), spec_of(tensor).dtype)),
        compute("Base.SwapDims", tensor, dim1=0, dim2=1),
        compute("Base.Permute", tensor, axes=(1, 0)),
        compute("Base.Flip", tensor, axes=(1,)),
        compute("Base.Expand", tensor, out=wide),
        compute("Base.Unfold", tensor, dim=1, size=2, step=1),
    ):
        assert np.shares_memory(view, tensor)


@given(st.data(), st.sampled_from(ANY))
def test_axes_of_size_1_are_expanded(data: st.DataObject, dtype: Any) -> None:
    target = data.draw(LINES)
    shape = tuple(data.draw(st.sampled_from([1, size])) for size in target)
    tensor = data.draw(arrays(dtype, shape[data.draw(st.integers(0, len(shape))) :]))

    seen = compute("Base.Expand", tensor, out=TensorSpec(target, spec_of(tensor).dtype))

    assert_same(seen, np.broadcast_to(tensor, target))


@given(st.data(), st.sampled_from(ANY))
def test_axes_are_repeated(data: st.DataObject, dtype: Any) -> None:
    tensor = data.draw(arrays(dtype, LINES))
    dim, times = data.draw(st.integers(0, tensor.ndim - 1)), data.draw(st.integers(0, 3))

    seen = compute("Base.RepeatDim", tensor, dim=dim, times=times)

    repeats = [times if axis == dim else 1 for axis in range(tensor.ndim)]
    assert_same(seen, np.tile(tensor, repeats))


@given(st.data(), st.sampled_from(ANY))
def test_tensors_are_concatenated(data: st.DataObject, dtype: Any) -> None:
    shape = data.draw(LINES)
    dim = data.draw(st.integers(0, len(shape) - 1))
    sizes = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    tensors = [data.draw(arrays(dtype, (*shape[:dim], size, *shape[dim + 1 :]))) for size in sizes]

    seen = compute("Base.Cat", tensors, dim=dim)

    assert_same(seen, np.concatenate(tensors, axis=dim))


@given(st.data(), st.sampled_from(ANY), st.integers(1, 4), st.integers(1, 4))
def test_windows_are_all_that_fit(data: st.DataObject, dtype: Any, size: int, step: int) -> None:
    tensor = data.draw(arrays(dtype, LINES))
    dim = data.draw(st.integers(0, tensor.ndim - 1))

    seen = compute("Base.Unfold", tensor, dim=dim, size=size, step=step)

    starts = range(0, tensor.shape[dim] - size + 1, step)
    windows = [
        np.moveaxis(np.take(tensor, range(start, start + size), axis=dim), dim, -1)
        for start in starts
    ]
    expected = np.stack(windows, axis=dim) if windows else np.empty(seen.shape, dtype)
    assert_same(seen, expected)


def test_few_windows_do_not_keep_the_whole_tensor_alive() -> None:
    tensor = np.arange(1000, dtype=np.int32)

    windows = compute("Base.Unfold", tensor, dim=0, size=2, step=100)

    assert windows[:, 1].tolist() == list(range(1, 1000, 100))
    assert not np.shares_memory(windows, tensor)


def test_there_is_one_more_window_of_size_0_than_elements() -> None:
    tensor = np.arange(3, dtype=np.int32)

    assert compute("Base.Unfold", tensor, dim=0, size=0, step=1).shape == (4, 0)


@pytest.mark.parametrize("dtype", ANY, ids=str)
def test_tensors_are_made_of_zeros_ones_and_numbers(dtype: Any) -> None:
    spec = TensorSpec((2, 0), spec_of(np.empty(0, dtype)).dtype)
    filled = TensorSpec((2,), spec.dtype)

    for name, expected in (("Zeros", 0), ("Empty", 0), ("Ones", 1)):
        assert compute(f"Base.{name}", out=spec).shape == (2, 0)
        assert_same(compute(f"Base.{name}", out=filled), np.full(2, expected, dtype))
    if dtype != BOOL:
        assert_same(compute("Numeric.Full", out=filled, value=3), np.full(2, 3, dtype))


def test_a_number_wraps_around_or_is_rounded_when_it_fills_a_tensor() -> None:
    small, low = (spec_of(np.empty(1, dtype)) for dtype in (np.uint8, np.float16))

    assert compute("Numeric.Full", out=small, value=-1).tolist() == [255]
    assert compute("Numeric.Full", out=small, value=2.9).tolist() == [2]
    assert compute("Numeric.Full", out=low, value=1e6).tolist() == [np.inf]


STEPS = st.integers(-3, 3).filter(bool)
SLICES = st.builds(Slice, st.integers(-5, 5), st.none() | st.integers(-5, 5), STEPS)


def taken(size: int, item: Slice) -> list[int]:
    """Return the indices of a slice in Burn: start to end, reversed for a negative step."""
    everything = list(range(size))[item.start : item.end]
    return everything[:: item.step]


@given(st.data(), st.sampled_from((*NUMBERS, BOOL)))
def test_slices_are_taken_in_their_order_and_replaced_there(
    data: st.DataObject, dtype: Any
) -> None:
    tensor = data.draw(arrays(dtype, shapes))
    ranges = tuple(data.draw(st.lists(SLICES, max_size=tensor.ndim)))
    places = [taken(size, item) for size, item in zip(tensor.shape, ranges, strict=False)]
    places += [list(range(size)) for size in tensor.shape[len(ranges) :]]
    index = np.ix_(*places) if places else ()

    part = compute("Base.Slice", tensor, ranges=ranges)
    assert_same(part, np.asarray(tensor[index]))
    value = data.draw(arrays(dtype, part.shape))
    expected = tensor.copy()
    expected[index] = value
    assert_same(compute("Base.SliceAssign", tensor, value, ranges=ranges), expected)


@on_host
def test_a_large_slice_is_a_view() -> None:
    tensor = np.arange(300, dtype=np.int32)

    part = compute("Base.Slice", tensor, ranges=(Slice(0, 100, 1),))

    assert np.shares_memory(part, tensor)


@on_host
def test_a_small_slice_does_not_keep_the_whole_tensor_alive() -> None:
    tensor = np.arange(1000, dtype=np.int32)
    half = compute("Base.Slice", tensor, ranges=(Slice(0, 500, 1),))

    part = compute("Base.Slice", half, ranges=(Slice(0, 200, 1),))

    assert np.shares_memory(half, tensor)
    assert not np.shares_memory(part, tensor)


@on_host
def test_a_slice_of_windows_does_not_keep_the_whole_tensor_alive() -> None:
    tensor = np.arange(1000, dtype=np.int32)
    windows = compute("Base.Unfold", tensor, dim=0, size=1, step=4)

    part = compute("Base.Slice", windows, ranges=(Slice(0, 100, 1),))

    assert np.shares_memory(windows, tensor)
    assert not np.shares_memory(part, tensor)


@on_host
def test_a_slice_of_an_array_over_bytes() -> None:
    tensor = np.frombuffer(bytes(400), np.int32)

    assert compute("Base.Slice", tensor, ranges=(Slice(0, 1, 1),)).base is None
