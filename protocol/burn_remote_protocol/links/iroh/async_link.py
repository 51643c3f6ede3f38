"""Opening a link from a task of an event loop."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from burn_remote_protocol.errors import ConnectionFailed, ProtocolViolation
from burn_remote_protocol.links.addresses import Address
from burn_remote_protocol.links.interface import MAX_MESSAGE_BYTES
from burn_remote_protocol.links.iroh.endpoints import (
    BURN_ALPN,
    NATIVE_ALPN,
    bind,
    close,
    dial,
    relays_of,
)
from burn_remote_protocol.links.iroh.library import IrohError, shortened, write_all
from burn_remote_protocol.links.iroh.opening import (
    ACCEPTED,
    burn_header,
    read_opening,
    read_reply,
    request,
)
from burn_remote_protocol.links.iroh.stream_link import StreamLink
from burn_remote_protocol.links.transport_interface import CONNECT_TIMEOUT_SECONDS

__all__ = ["OwnEndpointLink", "connect"]


class OwnEndpointLink(StreamLink):
    """A link of a client, with an endpoint of its own: they end together."""

    def __init__(self, endpoint: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._endpoint = endpoint

    async def _release(self, code: int, reason: str) -> None:
        await super()._release(code, reason)
        await close(self._endpoint)
        self._endpoint = None


async def connect(
    target: Address,
    *,
    identity: Any = None,
    connect_to: str | None = None,
    tls: ssl.SSLContext | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    speaks_burn: bool = False,
) -> StreamLink:
    """Open a link; the options are those of ``AsyncOptions``.

    ``identity`` is an ``IrohListener``; by default, the link has an endpoint of its own. Raises
    ``ConnectionFailed``.
    """
    if tls is not None:
        raise ConnectionFailed(
            f"tls was given, but {target} is encrypted with the key that it names; leave it out"
        )
    try:
        async with asyncio.timeout(timeout_seconds):
            endpoint = None if identity is None else identity.endpoint
            return await _opened(target, endpoint, headers or {}, max_message_bytes, speaks_burn)
    except TimeoutError as error:
        check = "the node id and the addresses after addr=" if target.direct else "the node id"
        raise ConnectionFailed(
            f"{target} did not answer within {timeout_seconds:g} seconds; check {check}, that the "
            "server listens on Iroh, and that UDP passes the firewalls on the way"
        ) from error


async def _opened(
    target: Address,
    endpoint: Any,
    headers: Mapping[str, str],
    max_message_bytes: int,
    speaks_burn: bool,
) -> StreamLink:
    async with AsyncExitStack() as stack:
        make: Callable[..., StreamLink] = StreamLink
        if endpoint is None:
            endpoint = await _bound(target)
            stack.push_async_callback(close, endpoint)
            own = endpoint

            def make(*arguments: Any, **options: Any) -> StreamLink:
                return OwnEndpointLink(own, *arguments, **options)

        connection = await dial(endpoint, target, BURN_ALPN if speaks_burn else NATIVE_ALPN)
        stack.callback(connection.close, 0, b"")
        try:
            stream = await connection.open_bi()
            if speaks_burn:
                await write_all(stream.send(), [burn_header(target.route)])
            else:
                path = target.path + target.route
                await write_all(stream.send(), [request(path, headers)])
                status, phrase = read_reply(await read_opening(stream.recv()))
                if status != ACCEPTED:
                    raise _refusal(target, status, phrase)
        except IrohError as error:
            raise ConnectionFailed(
                f"{target} hung up before it responded: {shortened(error)}"
            ) from error
        except ProtocolViolation as error:
            raise ConnectionFailed(f"{target} is not a burn-remote server: {error}") from error
        stack.pop_all()
        return make(
            connection,
            stream,
            peer=str(target),
            peer_host=target.host,
            max_message_bytes=max_message_bytes,
            is_native=not speaks_burn,
            # An endpoint that is shared stays open; the connection has only this stream.
            on_closed=lambda: connection.close(0, b""),
        )


async def _bound(target: Address) -> Any:
    try:
        return await bind(relays=relays_of(target))
    except OSError as error:
        raise ConnectionFailed(str(error)) from error


def _refusal(target: Address, status: int, phrase: str) -> ConnectionFailed:
    failure = ConnectionFailed(f"{target} answered {status}: {phrase}")
    failure.http_status = status
    return failure
