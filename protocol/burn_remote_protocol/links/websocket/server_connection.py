"""A server's connection, which can lend its receiving side to a thread.

While a thread has the ``ThreadReceiver``, the transport does not read. Everything else stays with
the event loop: control frames, long payloads, the limits on what is received, and the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from websockets.asyncio.server import ServerConnection
from websockets.protocol import State

from burn_remote_protocol.links.websocket.async_connection import DirectConnection
from burn_remote_protocol.links.websocket.busy_polling import loop_polling
from burn_remote_protocol.links.websocket.thread_receiver import CAN_LEND, ThreadReceiver

__all__ = ["DirectServerConnection"]


class DirectServerConnection(DirectConnection, ServerConnection):
    """A server's connection, for ``websockets.asyncio.server.serve(create_connection=…)``."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._lent: ThreadReceiver | None = None
        self._is_return_lost = False  # it was already returned at the last check of ``recover``
        self._polling = loop_polling(self.loop)

    def lend_receiver(self) -> ThreadReceiver | None:
        """Let a thread receive; ``None`` if it cannot, or if the event loop has work to finish.

        The task that receives must be waiting.
        """
        receiver, transport = self._receiver, self.transport
        if (
            not CAN_LEND
            or self._lent is not None
            or receiver is None
            or receiver.done()
            or self._messages
            or self._open_message is not None
            or self._closing
            or self._failed
            or self._has_ended
            or self._has_unparsed
            or self._is_starved
            or self.reading_paused
            or not self._parser.is_empty
            or (self._budget is not None and self._budget.is_beyond_urgent)
            or self.protocol.state is not State.OPEN
            or transport.is_closing()
            or transport.get_extra_info("sslcontext") is not None
        ):
            return None
        self._end_payload()
        transport.pause_reading()
        descriptor = transport.get_extra_info("socket").fileno()
        self._lent = ThreadReceiver(
            descriptor,
            self._parser,
            transport.get_write_buffer_size,
            partial(self._in_loop, transport.write),
            partial(self._in_loop, self._receive_again),
        )
        self._receives_elsewhere = True
        return self._lent

    def recover(self) -> None:
        """Do what ``DirectConnection.recover`` does; also receive again if that call was lost."""
        super().recover()
        lent = self._lent
        if lent is None or not lent.is_returned:
            self._is_return_lost = False
        elif self._is_return_lost:
            # The event loop has run all calls that were due at the last check.
            self._receive_again()
        else:
            self._is_return_lost = True

    def _take_alone(self, data: bytes) -> bool:
        polling = self._polling
        if polling.pause:
            polling.pause -= 1
            return super()._take_alone(data)
        polling.note_arrival(self)
        before = self._written_bytes
        # Not by ``super()``, whose object takes longer to make than this call.
        is_taken = DirectConnection._take_alone(self, data)
        if self._written_bytes != before:
            polling.note_reply()
        return is_taken

    def _in_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call a function on the event loop; called by the thread that receives."""
        with contextlib.suppress(RuntimeError):  # the event loop was closed in the meantime
            self.loop.call_soon_threadsafe(call, *arguments)

    def _receive_again(self) -> None:
        lent, self._lent = self._lent, None
        if lent is None:
            return  # ``recover`` has called this
        self._receives_elsewhere = False
        self.received_bytes += lent.received_bytes
        self._written_bytes += lent.sent_bytes
        self._message_count += lent.messages - len(lent.unread)
        if self._failed:
            self._parser.discard()
        elif self._closing:
            self._parser.drop_messages()
        for message in lent.unread:
            self._open(message)
        if lent.violation is not None:
            self._refuse(lent.violation)
            self._pass_on()
        else:
            self._parse()
        if self._budget is not None:
            self._count_received()
        if self._parser.has_room and not self._has_unparsed:
            self._begin_payload()
        self._read_on()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Perform the closing handshake; a thread that receives returns the receiving side."""
        if self._lent is not None:
            self._lent.stop()
        await super().close(code, reason)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._lent is not None:
            self._lent.close()
        super().connection_lost(exc)
