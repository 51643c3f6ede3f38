"""The memory of a freed result serves the next one of its size, and only after it was freed."""

from __future__ import annotations

import numpy as np
import pytest

import burn_remote as br
from burn_remote.sessions.native.native_session import NativeSession
from burn_remote.sessions.native.result_memory import MAX_BYTES, MIN_BYTES, ResultMemory
from support.native_end import NativeEnd
from support.servers import server
from support.waiting import PATIENCE_SECONDS

SIZE = 2 * MIN_BYTES


def address(content: memoryview) -> int:
    return np.frombuffer(content, np.uint8).ctypes.data


def test_the_memory_of_a_freed_result_serves_the_next_one_of_its_size() -> None:
    memory = ResultMemory()
    content = memory.allocate(SIZE)
    first = address(content)
    assert memory.kept_bytes == 0
    del content
    assert memory.kept_bytes == SIZE
    assert address(memory.allocate(SIZE)) == first


def test_memory_is_not_reused_while_a_view_of_the_result_lives() -> None:
    memory = ResultMemory()
    view = np.frombuffer(memory.allocate(SIZE), np.float32).reshape(-1, 2)[5:, 1]
    view[:] = 7
    other = np.frombuffer(memory.allocate(SIZE), np.float32)
    assert not np.shares_memory(view, other)
    other[:] = 1
    assert (view == 7).all()
    del view
    assert memory.kept_bytes == SIZE


def test_memory_of_another_size_is_freed_instead_of_reused() -> None:
    memory = ResultMemory()
    memory.allocate(SIZE)
    content = memory.allocate(SIZE + 1)
    assert len(content) == SIZE + 1
    assert memory.kept_bytes == 0


def test_only_the_last_freed_block_is_kept() -> None:
    memory = ResultMemory()
    first, second = memory.allocate(SIZE), memory.allocate(SIZE)
    last = address(second)
    del first
    del second
    assert memory.kept_bytes == SIZE
    assert address(memory.allocate(SIZE)) == last


@pytest.mark.parametrize("size", [0, 1, MIN_BYTES - 1, MAX_BYTES + 1])
def test_small_and_huge_blocks_are_not_kept(size: int) -> None:
    memory = ResultMemory()
    assert len(memory.allocate(size)) == size
    assert memory.kept_bytes == 0


def test_a_block_is_freed_after_an_interval_without_results() -> None:
    memory = ResultMemory()
    memory.allocate(SIZE)
    memory.expire()
    assert memory.kept_bytes == SIZE, "a result was allocated since the last call"
    memory.expire()
    assert memory.kept_bytes == 0


def test_nothing_is_kept_after_the_end() -> None:
    memory = ResultMemory()
    memory.allocate(SIZE)
    content = memory.allocate(SIZE)
    memory.close()
    assert memory.kept_bytes == 0
    del content
    assert memory.kept_bytes == 0


def test_results_that_live_at_the_same_time_share_no_memory() -> None:
    with server() as running, br.RemoteDevice(running.address) as device:
        tensors = [br.full((SIZE // 4,), float(value), device=device) for value in range(3)]
        tensors[0].numpy()  # freed, so its memory serves one of the next
        results = [tensor.numpy() for tensor in tensors]
        for value, result in enumerate(results):
            assert (result == value).all()
            result[:] = -1  # writable, and no other result changes


def test_a_session_frees_its_block_after_a_keepalive_interval_without_results() -> None:
    session = NativeSession(NativeEnd().dial, token=None, timeout_seconds=PATIENCE_SECONDS)
    memory = session._router.memory
    memory.allocate(SIZE)
    for expected in (SIZE, 0):
        session._connection._beat()
        assert memory.kept_bytes == expected
    memory.allocate(SIZE)
    session.close()
    assert memory.kept_bytes == 0
