"""A buffer for a long message that arrives in memory of its receiver."""

from __future__ import annotations

from typing import Final, final

from burn_remote_protocol.links.interface import PlacedFrame, Placement
from burn_remote_protocol.links.websocket.frames import unmask_in_place

__all__ = ["PlacedBuffer"]


def _always() -> bool:
    return True


@final
class PlacedBuffer:
    """The parts of a message, with the methods of a ``GrowingBuffer``.

    The mask is removed in the receiver's memory after each read, while the bytes are in the
    processor's cache. So a message is never copied.
    """

    __slots__ = ("_head", "_is_valid", "_rest", "_room", "_size")

    def __init__(self, head: bytes, first: bytes, placement: Placement) -> None:
        """Begin with the message's head and the ``first`` bytes that follow it."""
        self._head: Final = head
        self._rest, self._is_valid = placement
        self._room = memoryview(b"")
        self._size = 0  # without the head
        self.extend(first)

    def __len__(self) -> int:
        return len(self._head) + self._size

    def extend(self, part: bytes | memoryview) -> None:
        """Append bytes."""
        room = self.room(len(part))
        room[:] = part
        self._size += len(part)

    def room(self, most_bytes: int) -> memoryview:
        """Return memory for the next bytes, valid until the event loop runs something else."""
        if not self._is_valid():
            # The message is of no use any more, but the connection has to receive its rest.
            self._rest, self._is_valid = memoryview(bytearray(len(self._rest))), _always
        self._room = self._rest[self._size : self._size + most_bytes]
        return self._room

    def add(self, count: int, key: bytes) -> None:
        """Append the first ``count`` bytes that were stored in ``room``, and remove their mask."""
        unmask_in_place(self._room[:count], key)
        self._size += count

    def view(self) -> PlacedFrame:
        """Return the message, whose bytes have all arrived."""
        return PlacedFrame.of(self._head, self._rest)
