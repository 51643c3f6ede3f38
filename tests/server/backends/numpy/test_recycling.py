"""Tests of memory that arrays which are gone leave to those that arrive."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.backends.numpy.recycling import (
    LEAST_BYTES,
    MOST_KEPT,
    Recycling,
    is_recycled,
)
from burn_remote_server.execution.ownership import held_once

COUNT = LEAST_BYTES // 4
BYTE = np.dtype(np.uint8)
FLOAT = np.dtype(np.float32)


@pytest.fixture
def recycling() -> Recycling:
    return Recycling(4 * LEAST_BYTES)


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def test_the_next_array_lies_where_the_last_one_lay(recycling: Recycling) -> None:
    first = recycling.empty((2, COUNT), FLOAT)
    assert (first.shape, first.dtype) == ((2, COUNT), FLOAT)
    place = address(first)
    del first
    assert recycling.kept_bytes == 2 * LEAST_BYTES
    second = recycling.empty((LEAST_BYTES * 2 - 5,), BYTE)
    assert address(second) == place
    assert recycling.kept_bytes == 0


def test_memory_serves_nobody_else_while_a_view_of_the_array_is_left(recycling: Recycling) -> None:
    array = recycling.empty((4, COUNT // 2), FLOAT)
    array[:] = 1
    view = array.reshape(-1)[5:9].view(BYTE)[::2]
    del array
    assert recycling.kept_bytes == 0
    recycling.empty((4, COUNT // 2), FLOAT)[:] = 0
    assert view.tolist() == [0, 128] * 4  # of 1.0, 0x3f800000, every other byte
    del view
    assert recycling.kept_bytes > 0


def test_views_refer_to_the_array_so_that_it_counts_as_shared(recycling: Recycling) -> None:
    held = [recycling.empty((COUNT,), FLOAT)]
    table = {0: held[0]}
    assert held_once(held, 0)
    assert is_recycled(held[0])
    view = table[0][3:]
    assert not held_once(held, 0)
    assert not is_recycled(view)


def test_much_larger_memory_is_left_for_others(recycling: Recycling) -> None:
    large = recycling.empty((2 * COUNT,), FLOAT)
    del large
    small = recycling.empty((COUNT,), FLOAT)
    assert recycling.kept_bytes == 2 * LEAST_BYTES
    assert small.nbytes == LEAST_BYTES


def test_no_more_is_kept_than_allowed_and_the_latest_stays(recycling: Recycling) -> None:
    arrays = [recycling.empty((COUNT,), FLOAT) for _ in range(6)]
    last = address(arrays[-1])
    while arrays:
        del arrays[0]
    assert recycling.kept_bytes == 4 * LEAST_BYTES
    again = [recycling.empty((COUNT,), FLOAT) for _ in range(4)]
    assert last in map(address, again)


def test_of_many_arrays_few_are_kept_so_that_looking_among_them_takes_no_time() -> None:
    recycling = Recycling(2 * MOST_KEPT * LEAST_BYTES)
    arrays = [recycling.empty((COUNT,), FLOAT) for _ in range(MOST_KEPT + 9)]
    arrays.clear()
    assert recycling.kept_bytes == MOST_KEPT * LEAST_BYTES


def test_where_memory_is_short_what_is_kept_is_given_up_first() -> None:
    class Short(Recycling):
        """Of a machine that has room for one block."""

        def _made(self, size: int) -> Any:
            if self.kept_bytes:
                raise MemoryError
            return super()._made(size)

    recycling = Short(4 * LEAST_BYTES)
    kept = recycling.empty((COUNT,), FLOAT)
    del kept
    assert recycling.empty((2 * COUNT,), FLOAT).nbytes == 2 * LEAST_BYTES


@pytest.mark.parametrize("count", [COUNT - 1, 5 * COUNT])
def test_small_arrays_and_those_beyond_the_limit_are_ordinary(
    recycling: Recycling, count: int
) -> None:
    array = recycling.empty((count,), FLOAT)
    assert array.base is None
    del array
    assert recycling.kept_bytes == 0


def test_what_nobody_needs_goes_back_to_the_system(recycling: Recycling) -> None:
    array = recycling.empty((COUNT,), FLOAT)
    del array
    recycling.expire(seconds=60)
    assert recycling.kept_bytes == LEAST_BYTES
    recycling.expire(seconds=0)
    assert recycling.kept_bytes == 0


def test_an_array_in_a_cycle_may_end_while_memory_is_looked_for(recycling: Recycling) -> None:
    """A collection can begin anywhere, also where the lock is held."""
    cycle: list[Any] = [recycling.empty((COUNT,), FLOAT)]
    cycle.append(cycle)
    del cycle
    with recycling._lock:
        gc.collect()
    assert recycling.kept_bytes == 0
    assert recycling.empty((COUNT,), FLOAT).size == COUNT


def test_a_backend_recycles_once_it_is_asked_to_and_shows_what_it_keeps() -> None:
    backend = NumpyBackend(memory_limit=64 * LEAST_BYTES)
    spec = TensorSpec((COUNT,), F32)
    backend.empty(spec)
    assert backend.memory().cached == 0
    backend.begin_recycling(8 * LEAST_BYTES)
    array = backend.empty(spec)
    assert backend.owns_memory(array)
    del array
    assert backend.memory().cached == LEAST_BYTES
    backend.expire_memory()
    assert backend.memory().cached == LEAST_BYTES
    backend.memory_cleanup()
    assert backend.memory().cached == 0
