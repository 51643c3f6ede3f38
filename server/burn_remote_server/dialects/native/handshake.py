"""The handshake of a native connection, and the messages that refuse or end it."""

from __future__ import annotations

import asyncio

from burn_remote_protocol.dialects.native import VERSIONS, decode_frame, encode_frame
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ConnectionLost,
    GarbledBytes,
    ProtocolViolation,
    SessionLost,
    detached,
)
from burn_remote_protocol.handshake import agreed_version
from burn_remote_protocol.links.checksummed_links import AnyAsyncLink, CheckedAsyncLink, is_checked
from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_protocol.messages import Closing, Hello, Refused
from burn_remote_server.hosting.host import Host
from burn_remote_server.telemetry.logs import get_logger

__all__ = ["checked_link", "name_of", "read_hello", "receive_first", "refuse", "send_closing"]

logger = get_logger(__name__)


def name_of(message: object) -> str:
    """Return the name of a message's type for error messages."""
    return type(message).__name__


async def receive_first(link: AsyncLink, host: Host) -> bytes:
    """Return a connection's first frame. Raises ``ConnectionLost``, ``ProtocolViolation``."""
    seconds = host.settings.handshake_timeout_seconds
    try:
        async with asyncio.timeout(seconds):
            return await link.receive()
    except TimeoutError:
        raise ProtocolViolation(f"no Hello arrived within {seconds:g} seconds") from None


def checked_link(plain: AsyncLink, first: bytes) -> tuple[AnyAsyncLink, bytes | memoryview]:
    """Return the link for a connection, and the contents of its first frame.

    If that frame has a checksum, so has every other one, in both directions. Raises
    ``GarbledBytes``.
    """
    if not is_checked(first):
        return plain, first
    link = CheckedAsyncLink(plain)
    return link, link.open(first)


def read_hello(frame: bytes | memoryview) -> tuple[Hello, int]:
    """Decode the first frame of a connection; return its ``Hello`` and the agreed version.

    Raises ``ProtocolViolation``, ``VersionMismatch``.
    """
    hello = decode_frame(frame)
    if not isinstance(hello, Hello):
        raise ProtocolViolation(
            f"the first message of a connection must be Hello, not {name_of(hello)}"
        )
    return hello, agreed_version(hello, VERSIONS)


async def refuse(link: AnyAsyncLink, error: BurnRemoteError) -> None:
    """Refuse a ``Hello`` and close the connection. Never raises.

    If the frame was corrupted, this closes the connection without a reason, so the client retries.
    """
    if isinstance(error, ConnectionLost) and not isinstance(error, SessionLost):
        return
    detached(error)  # else it keeps what was decoded while the client delays closing
    logger.warning("connection refused", peer=link.peer, code=error.code, reason=str(error))
    try:
        if not isinstance(error, GarbledBytes):
            await link.send(encode_frame(Refused(error)))
        await link.close(1008, "refused")
    except ConnectionLost:
        pass


async def send_closing(link: AnyAsyncLink, error: BurnRemoteError) -> None:
    """Send the reason and close the connection. Never raises."""
    detached(error)  # else it keeps what was decoded while the client delays closing
    try:
        await link.send(encode_frame(Closing(error)))
        await link.close(1001 if isinstance(error, SessionLost) else 1008, error.code)
    except ConnectionLost:
        pass
