"""An array whose memory may be reused is referenced by its table and its caller only."""

from __future__ import annotations

from collections.abc import Callable
from sys import getrefcount
from typing import Any

import numpy as np
import pytest

from burn_remote_server.tensors.ownership import HELD_HERE, held_once

HOLDS: dict[str, Callable[[Any], Any]] = {
    "a variable": lambda array: array,
    "a view": lambda array: array[:1],
    "a reversed view": lambda array: array[::-1],
    "a reshaped view": lambda array: array.reshape(2, 2),
    "a broadcast view": lambda array: np.broadcast_to(array, (3, 4)),
    "a buffer": memoryview,
    "a second table": lambda array: {7: array},
}


def inputs_of(table: dict[int, Any]) -> list[Any]:
    return [table[1], table[2]]


def table() -> dict[int, Any]:
    return {1: np.zeros(4), 2: np.ones(4)}


def test_arrays_in_a_table_and_the_inputs_of_a_call_are_held_once() -> None:
    tensors = table()
    inputs = inputs_of(tensors)
    assert held_once(inputs, 0)
    assert held_once(inputs, 1)


@pytest.mark.parametrize("name", HOLDS)
def test_another_reference_to_the_memory_is_noticed_until_it_ends(name: str) -> None:
    tensors = table()
    other = HOLDS[name](tensors[1])
    inputs = inputs_of(tensors)
    assert not held_once(inputs, 0)
    assert held_once(inputs, 1)
    del other
    assert held_once(inputs, 0)


def test_an_array_that_is_two_inputs_is_not_held_once() -> None:
    tensors = table()
    inputs = [tensors[1], tensors[1]]
    assert not held_once(inputs, 0)
    assert not held_once(inputs, 1)


def test_an_array_under_two_ids_is_not_held_once() -> None:
    tensors = table()
    tensors[3] = tensors[1]
    assert not held_once(inputs_of(tensors), 0)


def test_a_result_that_nothing_else_references_has_the_reference_count_of_a_local() -> None:
    result = np.zeros(4) + 1
    assert getrefcount(result) == HELD_HERE
    view = result[:2]
    assert getrefcount(result) > HELD_HERE
    del view
    assert getrefcount(result) == HELD_HERE
