"""Uploads fill whole blocks of host memory, by copies or in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_server.backends.cupy.host_blocks import HostBlocks

BLOCK_BYTES = 8


class Blocks(HostBlocks):
    """Blocks that are kept."""

    def __init__(self, total_bytes: int) -> None:
        super().__init__(total_bytes, BLOCK_BYTES)
        self.sent: list[bytes] = []
        self.has_memory = True

    def allocate(self, size: int) -> Any:
        if not self.has_memory:
            raise MemoryError
        return np.zeros(size, np.uint8)

    def send(self, block: Any) -> None:
        self.sent.append(block.tobytes())


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=20), st.booleans()), max_size=10))
def test_blocks_have_all_bytes_in_order_whether_copied_or_stored_in_place(
    parts: list[tuple[bytes, bool]],
) -> None:
    whole = b"".join(part for part, _ in parts)
    blocks = Blocks(len(whole))
    for part, in_place in parts:
        room = blocks.room(len(part)) if in_place else None
        if room is None:
            blocks.write(part)
        else:
            room[:] = part
            blocks.advance(len(part))
    expected = [whole[at : at + BLOCK_BYTES] for at in range(0, len(whole), BLOCK_BYTES)]
    assert blocks.sent == expected


def test_there_is_no_room_for_bytes_that_do_not_fit_into_one_block() -> None:
    blocks = Blocks(12)
    assert blocks.room(9) is None
    blocks.write(bytes(5))
    assert blocks.room(4) is None
    room = blocks.room(3)
    assert room is not None
    assert len(room) == 3


def test_bytes_stored_in_room_that_was_not_used_are_written_over() -> None:
    blocks = Blocks(4)
    room = blocks.room(4)
    assert room is not None
    room[:] = b"lost"
    blocks.write(b"sent")
    assert blocks.sent == [b"sent"]


def test_an_upload_without_memory_for_a_block_continues_when_there_is_some() -> None:
    blocks = Blocks(3)
    blocks.has_memory = False
    with pytest.raises(MemoryError):
        blocks.room(3)
    blocks.has_memory = True
    blocks.write(b"abc")
    assert blocks.sent == [b"abc"]
