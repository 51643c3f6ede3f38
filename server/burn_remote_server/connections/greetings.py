"""How does a native connection open, and what is said when it is refused or ended?"""

from __future__ import annotations

import asyncio

from burn_remote_protocol.dialects.native import VERSIONS, decode_frame, encode_frame
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ConnectionLost,
    ProtocolViolation,
    SessionLost,
)
from burn_remote_protocol.handshake import agreed_version
from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_protocol.messages import Closing, Hello, Refused
from burn_remote_server.host import Host
from burn_remote_server.telemetry.logs import get_logger

__all__ = ["greeting", "name_of", "refuse", "say_goodbye"]

logger = get_logger(__name__)


def name_of(message: object) -> str:
    return type(message).__name__


async def greeting(link: AsyncLink, host: Host) -> tuple[Hello, int]:
    seconds = host.settings.handshake_timeout_seconds
    try:
        async with asyncio.timeout(seconds):
            hello = decode_frame(await link.receive())
    except TimeoutError:
        raise ProtocolViolation(f"no Hello came within {seconds:g} seconds") from None
    if not isinstance(hello, Hello):
        raise ProtocolViolation(f"a connection opens with Hello, not with {name_of(hello)}")
    return hello, agreed_version(hello, VERSIONS)


async def refuse(link: AsyncLink, error: BurnRemoteError) -> None:
    if isinstance(error, ConnectionLost) and not isinstance(error, SessionLost):
        return
    logger.warning("connection refused", peer=link.peer, code=error.code, reason=str(error))
    try:
        await link.send(encode_frame(Refused(error)))
        await link.close(1008, "refused")
    except ConnectionLost:
        pass


async def say_goodbye(link: AsyncLink, error: BurnRemoteError) -> None:
    try:
        await link.send(encode_frame(Closing(error)))
        await link.close(1001 if isinstance(error, SessionLost) else 1008, error.code)
    except ConnectionLost:
        pass
