"""Policy of retries: when to try a fetch again after its connection broke."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Final

from burn_remote_protocol.errors import (
    BurnRemoteError,
    ConnectionFailed,
    ConnectionLost,
    GarbledBytes,
    HandshakeRefused,
    ProtocolViolation,
    VersionMismatch,
)

__all__ = ["Retries"]

# Most consecutive tries in which the connection breaks before the handshake is complete; they take
# about 2 seconds. Another program may listen at the address, or a proxy of a server that has ended.
UNREACHED_TRIES: Final = 8

# A pause is random, up to a bound that doubles with each try without progress. It is random because
# the fetches of many sessions break at the same time.
FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 1.0

# Most consecutive tries in which the peer refuses the handshake, and most tries that end with an
# invalid message: without TLS, one flipped bit can cause either.
REFUSED_TRIES: Final = 3

# Most tries in which the peer does not answer before the timeout. A connection may be lost without
# notice on its way; an absent machine does not answer a second time either.
SILENT_TRIES: Final = 2

_HANDSHAKE_FAILURES: Final = (
    ConnectionFailed,
    HandshakeRefused,
    ProtocolViolation,
    VersionMismatch,
)
_CUTS: Final = (ConnectionLost, GarbledBytes, ConnectionResetError, BrokenPipeError, EOFError)


class Retries:
    """The tries of one fetch; each continues where the previous one broke.

    A fetch is given up when it made no progress for ``patience_seconds``, or after the numbers of
    tries above. Progress is a number that grows with each byte and with each report that the source
    still works on the tensor, over all tries.
    """

    def __init__(self, patience_seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._patience_seconds: Final = patience_seconds
        self._now: Final = now
        self._since = now()
        self._progress = 0
        self._idle_tries = 0
        self._unreached_tries = 0
        self._refused_tries = 0
        self._silent_tries = 0
        self._violations = 0

    def reached(self) -> None:
        """Record that the peer completed the handshake."""
        self._refused_tries = 0
        self._silent_tries = 0
        self._unreached_tries = -1  # the next ``pause`` is for this try, which does not count

    def pause_unreached(self, error: BaseException) -> float | None:
        """Return the seconds to wait after a connection or handshake failed, as ``pause`` does."""
        if _was_silent(error):
            self._silent_tries += 1
            if self._silent_tries >= SILENT_TRIES:
                return None
        elif not _was_cut(error):
            if not _may_be_corruption(error) or self._refused_tries >= REFUSED_TRIES - 1:
                return None
            self._refused_tries += 1
        return self.pause(self._progress)

    def pause_violated(self, progress: int) -> float | None:
        """Return the seconds to wait after the peer sent an invalid message, as ``pause`` does."""
        self._violations += 1
        return None if self._violations >= REFUSED_TRIES else self.pause(progress)

    def pause(self, progress: int) -> float | None:
        """Return the seconds to wait before the next try; ``None`` to give up."""
        if progress > self._progress:
            self._progress = progress
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


def _was_cut(error: BaseException) -> bool:
    """Whether an error means that the connection broke, and not that the peer refused."""
    return any(isinstance(one, _CUTS) for one in _causes(error))


def _was_silent(error: BaseException) -> bool:
    """Return whether the peer did not answer in time."""
    return any(isinstance(one, TimeoutError) for one in _causes(error))


def _may_be_corruption(error: BaseException) -> bool:
    """Whether corrupted bytes of a handshake could have caused an error."""
    causes = [*_causes(error)]
    is_connected = not any(
        isinstance(one, OSError) and not isinstance(one, BurnRemoteError) for one in causes
    )
    return is_connected and any(isinstance(one, _HANDSHAKE_FAILURES) for one in causes)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
