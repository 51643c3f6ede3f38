"""Blocks cover each element of a result once, with the matching elements of each operand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_server.fusion.cpu.layouts import Layout, expanded_mask, static_mask

lengths = st.lists(st.integers(1, 7), min_size=1, max_size=4)


@given(st.data())
def test_blocks_give_each_element_the_operands_of_broadcasting(data: st.DataObject) -> None:
    result = tuple(data.draw(lengths))
    shape = tuple(data.draw(st.sampled_from([1, length])) for length in result)
    operand = np.arange(math.prod(shape)).reshape(shape)
    layout = Layout(result, [static_mask(shape, result)], data.draw(st.integers(1, 100)))
    seen = np.full(layout.result_shape, -1)
    for rows, index, (place,) in layout.blocks():
        part = operand.reshape(layout.shapes[0])[place]
        assert seen[index].shape[0] == rows <= layout.size[0]
        assert (seen[index] == -1).all()
        seen[index] = part
    assert (seen.reshape(result) == np.broadcast_to(operand, result)).all()


def test_blocks_have_equal_lengths() -> None:
    layout = Layout((100_001,), [(True,)], 1000)
    rows = [rows for rows, _, _ in layout.blocks()]
    assert (min(rows), max(rows), sum(rows)) == (990, 991, 100_001)


def test_axes_that_all_operands_have_become_one() -> None:
    assert Layout((6, 1, 5, 7), [(True, False, True, True)], 10).result_shape == (210,)
    mask = static_mask((1, 1, 5, 7), (6, 2, 5, 7))
    assert Layout((6, 2, 5, 7), [mask], 10).result_shape == (12, 35)


def test_a_repeated_array_counts_as_one_that_is_broadcast() -> None:
    row = np.arange(5)
    found = expanded_mask(np.broadcast_to(row, (3, 5)), (3, 5))
    assert found is not None
    assert (found[0].tolist(), found[1]) == ([row.tolist()], (False, True))


@pytest.mark.parametrize("array", [np.arange(6)[::-1], np.arange(6).reshape(2, 3).T])
def test_other_layouts_are_unsuitable(array: np.ndarray) -> None:
    assert expanded_mask(array, array.shape) is None
