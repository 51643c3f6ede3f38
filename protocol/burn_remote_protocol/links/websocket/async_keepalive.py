"""The keepalive of an asynchronous connection: pings by a timer of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from websockets.protocol import State

from burn_remote_protocol.links.websocket.async_connection import DirectConnection
from burn_remote_protocol.links.websocket.keepalive import PART_BYTES

__all__ = ["Keepalive"]


class Keepalive:
    """Pings a connection's peer each interval, and ends the connection when the peer is silent.

    Between messages, any received byte is a sign of life, and so are ``PART_BYTES`` of messages
    that the operating system has accepted for sending. While a message is incomplete, only
    ``PART_BYTES`` received bytes are. While reading is paused, silence does not count. A dead peer
    is detected within two intervals.
    """

    def __init__(
        self, connection: DirectConnection, interval_seconds: float, on_silence: Callable[[], None]
    ) -> None:
        """Start the timer. It calls ``on_silence`` before it ends the connection."""
        self._connection: Final = connection
        self._interval_seconds: Final = interval_seconds
        self._on_silence: Final = on_silence
        self._received = -1
        self._sent = -1
        self._has_pinged = False  # in the last interval
        self._next: asyncio.TimerHandle | None = None
        # Cancel the timer with the connection, or it would keep a closed connection alive.
        connection.connection_lost_waiter.add_done_callback(self._stop)
        self._beat()

    def _beat(self) -> None:
        connection = self._connection
        if connection.state is not State.OPEN or connection.transport.is_closing():
            return
        sends_slices = connection.sends_slices
        if connection.sends_elsewhere and not sends_slices:
            return  # the ``FrameSender`` bounds the time for which the peer may be silent
        received, sent = connection.received_bytes, connection.sent_bytes
        grown = received - self._received
        is_alive = grown >= PART_BYTES or (
            not connection.is_within_message and (grown > 0 or sent - self._sent >= PART_BYTES)
        )
        # A peer that was not asked need not answer, but it must read the rest of a sliced frame.
        must_show_life = self._has_pinged or sends_slices
        if must_show_life and not is_alive and not connection.reading_paused:
            self._on_silence()
            connection.transport.abort()
            return
        self._received, self._sent = received, max(sent, self._sent)
        self._has_pinged = not sends_slices
        if self._has_pinged:  # a ping inside a frame would be taken for its contents
            connection.protocol.send_ping(b"")
            connection.send_data()
        self._next = connection.loop.call_later(self._interval_seconds, self._beat)

    def _stop(self, _: object) -> None:
        if self._next is not None:
            self._next.cancel()
