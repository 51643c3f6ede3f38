"""Receiving large messages straight into the caller's memory.

A ``FrameParser`` returns each message as a new bytes object. This reader is for a link that carries
bulk data whose place is known: it reads the head of a message, asks where the rest belongs, and has
the operating system store it there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from burn_remote_protocol.errors import ConnectionLost, LimitExceeded, ProtocolViolation
from burn_remote_protocol.links.interface import Place
from burn_remote_protocol.links.websocket.frames import (
    BINARY,
    CLOSE,
    CONTROL_BIT,
    FINAL_BIT,
    LENGTH_16,
    LENGTH_64,
    MASK_BIT,
    OPCODE_BITS,
)
from burn_remote_protocol.links.websocket.socket_streams import SocketStream, WatchResult
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler

__all__ = ["BulkReader"]

# Read at once: the header of a large frame and the head of its message, so that the rest is read
# straight into its place. Bytes of the rest that are read too early are copied.
HEADERS_BYTES: Final = 48

# The first bytes of an unmasked message of 64 KiB or more, whose length follows in 64 bits.
_LARGE: Final = bytes((FINAL_BIT | BINARY, LENGTH_64))
_HEADER_64_BYTES: Final = 10


class BulkReader:
    """The messages of a server's link, each in one fragment. One thread receives.

    Control frames other than a close frame are ignored: the other end sends no pings.
    """

    def __init__(self, stream: SocketStream, early: bytes, address: str) -> None:
        """Continue to read a stream; ``early`` are bytes that were read before."""
        self._stream: Final = stream
        self._early = early
        self._address: Final = address
        self._room: Final = memoryview(bytearray(HEADERS_BYTES))

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until a message or the end may be received; see ``BulkSource``."""
        if self._early:
            return True
        return self._stream.watch(timeout_seconds) is WatchResult.READABLE

    def wake(self) -> None:
        """Make the current ``wait`` return, or the next one."""
        self._stream.wake()

    def has_ended(self) -> bool:
        """Whether the other end has stopped sending; see ``BulkSource``."""
        return self._stream.has_ended()

    def receive(
        self, head_bytes: int, place: Place, check: Callable[[], None]
    ) -> tuple[bytes, memoryview]:
        """Receive one message; see ``BulkSource``."""
        head, size = self._read_head(head_bytes, check)
        rest = place(head, size)
        if len(rest) != size:
            raise LimitExceeded(
                "bytes in one message", seen=len(head) + size, allowed=len(head) + len(rest)
            )
        self._fill(rest, check)
        return head, rest

    def _read_head(self, head_bytes: int, check: Callable[[], None]) -> tuple[bytes, int]:
        """Read up to the head of the next message; return it and how many bytes follow it."""
        if not self._early:
            self._early = bytes(self._room[: self._receive(self._room, check, whole=False)])
        early = self._early
        # The header and the head of a large message usually arrive together.
        start = _HEADER_64_BYTES + head_bytes
        if len(early) >= start and early.startswith(_LARGE):
            length = int.from_bytes(early[2:_HEADER_64_BYTES], "big")
            if length >= head_bytes:
                self._early = early[start:]
                return early[_HEADER_64_BYTES:start], length - head_bytes
        while True:
            first, length = self._read_header(check)
            if first & CONTROL_BIT:
                body = self._read(length, check)
                if first & OPCODE_BITS == CLOSE:
                    reason = body[2:].decode(errors="replace")
                    raise ConnectionLost(f"{self._address} closed the connection: {reason}")
                continue
            if first != FINAL_BIT | BINARY:
                raise ProtocolViolation(
                    f"a bulk message begins with 0x{first:02x}; it must be binary and one fragment"
                )
            head = self._read(min(length, head_bytes), check)
            return head, length - len(head)

    def _read_header(self, check: Callable[[], None]) -> tuple[int, int]:
        first, length = self._read(2, check)
        if length & MASK_BIT:
            raise ProtocolViolation("a server's frames must not be masked")
        if first & CONTROL_BIT and length >= LENGTH_16:
            raise ProtocolViolation(
                f"a control frame has a length field of {length}, above {LENGTH_16 - 1}"
            )
        if length >= LENGTH_16:
            extra = 2 if length == LENGTH_16 else 8
            length = int.from_bytes(self._read(extra, check), "big")
        return first, length

    def _read(self, size: int, check: Callable[[], None]) -> bytes:
        while len(self._early) < size:
            self._early += self._room[: self._receive(self._room, check, whole=False)]
        taken, self._early = self._early[:size], self._early[size:]
        return taken

    def _fill(self, buffer: memoryview, check: Callable[[], None]) -> None:
        at = min(len(self._early), len(buffer))
        if at:
            buffer[:at] = self._early[:at]
            self._early = self._early[at:]
        while at < len(buffer):
            at += self._receive(buffer[at:], check, whole=True)

    def _receive(self, buffer: memoryview, check: Callable[[], None], *, whole: bool) -> int:
        """Receive bytes; return how many."""
        while True:
            try:
                count = self._stream.read_into(buffer, whole=whole)
            except OSError as error:
                pass_on_of_signal_handler(error)
                reason = error.strerror or error
                raise ConnectionLost(
                    f"the connection to {self._address} broke: {reason}"
                ) from error
            if count == 0:
                raise ConnectionLost(f"{self._address} hung up")
            if count is not None:
                return count
            check()
