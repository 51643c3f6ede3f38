"""How is a connection used that was not made with ``server_options``?"""

from __future__ import annotations

from collections.abc import Awaitable

from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed, PayloadTooBig, ProtocolError
from websockets.protocol import State

from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation
from burn_remote_protocol.links.interface import PROTOCOL_ERROR

__all__ = ["IndirectConnection"]


class IndirectConnection:
    """What a ``DirectConnection`` offers, by way of the library's own parser and queues."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def state(self) -> State:
        return self._connection.state

    async def receive_message(self) -> bytes:
        try:
            message = await self._connection.recv()
        except ConnectionClosed as error:
            match error.__cause__:
                case PayloadTooBig() as cause:
                    seen = (cause.size or 0) + (cause.current_size or 0)
                    raise LimitExceeded(
                        "bytes in one message", seen=seen, allowed=cause.max_size
                    ) from error
                case ProtocolError() | UnicodeDecodeError() as cause:
                    raise ProtocolViolation(str(cause)) from error
            raise
        if isinstance(message, str):
            reason = "the peer sent a text message; this protocol is binary"
            await self._connection.close(PROTOCOL_ERROR, reason)
            raise ProtocolViolation(reason)
        return message

    @property
    def remote_address(self) -> object:
        return self._connection.remote_address

    @property
    def arrived_bytes(self) -> int:
        return 0  # the library does not tell

    def take_message(self) -> bytes | None:
        return None  # the library's queue cannot be looked at

    def limit_messages(self, max_message_bytes: int) -> None:
        """Nothing to do: the library keeps the limit that it was made with."""

    async def send(self, fragments: list[memoryview]) -> None:
        await self._connection.send(fragments)

    async def send_message(self, *pieces: bytes | memoryview) -> None:
        await self._connection.send(b"".join(pieces))

    async def ping(self) -> Awaitable[float]:
        return await self._connection.ping()

    async def close(self, code: int, reason: str) -> None:
        await self._connection.close(code, reason)
