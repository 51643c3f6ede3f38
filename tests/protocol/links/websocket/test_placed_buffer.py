"""A placed buffer stores a message in memory of its receiver while that is valid."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.links.interface import Placement
from burn_remote_protocol.links.websocket.frames import apply_mask
from burn_remote_protocol.links.websocket.placed_buffer import PlacedBuffer

HEAD = b"head"
KEY = b"\x01\x82\x43\xf4"


def always() -> bool:
    return True


@given(first=st.binary(), parts=st.lists(st.binary(max_size=500), max_size=20))
def test_the_receiver_s_memory_has_the_parts_without_their_masks(
    first: bytes, parts: list[bytes]
) -> None:
    whole = first + b"".join(parts)
    memory = memoryview(bytearray(len(whole)))
    buffer = PlacedBuffer(HEAD, first, Placement(memory, always))
    for part in parts:
        room = buffer.room(len(part))
        room[:] = apply_mask(part, KEY)
        buffer.add(len(part), KEY)
    assert len(buffer) == len(HEAD) + len(whole)
    placed = buffer.view()
    assert (placed, bytes(placed.rest)) == (HEAD, whole)
    assert placed.rest.obj is memory.obj
    assert len(placed) == len(HEAD)


def test_nothing_more_is_stored_in_memory_that_is_no_longer_valid() -> None:
    is_valid = True
    memory = memoryview(bytearray(6))
    buffer = PlacedBuffer(HEAD, b"ab", Placement(memory, lambda: is_valid))
    is_valid = False
    buffer.extend(b"cd")
    buffer.room(2)[:] = apply_mask(b"ef", KEY)
    buffer.add(2, KEY)
    assert bytes(memory) == b"ab\0\0\0\0"
    assert len(buffer.view().rest) == 6


def test_the_rest_of_a_message_without_a_place_is_stored_in_memory_allocated_once() -> None:
    buffer = PlacedBuffer(HEAD, b"", Placement(memoryview(bytearray(6)), lambda: False))
    first, second = buffer.room(2), buffer.room(2)
    assert first.obj is second.obj
