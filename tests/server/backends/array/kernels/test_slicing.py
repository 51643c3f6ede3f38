"""Tests of taking and replacing slices."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.tensors import Slice
from support.elements import BOOL, NUMBERS, arrays, assert_same, shapes
from support.kernels import compute, on_host

STEPS = st.integers(-3, 3).filter(bool)
SLICES = st.builds(Slice, st.integers(-5, 5), st.none() | st.integers(-5, 5), STEPS)


def taken(size: int, item: Slice) -> list[int]:
    """Return the indices that Burn takes: the range from start to end, backwards for a step < 0."""
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
def test_a_large_part_is_a_view() -> None:
    tensor = np.arange(300, dtype=np.int32)

    part = compute("Base.Slice", tensor, ranges=(Slice(0, 100, 1),))

    assert np.shares_memory(part, tensor)


@on_host
def test_a_small_part_does_not_keep_the_whole_in_memory() -> None:
    tensor = np.arange(1000, dtype=np.int32)
    half = compute("Base.Slice", tensor, ranges=(Slice(0, 500, 1),))

    part = compute("Base.Slice", half, ranges=(Slice(0, 200, 1),))

    assert np.shares_memory(half, tensor)
    assert not np.shares_memory(part, tensor)


@on_host
def test_a_part_of_windows_does_not_keep_the_whole_in_memory() -> None:
    tensor = np.arange(1000, dtype=np.int32)
    windows = compute("Base.Unfold", tensor, dim=0, size=1, step=4)

    part = compute("Base.Slice", windows, ranges=(Slice(0, 100, 1),))

    assert np.shares_memory(windows, tensor)
    assert not np.shares_memory(part, tensor)


@on_host
def test_a_part_of_what_was_made_from_bytes() -> None:
    tensor = np.frombuffer(bytes(400), np.int32)

    assert compute("Base.Slice", tensor, ranges=(Slice(0, 1, 1),)).base is None
