"""Frames lack room if their contents exceed the memory pool, or take a large share of it."""

from __future__ import annotations

import pytest

from burn_remote_protocol.dialects.bounded_unpacking import unpacked_bytes
from burn_remote_protocol.errors import SessionLost
from burn_remote_server.access.quota import Pool
from burn_remote_server.execution.frame_memory import (
    DECODED_SHARES,
    LARGE_PART_BYTES,
    PART_BYTES,
    SMALL_PART_BYTES,
    FrameMemory,
)

FRAME = b"\x91" * 2000


def memory(pool: Pool) -> FrameMemory:
    return FrameMemory(pool, lambda: False, lambda: None)


@pytest.mark.parametrize("missing", [0, 1])
def test_only_a_frame_that_exceeds_memory_when_it_is_decoded_lacks_room(missing: int) -> None:
    size = unpacked_bytes(FRAME)
    pool = Pool(DECODED_SHARES * size)
    pool.add(pool.max_bytes - size + missing)
    assert memory(pool).lacks_room(FRAME) == bool(missing)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_frame_whose_contents_are_a_large_share_of_memory_lacks_room(missing: int) -> None:
    pool = Pool(DECODED_SHARES * (unpacked_bytes(FRAME) - missing))
    assert memory(pool).lacks_room(FRAME) == bool(missing)


def test_a_short_frame_never_lacks_room() -> None:
    assert not memory(Pool(0)).lacks_room(b"\x91" * PART_BYTES)


def test_a_frame_counts_while_it_is_decoded() -> None:
    pool = Pool(2**20)
    with memory(pool).counted(FRAME):
        assert pool.taken == unpacked_bytes(FRAME)
    assert pool.taken == 0


@pytest.mark.parametrize("size", [SMALL_PART_BYTES, SMALL_PART_BYTES + 1])
def test_a_part_counts_while_it_has_room(size: int) -> None:
    pool = Pool(size)
    with memory(pool).room(size) as is_given:
        assert is_given
        assert pool.taken == size
    assert pool.taken == 0


def test_a_part_that_is_too_large_to_exceed_the_pool_is_refused() -> None:
    frames = memory(pool := Pool(2**20))
    with pytest.raises(SessionLost, match="a task did not fit"), frames.room(LARGE_PART_BYTES + 1):
        pass
    assert pool.taken == 0
    assert not frames.is_awaited
