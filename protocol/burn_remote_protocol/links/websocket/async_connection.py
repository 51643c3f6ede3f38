"""How do messages reach a task without passing through the library's parser and queues?

``websockets`` keeps the handshake, control frames, closing and keepalive. Frames of data are cut
out of what the event loop received, and written to the transport in pieces, which saves half of
the server's time for a small message, and copies of large ones.
"""

from __future__ import annotations

import asyncio
import collections
from typing import Any, Final

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection
from websockets.protocol import Side, State

from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation
from burn_remote_protocol.links.interface import MESSAGE_TOO_BIG, PROTOCOL_ERROR, short_reason
from burn_remote_protocol.links.websocket.frame_parser import FrameCutter
from burn_remote_protocol.links.websocket.frame_writer import plain_header

__all__ = ["DirectClientConnection", "DirectConnection", "DirectServerConnection"]

# Messages received and not yet taken, above which the socket is not read. Larger: more memory per
# connection, times the size of a message. Smaller: reading is paused and resumed more often.
RECEIVE_QUEUE_LENGTH: Final = 8

# What may come before the handshake is over; a peer that keeps to the protocol sends nothing.
EARLY_BYTES: Final = 2**16

# Up to this size a piece is written together with the one before: a copy costs less than a vector.
JOINED_BYTES: Final = 2**12

_HEADERS_END: Final = b"\r\n\r\n"


class DirectConnection(Connection):
    """What the connections of servers and of clients have in common."""

    def __init__(self, *arguments: Any, max_message_bytes: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._masks: Final = self.protocol.side is Side.CLIENT
        self._cutter: Final = FrameCutter(max_message_bytes, masked=not self._masks)
        # The last bytes of the handshake so far; nothing once its end was seen.
        self._handshake_tail: bytes | None = b""
        self._messages: Final[collections.deque[bytes]] = collections.deque()
        self.arrived_bytes = 0  # also of messages that are not whole
        self._written_bytes = 0
        self._violation: ProtocolViolation | None = None  # to be raised once
        self._deaf = False  # what comes after it has no meaning; the library discards it
        self._closing = False  # at this end's wish
        self._receiver: asyncio.Future[None] | None = None
        self.reading_paused = False  # there is more than was taken
        self._senders: Final[set[asyncio.Future[None]]] = set()
        self._writing_paused = False

    @property
    def departed_bytes(self) -> int:
        """How much of what was sent the operating system has taken; pings count as not sent."""
        return self._written_bytes - self.transport.get_write_buffer_size()

    @property
    def is_within_message(self) -> bool:
        """Whether a part of a message has arrived."""
        return self._cutter.is_within_message

    async def receive_message(self) -> bytes:
        """Return the next message. Raises ``ConnectionClosed``, ``ProtocolViolation``."""
        if self._cutter.arrived:  # came before the connection was open
            self._cut()
        while not self._messages:
            if self._violation is not None:
                violation, self._violation = self._violation, None
                raise violation
            if self.state is not State.OPEN:
                await super().close()  # bounds how long the peer may take to hang up
                await super().recv()  # raises the reason
            self._receiver = self.loop.create_future()
            try:
                await self._receiver
            finally:
                self._receiver = None
        message = self.take_message()
        assert message is not None  # the loop above ended
        return message

    def take_message(self) -> bytes | None:
        """Return the next message if it is there already."""
        if not self._messages:
            return None
        message = self._messages.popleft()
        if self.reading_paused and len(self._messages) <= RECEIVE_QUEUE_LENGTH // 2:
            self._resume_reading()
        return message

    def limit_messages(self, max_message_bytes: int) -> None:
        """Take messages up to another size from now on."""
        self._cutter.max_message_bytes = max_message_bytes

    async def send_message(self, *pieces: bytes | memoryview) -> None:
        """Send one message in pieces. Raises ``ConnectionClosed``.

        The transport may hold on to large pieces until the peer took them.
        """
        if self._masks or self.state is not State.OPEN or self.transport.is_closing():
            await super().send(b"".join(pieces))
            return
        size = sum(map(len, pieces))
        header = plain_header(size)
        self._written_bytes += len(header) + size
        joined: list[bytes | memoryview] = [header]
        for piece in pieces:
            if len(piece) <= JOINED_BYTES:
                joined.append(piece)
                continue
            self.transport.write(b"".join(joined))
            self.transport.write(piece)
            joined = []
        if joined:
            self.transport.write(b"".join(joined))
        if self._writing_paused:
            await self._written()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Perform the closing handshake, where the peer has not begun it; then what was not
        received is dropped."""
        if self.state is State.OPEN:
            self._closing = True
            self._messages.clear()
        self._resume_reading()
        await super().close(code, reason)

    # What the transport calls.

    def data_received(self, data: bytes) -> None:
        if self._handshake_tail is not None:
            data = self._shake_hands(data, self._handshake_tail)
            if not data:
                return
        if self._deaf:
            super().data_received(data)
            return
        self.arrived_bytes += len(data)
        self._cutter.arrived.append(data)
        if self.state is not State.CONNECTING:
            self._cut()
        elif sum(map(len, self._cutter.arrived)) > EARLY_BYTES:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._wake_receiver()
        self._wake_senders()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing_paused = True

    def resume_writing(self) -> None:
        super().resume_writing()
        self._writing_paused = False
        self._wake_senders()

    def _shake_hands(self, data: bytes, tail: bytes) -> bytes:
        """Give the library its part of the stream; return what follows."""
        seen = tail + data
        end = seen.find(_HEADERS_END)
        if end < 0:
            self._handshake_tail = seen[1 - len(_HEADERS_END) :]
            super().data_received(data)
            return b""
        self._handshake_tail = None
        split = end + len(_HEADERS_END) - len(tail)
        super().data_received(data[:split])
        return data[split:]

    def _cut(self) -> None:
        try:
            while True:
                message = self._cutter.take()
                if message is not None:
                    self._messages.append(message)
                elif self._cutter.control:
                    super().data_received(self._cutter.control.popleft())
                else:
                    break
        except ProtocolViolation as error:
            self._refuse(error)
        if self._closing:
            self._messages.clear()
        elif len(self._messages) > RECEIVE_QUEUE_LENGTH and not self.reading_paused:
            self.reading_paused = True
            self.transport.pause_reading()
        self._wake_receiver()

    def _refuse(self, violation: ProtocolViolation) -> None:
        self._violation = violation
        self._deaf = True
        self._cutter.discard()
        too_big = isinstance(violation, LimitExceeded)
        code = MESSAGE_TOO_BIG if too_big else PROTOCOL_ERROR
        self.protocol.fail(code, short_reason(str(violation)))
        super().data_received(b"")  # sends what there is to say

    def _resume_reading(self) -> None:
        if self.reading_paused:
            self.reading_paused = False
            self.transport.resume_reading()

    def _wake_receiver(self) -> None:
        if self._receiver is not None and not self._receiver.done():
            self._receiver.set_result(None)

    async def _written(self) -> None:
        """Wait until the transport holds little again. Raises ``ConnectionClosed``."""
        while self._writing_paused:
            if self.state is not State.OPEN:
                await super().send(b"")  # raises the reason
            waiter = self.loop.create_future()
            self._senders.add(waiter)
            try:
                await waiter
            finally:
                self._senders.discard(waiter)

    def _wake_senders(self) -> None:
        for waiter in self._senders:
            if not waiter.done():
                waiter.set_result(None)


class DirectServerConnection(DirectConnection, ServerConnection):
    """For ``create_connection`` of ``websockets.asyncio.server.serve``."""


class DirectClientConnection(DirectConnection, ClientConnection):
    """For ``create_connection`` of ``websockets.asyncio.client.connect``."""
