"""The registry of transports by address scheme, and the functions that open links through it.

Everything outside ``links`` opens and accepts connections here, and sees only ``AsyncLink``,
``BlockingLink`` and ``Listener``. A new transport is a folder beside ``websocket`` with a
``Transport``, and a call of ``register``.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, TypedDict, Unpack, cast

from burn_remote_protocol.errors import ConnectionFailed
from burn_remote_protocol.links.addresses import SCHEMES, Address, parse_address
from burn_remote_protocol.links.interface import (
    AsyncLink,
    BlockingLink,
    ConnectionGate,
    Handle,
    KeyedListener,
    Listener,
    Respond,
    Transport,
)
from burn_remote_protocol.links.iroh.transport import IrohTransport
from burn_remote_protocol.links.websocket.transport import WebSocketTransport

__all__ = [
    "AsyncOptions",
    "BlockingOptions",
    "ListenOptions",
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


class BlockingOptions(TypedDict, total=False):
    """Options of ``connect``; each transport has its own defaults.

    - ``connect_to``: a numeric address to use instead of resolving the host name; TLS still checks
      the name.
    - ``tls``: the context for an encrypted address, instead of the system's default.
    - ``headers``: HTTP headers to send, for transports that have them.
    - ``timeout_seconds``: bounds the whole call, name resolution included.
    - ``close_timeout_seconds``: how long ``close`` waits for the peer to confirm.
    - ``max_message_bytes``: the largest message to receive.
    - ``fragment_bytes``: the largest fragment to send, for transports that can split a message.
    - ``speaks_burn``: the frames are those of Burn 0.22, for transports that distinguish that.
    """

    connect_to: str | None
    tls: ssl.SSLContext | None
    headers: Mapping[str, str]
    timeout_seconds: float
    close_timeout_seconds: float
    max_message_bytes: int
    fragment_bytes: int | None
    speaks_burn: bool


class AsyncOptions(TypedDict, total=False):
    """Options of ``connect_async``, as those of ``connect``.

    - ``identity``: the listener whose key the other end sees, for transports that have keys.
    """

    connect_to: str | None
    tls: ssl.SSLContext | None
    headers: Mapping[str, str]
    timeout_seconds: float
    max_message_bytes: int
    speaks_burn: bool
    identity: KeyedListener | None


class ListenOptions(TypedDict, total=False):
    """Options of ``listen``; see ``Transport.listen``."""

    respond: Respond | None
    gate: ConnectionGate | None
    is_urgent: Callable[[bytes], bool]
    tls: ssl.SSLContext | None
    handshake_timeout_seconds: float | None
    max_message_bytes: int
    key: bytes | None
    relays: str


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
    scheme: str, host: str, port: int, handle: Handle, **options: Unpack[ListenOptions]
) -> AbstractAsyncContextManager[KeyedListener]:
    """As ``listen``, for a scheme whose listeners have keys."""
    return cast(
        "AbstractAsyncContextManager[KeyedListener]",
        TRANSPORTS[scheme].listen(host, port, handle, **options),
    )


def _target(address: str, route: str, tls: ssl.SSLContext | None) -> Address:
    target = parse_address(address).joined(route)
    if tls is not None and not target.secure:
        raise ConnectionFailed(f"tls was given, but {target} is not encrypted; write wss://")
    return target
