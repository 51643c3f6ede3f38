"""The source's end of a connection between servers, for scripted sources."""

from __future__ import annotations

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from burn_remote_protocol.dialects.native import encode_frame
from burn_remote_protocol.errors import ProtocolViolation
from burn_remote_protocol.links.checksummed_links import Checks, is_checked
from burn_remote_protocol.messages import Refused

__all__ = ["SourceSocket"]


class SourceSocket:
    """A connection whose frames have checksums if the first one has.

    An older source refuses checksums, and closes the connection.
    """

    def __init__(self, connection: ServerConnection, *, is_older: bool = False) -> None:
        self.connection = connection
        self._is_older = is_older
        self._is_first = True
        self._checks: Checks | None = None

    async def recv(self) -> bytes:
        """Return the next frame. Raises ``ConnectionClosed``."""
        frame = await self.connection.recv(decode=False)
        if self._is_first and is_checked(frame):
            if self._is_older:
                await self.send(encode_frame(Refused(ProtocolViolation("unknown frame 254"))))
                raise ConnectionClosed(None, None)
            self._checks = Checks()
        self._is_first = False
        return frame if self._checks is None else bytes(self._checks.open(frame))

    async def send(self, frame: bytes) -> None:
        """Send a frame."""
        await self.connection.send(frame if self._checks is None else self._checks.seal(frame))

    async def garble(self, frame: bytes) -> None:
        """Send a frame with one bit flipped."""
        sealed = frame if self._checks is None else self._checks.seal(frame)
        await self.connection.send(sealed[:-1] + bytes((sealed[-1] ^ 1,)))

    async def wait_closed(self) -> None:
        """Wait until the connection is closed."""
        await self.connection.wait_closed()

    def abort(self) -> None:
        """Cut the connection."""
        self.connection.transport.abort()
