"""Pings the other end of an event loop's connection, and ends it when that is silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from websockets.protocol import State

from burn_remote_protocol.links.websocket.async_connection import DirectConnection
from burn_remote_protocol.links.websocket.keepalive import PART_BYTES

__all__ = ["Heartbeat"]


class Heartbeat:
    """Pings each interval, and ends the connection after one without a sign of life.

    Whatever arrives is a sign of life, and so are ``PART_BYTES`` that the network takes (less than
    that are what this end sends on its own). While a message is incomplete, only ``PART_BYTES`` of
    it are one. While this end does not read, nothing is held against the other. So a silent end is
    found within two intervals.
    """

    def __init__(
        self, connection: DirectConnection, interval_seconds: float, silent: Callable[[], None]
    ) -> None:
        """Begin. ``silent`` is called before the connection is ended for it."""
        self._connection: Final = connection
        self._interval_seconds: Final = interval_seconds
        self._silent: Final = silent
        self._arrived = -1
        self._departed = -1
        self._next: asyncio.TimerHandle | None = None
        # A closed connection must not be held until its next beat would be.
        connection.connection_lost_waiter.add_done_callback(self._stop)
        self._beat()

    def _beat(self) -> None:
        connection = self._connection
        if connection.state is not State.OPEN or connection.transport.is_closing():
            return
        arrived, departed = connection.arrived_bytes, connection.departed_bytes
        grown = arrived - self._arrived
        is_alive = grown >= PART_BYTES or (
            not connection.is_within_message
            and (grown > 0 or departed - self._departed >= PART_BYTES)
        )
        if not is_alive and not connection.reading_paused:
            self._silent()
            connection.transport.abort()
            return
        self._arrived, self._departed = arrived, max(departed, self._departed)
        connection.protocol.send_ping(b"")
        connection.send_data()
        self._next = connection.loop.call_later(self._interval_seconds, self._beat)

    def _stop(self, _: object) -> None:
        if self._next is not None:
            self._next.cancel()
