"""The interface of transports: how links are opened and accepted, and with which options."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Protocol, TypedDict, Unpack

from burn_remote_protocol.links.addresses import Address
from burn_remote_protocol.links.interface import AsyncLink, BlockingLink

__all__ = [
    "CONNECT_TIMEOUT_SECONDS",
    "AsyncOptions",
    "BlockingOptions",
    "ConnectionGate",
    "Handle",
    "KeyedListenOptions",
    "KeyedListener",
    "KeyedTransport",
    "ListenOptions",
    "Listener",
    "Request",
    "Respond",
    "Response",
    "Transport",
]

# How long opening a link may take: enough for a slow network, short enough to report a wrong
# address.
CONNECT_TIMEOUT_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Request:
    """The HTTP request of a peer that opens a link.

    ``headers`` are case-insensitive. ``refusal`` is the gate's reason to refuse, or empty.
    """

    path: str
    headers: Mapping[str, str]
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response that is sent in place of a link."""

    status: int
    phrase: str
    headers: Mapping[str, str]
    body: bytes


# Serves one link until it returns.
Handle = Callable[[AsyncLink, Request], Awaitable[None]]

# Returns an HTTP response to send instead of opening a link, or ``None`` to open it.
Respond = Callable[[Request], Response | None]


class ConnectionGate(Protocol):
    """Limits the number of connections that a listener holds, per source address."""

    def enter(self, address: str) -> tuple[bool, str]:
        """Count a new connection; return whether to keep it, and a reason if it is refused.

        A refused connection that is kept gets the reason in an HTTP response; one that is not kept
        is closed without a response. The caller calls ``leave`` in any case.
        """
        ...

    def leave(self, address: str) -> None:
        """Count a connection as closed."""
        ...

    def record_rejection(self, reason: str, now_seconds: float) -> None:
        """Record that a connection was closed without a response, at a time of the event loop."""
        ...


class Listener(Protocol):
    """A port that accepts links."""

    @property
    def port(self) -> int:
        """The port's number."""
        ...

    def stop_accepting(self) -> None:
        """Accept no more connections; those that are open stay open."""
        ...


class KeyedListener(Listener, Protocol):
    """A listener that peers know by its public key."""

    @property
    def address(self) -> Address:
        """The address of the listener, as peers write it."""
        ...


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
    is_prompt: Callable[[bytes], bool]
    tls: ssl.SSLContext | None
    handshake_timeout_seconds: float | None
    max_message_bytes: int


class KeyedListenOptions(ListenOptions, total=False):
    """Options of ``listen`` of a ``KeyedTransport``.

    - ``key``: the listener's secret key, by default a new one.
    - ``relays``: the relays through which peers may reach the listener.
    """

    key: bytes | None
    relays: str


class Transport(Protocol):
    """A way to carry links: opens them to an address and accepts them on a port."""

    def connect(self, target: Address, **options: Unpack[BlockingOptions]) -> BlockingLink:
        """Open a link for threads. Raises ``ConnectionFailed``."""
        ...

    async def connect_async(self, target: Address, **options: Unpack[AsyncOptions]) -> AsyncLink:
        """Open a link for the running event loop. Raises ``ConnectionFailed``."""
        ...

    def listen(
        self, host: str, port: int, handle: Handle, **options: Unpack[ListenOptions]
    ) -> AbstractAsyncContextManager[Listener]:
        """Return a context in which links are accepted and served by ``handle``.

        ``respond`` sees each request first. ``gate`` sees each connection when it is accepted.
        ``is_urgent`` gets the first bytes of an unencrypted connection and decides whether its
        request starts before others; ``is_prompt``, whether its request is answered at once if few
        such requests arrive. ``handshake_timeout_seconds`` bounds the TLS handshake and the
        HTTP request together. Entering raises ``OSError`` if the port is not available; leaving
        closes all connections.
        """
        ...


class KeyedTransport(Transport, Protocol):
    """A transport whose listeners have keys."""

    def listen(
        self, host: str, port: int, handle: Handle, **options: Unpack[KeyedListenOptions]
    ) -> AbstractAsyncContextManager[KeyedListener]:
        """Return a context in which links are accepted; see ``Transport.listen``."""
        ...
