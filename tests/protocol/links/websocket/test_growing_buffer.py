"""A growing buffer holds what was appended, and copies nothing when it grows."""

from __future__ import annotations

import mmap
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol import mapped_memory
from burn_remote_protocol.links.websocket import growing_buffer
from burn_remote_protocol.links.websocket.frames import apply_mask, unmask_in_place
from burn_remote_protocol.links.websocket.growing_buffer import (
    GROWING_BYTES,
    MOVED_AT_ONCE,
    GrowingBuffer,
)


class _Fixed(mmap.mmap):
    """Memory that the system cannot resize."""

    def resize(self, newsize: int) -> None:
        raise SystemError("mmap: resizing not available--no mremap()")


@pytest.mark.parametrize("kind", [mmap.mmap, _Fixed])
@given(first=st.binary(), parts=st.lists(st.binary(max_size=5000), max_size=20))
def test_it_holds_the_parts_in_their_order(
    kind: type[mmap.mmap], first: bytes, parts: list[bytes]
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(mmap, "mmap", kind)
        buffer = GrowingBuffer(first)
        for part in parts:
            buffer.extend(memoryview(part))
    whole = first + b"".join(parts)
    assert len(buffer) == len(whole)
    assert bytes(buffer.view()) == whole


@pytest.mark.skipif(sys.platform != "linux", reason="the system moves no pages")
def test_linux_grows_it_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    map_memory = mapped_memory.mapped

    def mapped(size: int) -> Any:
        made.append(size)
        return map_memory(size)

    monkeypatch.setattr(growing_buffer, "mapped", mapped)
    buffer = GrowingBuffer(b"x")
    for _ in range(100):
        buffer.extend(bytes(10_000))
    assert len(made) == 1


def test_a_view_outlives_its_buffer() -> None:
    view = GrowingBuffer(b"some bytes").view()
    assert view.tobytes() == b"some bytes"


@given(st.binary(max_size=100), st.binary(min_size=4, max_size=4), st.integers(0, 9))
def test_removing_a_mask_in_place_gives_what_masking_a_copy_gives(
    payload: bytes, key: bytes, start: int
) -> None:
    memory = memoryview(bytearray(start) + payload)
    unmask_in_place(memory[start:], key)
    assert bytes(memory) == bytes(start) + apply_mask(payload, key)


@pytest.mark.parametrize("announced", [10_000, 3 * GROWING_BYTES])
def test_bytes_that_were_stored_in_its_room_are_appended(announced: int) -> None:
    message = bytes(range(256)) * (3 * GROWING_BYTES // 256)
    buffer = GrowingBuffer(message[:100], announced)
    while len(buffer) < len(message):
        room = buffer.room(70_000)
        count = min(len(room), len(message) - len(buffer))
        room[:count] = message[len(buffer) : len(buffer) + count]
        buffer.add(count, b"\0\0\0\0")
    assert buffer.view() == message


def test_memory_that_was_only_announced_is_taken_when_enough_has_arrived() -> None:
    taken: list[int] = []

    def allocate(size: int) -> memoryview:
        taken.append(size)
        return memoryview(bytearray(size))

    buffer = GrowingBuffer(b"", 4 * GROWING_BYTES, allocate)
    buffer.extend(bytes(GROWING_BYTES))
    assert not taken
    buffer.extend(b"x")
    buffer.extend(bytes(GROWING_BYTES))
    assert taken == [4 * GROWING_BYTES]
    assert bytes(buffer.view()) == bytes(GROWING_BYTES) + b"x" + bytes(GROWING_BYTES)


@pytest.mark.parametrize("is_allocated", [False, True], ids=["mapped", "allocated"])
def test_a_claim_reserves_at_most_eight_times_what_has_arrived(
    is_allocated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived, taken = 0, [GROWING_BYTES]
    grow = mmap.mmap.resize

    class Counted(mmap.mmap):
        def __new__(cls, number: int, size: int, **options: Any) -> Any:
            note(size)
            return super().__new__(cls, number, size, **options)

        def resize(self, newsize: int) -> None:
            note(newsize)
            grow(self, newsize)

    def note(size: int) -> None:
        assert size <= 8 * (arrived + len(part)) + GROWING_BYTES
        taken.append(size)

    def allocate(size: int) -> memoryview:
        note(size)
        return memoryview(bytearray(size))

    monkeypatch.setattr(mmap, "mmap", Counted)
    part = bytes(range(256)) * 2**9
    claim = 100 * GROWING_BYTES
    buffer = GrowingBuffer(b"", claim, allocate if is_allocated else None)
    while arrived < claim:
        buffer.extend(part)
        arrived += len(part)
    assert taken[-1] == claim
    assert len(taken) <= 5  # growth is geometric
    assert buffer.view()[-len(part) :] == buffer.view()[: len(part)] == part


def test_earlier_bytes_move_to_larger_memory_in_portions() -> None:
    taken: list[np.ndarray[Any, Any]] = []

    def allocate(size: int) -> memoryview:
        taken.append(np.zeros(size, np.uint8))
        return taken[0].data

    claim = 32 * GROWING_BYTES
    buffer = GrowingBuffer(b"", claim, allocate)
    while not taken:
        buffer.extend(b"\1" * 1000)
    arrived = len(buffer)
    assert arrived > 5 * MOVED_AT_ONCE
    before = int(taken[0].sum())
    assert before <= MOVED_AT_ONCE + 1000
    for _ in range(7):
        room = buffer.room(1000)
        room[:] = b"\1" * len(room)
        buffer.add(len(room), b"\0\0\0\0")
        arrived += len(room)
        written = int(taken[0].sum())
        assert written - before <= MOVED_AT_ONCE + len(room)
        before = written
    view = buffer.view()
    assert bytes(view) == b"\1" * arrived
