"""Freed memory serves the next block of its size, and only after it was freed."""

from __future__ import annotations

import errno
import mmap
import os

import numpy as np
import pytest

import burn_remote as br
from burn_remote.sessions.native import reused_memory
from burn_remote.sessions.native.native_session import NativeSession
from burn_remote.sessions.native.reused_memory import ReusedMemory
from burn_remote_protocol.dialects.native import LARGE_CHUNK_BYTES, UPLOAD_CHUNK_BYTES
from support.native_end import NativeEnd
from support.servers import server
from support.waiting import PATIENCE_SECONDS

MIN_BYTES, MAX_BYTES = 2**20, 2**23
SIZE = 2 * MIN_BYTES


def address(content: memoryview) -> int:
    return np.frombuffer(content, np.uint8).ctypes.data


def test_freed_memory_serves_the_next_block_of_its_size() -> None:
    memory = ReusedMemory(MIN_BYTES, MAX_BYTES, 1)
    content = memory.allocate(SIZE)
    first = address(content)
    assert memory.kept_bytes == 0
    del content
    assert memory.kept_bytes == SIZE
    assert address(memory.allocate(SIZE)) == first


def test_memory_is_not_reused_while_a_view_of_it_lives() -> None:
    memory = ReusedMemory(MIN_BYTES, MAX_BYTES, 1)
    view = np.frombuffer(memory.allocate(SIZE), np.float32).reshape(-1, 2)[5:, 1]
    view[:] = 7
    other = np.frombuffer(memory.allocate(SIZE), np.float32)
    assert not np.shares_memory(view, other)
    other[:] = 1
    assert (view == 7).all()
    del view
    assert memory.kept_bytes == SIZE


def test_memory_of_another_size_is_freed_instead_of_reused() -> None:
    memory = ReusedMemory(MIN_BYTES, MAX_BYTES, 1)
    memory.allocate(SIZE)
    content = memory.allocate(SIZE + 1)
    assert len(content) == SIZE + 1
    assert memory.kept_bytes == 0


def test_only_the_last_freed_block_is_kept() -> None:
    memory = ReusedMemory(MIN_BYTES, MAX_BYTES, 1)
    first, second = memory.allocate(SIZE), memory.allocate(SIZE)
    last = address(second)
    del first
    del second
    assert memory.kept_bytes == SIZE
    assert address(memory.allocate(SIZE)) == last


@pytest.mark.parametrize("size", [0, 1, MIN_BYTES - 1, MAX_BYTES + 1])
def test_small_and_huge_blocks_are_not_kept(size: int) -> None:
    memory = ReusedMemory(MIN_BYTES, MAX_BYTES, 1)
    assert len(memory.allocate(size)) == size
    assert memory.kept_bytes == 0


def test_a_block_is_freed_after_an_interval_without_allocations() -> None:
    memory = ReusedMemory(MIN_BYTES, MAX_BYTES, 1)
    memory.allocate(SIZE)
    memory.expire()
    assert memory.kept_bytes == SIZE, "memory was allocated since the last call"
    memory.expire()
    assert memory.kept_bytes == 0


def test_nothing_is_kept_after_the_end() -> None:
    memory = ReusedMemory(MIN_BYTES, MAX_BYTES, 1)
    memory.allocate(SIZE)
    content = memory.allocate(SIZE)
    memory.close()
    assert memory.kept_bytes == 0
    del content
    assert memory.kept_bytes == 0


def test_several_blocks_are_kept_up_to_the_most() -> None:
    memory = ReusedMemory(MIN_BYTES, MAX_BYTES, 2)
    contents = [memory.allocate(SIZE) for _ in range(3)]
    del contents
    assert memory.kept_bytes == 2 * SIZE


def test_a_block_in_huge_pages_is_kept_like_others() -> None:
    memory = ReusedMemory(SIZE + 1, SIZE + 1, 1, in_huge_pages=True)
    content = memory.allocate(SIZE + 1)
    first = address(content)
    assert len(content) == SIZE + 1
    content[-1] = 7
    del content
    assert memory.kept_bytes == SIZE + 1
    assert address(memory.allocate(SIZE + 1)) == first


def test_a_lack_of_memory_for_huge_pages_is_a_memory_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(size: int) -> mmap.mmap:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(reused_memory, "mapped", refuse)
    memory = ReusedMemory(SIZE, SIZE, 1, in_huge_pages=True)
    with pytest.raises(MemoryError, match=f"no memory for {SIZE:,} bytes"):
        memory.allocate(SIZE)


def test_results_that_live_at_the_same_time_share_no_memory() -> None:
    with server() as running, br.RemoteDevice(running.address) as device:
        tensors = [br.full((SIZE // 4,), float(value), device=device) for value in range(3)]
        tensors[0].numpy()  # freed, so its memory serves one of the next
        results = [tensor.numpy() for tensor in tensors]
        for value, result in enumerate(results):
            assert (result == value).all()
            result[:] = -1  # writable, and no other result changes


def test_a_session_frees_its_blocks_after_a_keepalive_interval_without_use() -> None:
    end = NativeEnd()
    end.limits = {"chunk_bytes": LARGE_CHUNK_BYTES}
    session = NativeSession(end.dial, token=None, timeout_seconds=PATIENCE_SECONDS)
    for memory, size in (
        (session._router.memory, SIZE),
        (session._connection.copies, UPLOAD_CHUNK_BYTES),
        (session._connection.large_copies, LARGE_CHUNK_BYTES),
    ):
        memory.allocate(size)
        for expected in (size, 0):
            session._connection._beat()
            assert memory.kept_bytes == expected
        memory.allocate(size)
    session.close()
    assert session._router.memory.kept_bytes == session._connection.copies.kept_bytes == 0
    assert session._connection.large_copies.kept_bytes == 0
