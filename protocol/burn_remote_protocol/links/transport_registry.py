"""The registry of transports by address scheme, and the functions that open links through it.

Everything outside ``links`` opens and accepts connections here, and sees only ``AsyncLink``,
``BlockingLink`` and ``Listener``. A new transport is a folder beside ``websocket`` with a
``Transport``, and a call of ``register``.
"""

from __future__ import annotations

import ssl
from contextlib import AbstractAsyncContextManager
from typing import Final, Unpack, cast

from burn_remote_protocol.errors import ConnectionFailed
from burn_remote_protocol.links.addresses import SCHEMES, Address, parse_address
from burn_remote_protocol.links.interface import AsyncLink, BlockingLink
from burn_remote_protocol.links.iroh.transport import IrohTransport
from burn_remote_protocol.links.transport_interface import (
    AsyncOptions,
    BlockingOptions,
    Handle,
    KeyedListener,
    KeyedListenOptions,
    KeyedTransport,
    Listener,
    ListenOptions,
    Transport,
)
from burn_remote_protocol.links.websocket.transport import WebSocketTransport

__all__ = [
    "connect",
    "connect_async",
    "listen",
    "listen_with_key",
    "register",
]

_WEBSOCKET: Final = WebSocketTransport()
TRANSPORTS: Final[dict[str, Transport]] = {
    "ws": _WEBSOCKET,
    "wss": _WEBSOCKET,
    "iroh": IrohTransport(),
}


def register(scheme: str, transport: Transport, *, secure: bool = False) -> None:
    """Use ``transport`` for addresses that begin with ``scheme://``; ``secure`` if it encrypts."""
    SCHEMES[scheme] = secure
    TRANSPORTS[scheme] = transport


def connect(address: str, route: str = "", **options: Unpack[BlockingOptions]) -> BlockingLink:
    """Open a link for threads to ``route`` below ``address``, as ``parse_address`` reads it.

    Raises ``ConnectionFailed`` with one sentence that says what to check.
    """
    target = _target(address, route, options.get("tls"))
    return TRANSPORTS[target.scheme].connect(target, **options)


async def connect_async(
    address: str, route: str = "", **options: Unpack[AsyncOptions]
) -> AsyncLink:
    """Open a link for an event loop to ``route`` below ``address``. Raises ``ConnectionFailed``."""
    target = _target(address, route, options.get("tls"))
    return await TRANSPORTS[target.scheme].connect_async(target, **options)


def listen(
    scheme: str, host: str, port: int, handle: Handle, **options: Unpack[ListenOptions]
) -> AbstractAsyncContextManager[Listener]:
    """Return a context in which a transport accepts links; see ``Transport.listen``."""
    return TRANSPORTS[scheme].listen(host, port, handle, **options)


def listen_with_key(
    scheme: str, host: str, port: int, handle: Handle, **options: Unpack[KeyedListenOptions]
) -> AbstractAsyncContextManager[KeyedListener]:
    """As ``listen``, for a scheme whose listeners have keys."""
    return cast("KeyedTransport", TRANSPORTS[scheme]).listen(host, port, handle, **options)


def _target(address: str, route: str, tls: ssl.SSLContext | None) -> Address:
    target = parse_address(address).joined(route)
    if tls is not None and not target.secure:
        raise ConnectionFailed(f"tls was given, but {target} is not encrypted; write wss://")
    return target
