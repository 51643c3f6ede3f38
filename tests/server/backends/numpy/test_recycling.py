"""Tests of the reuse of freed memory."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.backends.numpy.recycling import (
    ALIGNMENT,
    MAX_BLOCKS,
    MAX_OTHER_BYTES,
    MIN_BYTES,
    SIZES_KEPT,
    Recycling,
    is_recycled,
)
from burn_remote_server.tensors.ownership import held_once

COUNT = MIN_BYTES // 4
BYTE = np.dtype(np.uint8)
FLOAT = np.dtype(np.float32)


@pytest.fixture
def recycling() -> Recycling:
    return Recycling(4 * MIN_BYTES)


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def test_the_next_array_reuses_the_freed_block(recycling: Recycling) -> None:
    first = recycling.empty((2, COUNT), FLOAT)
    assert (first.shape, first.dtype) == ((2, COUNT), FLOAT)
    place = address(first)
    del first
    assert recycling.kept_bytes == 2 * MIN_BYTES
    second = recycling.empty((MIN_BYTES * 2 - 5,), BYTE)
    assert address(second) == place
    assert recycling.kept_bytes == 0


def test_a_block_is_not_reused_while_a_view_is_alive(recycling: Recycling) -> None:
    array = recycling.empty((4, COUNT // 2), FLOAT)
    array[:] = 1
    view = array.reshape(-1)[5:9].view(BYTE)[::2]
    del array
    assert recycling.kept_bytes == 0
    recycling.empty((4, COUNT // 2), FLOAT)[:] = 0
    assert view.tolist() == [0, 128] * 4  # of 1.0, 0x3f800000, every other byte
    del view
    assert recycling.kept_bytes > 0


def test_views_reference_the_array_and_make_it_shared(recycling: Recycling) -> None:
    held = [recycling.empty((COUNT,), FLOAT)]
    table = {0: held[0]}
    assert held_once(held, 0)
    assert is_recycled(held[0])
    view = table[0][3:]
    assert not held_once(held, 0)
    assert not is_recycled(view)


def test_a_much_larger_block_is_not_reused(recycling: Recycling) -> None:
    large = recycling.empty((2 * COUNT,), FLOAT)
    del large
    small = recycling.empty((COUNT,), FLOAT)
    assert recycling.kept_bytes == 2 * MIN_BYTES
    assert small.nbytes == MIN_BYTES


def test_the_pool_is_bounded_and_keeps_the_latest_blocks(recycling: Recycling) -> None:
    arrays = [recycling.empty((COUNT,), FLOAT) for _ in range(6)]
    last = address(arrays[-1])
    while arrays:
        del arrays[0]
    assert recycling.kept_bytes == 4 * MIN_BYTES
    again = [recycling.empty((COUNT,), FLOAT) for _ in range(4)]
    assert last in map(address, again)


def test_the_number_of_pooled_blocks_is_bounded() -> None:
    recycling = Recycling(2 * MAX_BLOCKS * MIN_BYTES)
    arrays = [recycling.empty((COUNT,), FLOAT) for _ in range(MAX_BLOCKS + 9)]
    arrays.clear()
    assert recycling.kept_bytes == MAX_BLOCKS * MIN_BYTES


def test_pooled_blocks_are_freed_when_memory_is_short() -> None:
    class Short(Recycling):
        """Fail as on a machine with memory for one block."""

        def _made(self, size: int) -> Any:
            if self.kept_bytes:
                raise MemoryError
            return super()._made(size)

    recycling = Short(4 * MIN_BYTES)
    kept = recycling.empty((COUNT,), FLOAT)
    del kept
    assert recycling.empty((2 * COUNT,), FLOAT).nbytes == 2 * MIN_BYTES


@pytest.mark.parametrize("count", [COUNT - 1, 5 * COUNT])
def test_small_and_oversized_arrays_are_not_pooled(recycling: Recycling, count: int) -> None:
    array = recycling.empty((count,), FLOAT)
    assert array.base is None
    del array
    assert recycling.kept_bytes == 0


def test_unused_blocks_expire(recycling: Recycling) -> None:
    array = recycling.empty((COUNT,), FLOAT)
    del array
    recycling.expire(seconds=60)
    assert recycling.kept_bytes == MIN_BYTES
    recycling.expire(seconds=0)
    assert recycling.kept_bytes == 0


def test_an_array_in_a_cycle_may_be_collected_during_a_lookup(recycling: Recycling) -> None:
    """The garbage collector may run anywhere, also while the lock is held."""
    cycle: list[Any] = [recycling.empty((COUNT,), FLOAT)]
    cycle.append(cycle)
    del cycle
    with recycling._lock:
        gc.collect()
    assert recycling.kept_bytes == 0
    assert recycling.empty((COUNT,), FLOAT).size == COUNT


def test_a_backend_recycles_on_request_and_reports_the_pools_size() -> None:
    backend = NumpyBackend(memory_limit=64 * MIN_BYTES)
    spec = TensorSpec((COUNT,), F32)
    backend.empty(spec)
    assert backend.memory().cached == 0
    backend.begin_recycling(8 * MIN_BYTES)
    array = backend.empty(spec)
    assert backend.owns_memory(array)
    del array
    assert backend.memory().cached == MIN_BYTES
    backend.expire_memory()
    assert backend.memory().cached == MIN_BYTES
    backend.memory_cleanup()
    assert backend.memory().cached == 0


@pytest.fixture
def backend() -> NumpyBackend:
    opened = NumpyBackend()
    opened.begin_recycling(8 * MIN_BYTES)
    return opened


@pytest.mark.parametrize("count", [COUNT, 9 * COUNT], ids=["pooled", "too long for the pool"])
@pytest.mark.parametrize("head", [0, 3, MAX_OTHER_BYTES])
def test_a_tensor_takes_over_the_memory_of_its_message(
    backend: NumpyBackend, count: int, head: int
) -> None:
    message = backend.arriving_memory(head + 4 * count)
    place = np.frombuffer(message, np.uint8).ctypes.data
    message[head:] = np.arange(count, dtype=np.float32).tobytes()
    array = backend.to_device(TensorData(message[head:], (count // 2, 2), F32))
    assert address(array) == (place if head % ALIGNMENT else place + head)
    assert address(array) % ALIGNMENT == 0
    assert backend.owns_memory(array)
    assert np.array_equal(array.reshape(-1), np.arange(count, dtype=np.float32))
    del message
    other = np.frombuffer(backend.arriving_memory(head + 4 * count), np.uint8)
    assert address(other) != place  # the array still has it


def test_elements_at_the_same_place_in_each_message_stay_where_they_arrived(
    backend: NumpyBackend,
) -> None:
    moved = []
    for number, head in enumerate([37, 37, 38, 38, 38, 0, 0]):
        message = backend.arriving_memory(head + 4 * COUNT)
        elements = message[head:]
        elements[:] = np.arange(number, number + COUNT, dtype=np.float32).tobytes()
        before = address(np.frombuffer(elements, np.uint8))
        array = backend.to_device(TensorData(elements, (COUNT,), F32))
        assert address(array) % ALIGNMENT == 0
        assert np.array_equal(array, np.arange(number, number + COUNT, dtype=np.float32))
        moved.append(address(array) != before)
        del message, elements, array
    assert moved == [True, False, True, False, False, True, False]
    blocks = 2  # the messages with a head of 38 bytes did not fit into the first block
    assert backend.memory().cached == blocks * (MIN_BYTES + ALIGNMENT) + 37 + 38


def test_messages_of_several_sizes_stay_where_they_arrived_when_they_come_again(
    backend: NumpyBackend,
) -> None:
    moved = []
    for head in [37, 38, 37, 38, 38, 37]:
        elements = backend.arriving_memory(head + 4 * COUNT)[head:]
        data = TensorData(elements, (COUNT,), F32)
        before = address(np.frombuffer(elements, np.uint8))
        copies = backend.copies_upload(data)
        array = backend.to_device(data)
        assert copies == (address(array) != before)
        moved.append(copies)
        del elements, data, array
    assert moved == [True, True, False, False, False, False]


def test_the_places_of_many_message_sizes_are_forgotten(backend: NumpyBackend) -> None:
    for head in range(2 * SIZES_KEPT):
        elements = backend.arriving_memory(head + 4 * COUNT)[head:]
        backend.to_device(TensorData(elements, (COUNT,), F32))
        del elements
    assert len(backend._recycling._shifts) <= SIZES_KEPT


def test_memory_of_a_message_returns_to_the_pool_with_its_tensor(backend: NumpyBackend) -> None:
    message = backend.arriving_memory(4 * COUNT)
    place = np.frombuffer(message, np.uint8).ctypes.data
    array = backend.to_device(TensorData(message, (COUNT,), F32))
    del message, array
    assert backend.memory().cached == MIN_BYTES + ALIGNMENT
    assert np.frombuffer(backend.arriving_memory(4 * COUNT), np.uint8).ctypes.data == place


def test_only_one_tensor_takes_over_a_message(backend: NumpyBackend) -> None:
    message = backend.arriving_memory(4 * COUNT)
    message[:] = np.arange(COUNT, dtype=np.float32).tobytes()
    first, second = (backend.to_device(TensorData(message, (COUNT,), F32)) for _ in range(2))
    first[:] = 0
    assert np.array_equal(second, np.arange(COUNT, dtype=np.float32))


def test_an_upload_beside_others_in_a_message_is_copied(backend: NumpyBackend) -> None:
    message = backend.arriving_memory(MAX_OTHER_BYTES + 1 + 4 * COUNT)
    elements = message[-4 * COUNT :]
    elements[:] = np.arange(COUNT, dtype=np.float32).tobytes()
    array = backend.to_device(TensorData(elements, (COUNT,), F32))
    message[:] = bytes(len(message))
    assert is_recycled(array)
    assert np.array_equal(array, np.arange(COUNT, dtype=np.float32))


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_memory_of_others_is_never_taken_over(
    backend: NumpyBackend, kind: type[bytes | bytearray]
) -> None:
    given = memoryview(kind(4 * COUNT))
    array = backend.to_device(TensorData(given, (COUNT,), F32))
    array[:] = 1
    assert not any(given)
    tensor = backend.empty(TensorSpec((COUNT,), F32))
    tensor[:] = 0
    backend.to_device(TensorData(memoryview(tensor).cast("B"), (COUNT,), F32))[:] = 1
    assert not tensor.any()
