"""A connection of ``websockets.asyncio`` that writes messages directly to the transport."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from websockets.asyncio.connection import Connection
from websockets.protocol import Side, State

from burn_remote_protocol.links.websocket.frames import BINARY, FINAL_BIT, frame_header
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler

__all__ = ["SendingConnection"]

# The buffers of a message of at most this size are joined: a copy costs less than a longer write.
JOINED_BYTES: Final = 2**12


class SendingConnection(Connection):
    """The sending side of a server's and a client's connection."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._masks: Final = self.protocol.side is Side.CLIENT
        self._written_bytes = 0
        self._writing_paused = False
        self._senders: Final[set[asyncio.Future[None]]] = set()
        # The descriptor of the socket, while this class may write to it; see ``write_at_once``.
        self._descriptor: int | None = None
        # A ``FrameSender``'s thread or ``send_slices`` writes frames: nothing else may be written.
        self.sends_elsewhere = False
        self.sends_slices = False  # ``send_slices`` is the one that does

    @property
    def sent_bytes(self) -> int:
        """Bytes of messages that the operating system has accepted; pings do not count."""
        return self._written_bytes - self.transport.get_write_buffer_size()

    @property
    def sends_masked(self) -> bool:
        """Whether this end is a client's, whose frames have a mask."""
        return self._masks

    async def send_message(self, *buffers: bytes | memoryview) -> None:
        """Send several buffers as one message. Raises ``ConnectionClosed``.

        The transport does not copy large buffers: they must not change while it may refer to them,
        which it does until the operating system has accepted them.
        """
        if self._masks or self.state is not State.OPEN or self.transport.is_closing():
            await super().send(b"".join(buffers))
            return
        self.write_message(*buffers)
        if self._writing_paused:
            await self._written()

    async def send_fragments(self, fragments: AsyncIterator[memoryview]) -> None:
        """Send one message in fragments. Raises ``ConnectionClosed``."""

        async def counted() -> AsyncIterator[memoryview]:
            async for fragment in fragments:
                self._written_bytes += len(fragment)
                yield fragment

        await super().send(counted())

    async def send_slices(self, buffers: Sequence[bytes | memoryview], slice_bytes: int) -> None:
        """Send several buffers as one frame, of which the transport gets one slice at a time.

        Nothing else may be sent meanwhile. If the call ends before the frame is complete, the
        connection is aborted. A client's frames have a mask, and are not sliced. Raises
        ``ConnectionClosed``.
        """
        if self._masks or self.state is not State.OPEN or self.transport.is_closing():
            await super().send(b"".join(buffers))
            return
        parts = [memoryview(frame_header(FINAL_BIT | BINARY, sum(map(len, buffers))))]
        for buffer in buffers:
            view = memoryview(buffer)
            parts += [view[at : at + slice_bytes] for at in range(0, len(view), slice_bytes)]
        self.sends_elsewhere = self.sends_slices = True
        try:
            while parts:
                joined, size = [], 0
                while parts and size < slice_bytes:
                    joined.append(parts.pop(0))
                    size += len(joined[-1])
                self._written_bytes += size
                self.transport.writelines(joined)
                await (self._written() if self._writing_paused else asyncio.sleep(0))
                if parts and (self.state is not State.OPEN or self.transport.is_closing()):
                    await super().send(b"")  # raises the reason
        finally:
            self.sends_elsewhere = self.sends_slices = False
            if parts:
                self.transport.abort()
        self.resume_control_frames()

    def resume_control_frames(self) -> None:
        """Send the control frames that had to wait for the end of a frame."""

    def is_writable(self) -> bool:
        """Whether ``write_message`` may be called, and the transport's buffer has room."""
        return not (
            self._masks
            or self._writing_paused
            or self.protocol.state is not State.OPEN
            or self.transport.is_closing()
        )

    async def drained(self) -> None:
        """Wait until the operating system has accepted all bytes."""
        while self.transport.get_write_buffer_size() and not self.transport.is_closing():  # noqa: ASYNC110
            await asyncio.sleep(0.001)  # asyncio signals only that its buffer is below a limit

    def write_message(self, *buffers: bytes | memoryview) -> None:
        """Pass one message to the transport, under the rules of ``send_message``.

        The connection must be open and its end a server's, whose frames have no mask.
        """
        size = len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))
        header = frame_header(FINAL_BIT | BINARY, size)
        self._written_bytes += len(header) + size
        if size <= JOINED_BYTES:
            self.transport.write(b"".join((header, *buffers)))
        else:
            # One system call for header and payload; two would also wake the peer up twice. uvloop,
            # and asyncio from Python 3.12 on, do not join the buffers.
            self.transport.writelines((header, *buffers))

    def write_at_once(self, message: bytes) -> None:
        """Write one message like ``write_message``, if possible before this returns.

        uvloop writes after the callbacks of an iteration, so the peer would wait for the rest of
        the callback in which this is called.
        """
        descriptor = self._descriptor
        if descriptor is None or self.transport.get_write_buffer_size():
            self.write_message(message)
            return
        data = frame_header(FINAL_BIT | BINARY, len(message)) + message
        self._written_bytes += len(data)
        try:
            written = os.write(descriptor, data)
        except OSError as error:
            pass_on_of_signal_handler(error)
            written = 0  # the transport waits, or reports the error
        if written < len(data):
            self.transport.write(data[written:])

    # -- callbacks of the event loop's transport ---------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if os.name == "posix" and transport.get_extra_info("sslcontext") is None:
            self._descriptor = transport.get_extra_info("socket").fileno()

    def connection_lost(self, exc: Exception | None) -> None:
        self._descriptor = None
        super().connection_lost(exc)
        self._wake_senders()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._writing_paused = True

    def resume_writing(self) -> None:
        super().resume_writing()
        self._writing_paused = False
        self._wake_senders()

    async def _written(self) -> None:
        """Wait until the transport's buffer has room. Raises ``ConnectionClosed``."""
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
