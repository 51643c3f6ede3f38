"""When a fetch from a peer is tried again after its connection broke."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final

from burn_remote_protocol.errors import ConnectionLost, GarbledBytes

__all__ = ["Retries", "was_cut"]

# Consecutive tries in which the connection breaks within the handshake, about 2 seconds: what
# listens there may be another program, or a proxy of a server that is gone.
UNREACHED_TRIES: Final = 8

# Pauses are drawn at random up to a bound that doubles with each try without progress, because the
# fetches of many sessions break together.
FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 1.0

_CUTS: Final = (ConnectionLost, GarbledBytes, ConnectionResetError, BrokenPipeError, EOFError)


class Retries:
    """The tries of one fetch; each continues where the previous one broke.

    A fetch is given up when no bytes arrived for ``patience_seconds``, or when several connections
    in a row broke within the handshake.
    """

    def __init__(self, patience_seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._patience_seconds: Final = patience_seconds
        self._now: Final = now
        self._since = now()
        self._received = 0
        self._idle_tries = 0
        self._unreached_tries = 0

    def reached(self) -> None:
        """Note that the peer completed the handshake."""
        self._unreached_tries = -1  # the try that begins now is none of them

    def pause(self, received: int) -> float | None:
        """Return the seconds to wait before the next try; ``None`` to give up.

        ``received`` is the number of bytes that have arrived in all tries.
        """
        if received > self._received:
            self._received = received
            self._since = self._now()
            self._idle_tries = 0
        self._idle_tries += 1
        self._unreached_tries += 1
        if self._unreached_tries >= UNREACHED_TRIES:
            return None
        if self._now() - self._since >= self._patience_seconds:
            return None
        doublings = min(self._idle_tries - 1, 10)
        longest = min(FIRST_PAUSE_SECONDS * 2**doublings, LONGEST_PAUSE_SECONDS)
        return random.uniform(0, longest)


def was_cut(error: BaseException | None) -> bool:
    """Whether an error is that of a connection that broke, and not of a peer that refuses."""
    while error is not None:
        if isinstance(error, _CUTS):
            return True
        error = error.__cause__
    return False
