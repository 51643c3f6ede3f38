"""Endpoints: a key, its UDP sockets, and the connections that it dials.

An endpoint without relays contacts nobody but the peers that it dials. With ``PUBLIC_RELAYS`` it
uses the relays and the directory of n0, the company behind Iroh: others find it by its node id.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from typing import Any, Final

from burn_remote_protocol.errors import ConnectionFailed
from burn_remote_protocol.links.addresses import Address
from burn_remote_protocol.links.iroh.library import IrohError, iroh, shortened

__all__ = [
    "BURN_ALPN",
    "KEY_BYTES",
    "NATIVE_ALPN",
    "NO_RELAYS",
    "PUBLIC_RELAYS",
    "bind",
    "close",
    "dial",
    "node_id",
    "relays_of",
]

# The application protocols, which QUIC's handshake negotiates.
BURN_ALPN: Final = b"burn/remote/1"
NATIVE_ALPN: Final = b"burn-remote/native/1"

KEY_BYTES: Final = 32

NO_RELAYS: Final = "disabled"
PUBLIC_RELAYS: Final = "public"

# What the TLS of QUIC says if the peer does not offer the protocol.
_UNKNOWN_PROTOCOL: Final = "support any known protocol"

# The status of an HTTP server without the requested route. A client that gets it from a server
# without the native protocol then dials again, with Burn's protocol.
NOT_FOUND: Final = 404

_CLOSE_SECONDS: Final = 2.0


class _Preset(iroh.Preset):  # type: ignore[misc]  # the package has no types
    """The settings of an endpoint, which the library requests while it binds it."""

    def __init__(self, addresses: Sequence[str], relays: str) -> None:
        super().__init__()
        self._addresses: Final = tuple(addresses)
        self._relays: Final = relays

    def apply(self, builder: Any) -> None:
        if self._relays == PUBLIC_RELAYS:
            builder.apply_n0()
        else:
            builder.apply_minimal()
        for address in self._addresses:
            builder.bind_addr(address)


async def bind(
    *,
    key: bytes | None = None,
    alpns: Sequence[bytes] = (),
    addresses: Sequence[str] = (),
    relays: str = NO_RELAYS,
) -> Any:
    """Return an endpoint for the running event loop.

    ``key`` is its secret key of ``KEY_BYTES`` bytes, by default a new one. It accepts connections
    for ``alpns`` only. ``addresses`` are IP addresses with ports to bind, at most one of each
    version; by default, free ports of all interfaces. ``relays`` is ``PUBLIC_RELAYS``,
    ``NO_RELAYS`` or the URL of a relay. Raises ``OSError`` if an address is not available.
    """
    mode = None
    if relays == NO_RELAYS:
        mode = iroh.RelayMode.disabled()
    elif relays != PUBLIC_RELAYS:
        mode = iroh.RelayMode.custom_from_urls([relays])
    options = iroh.EndpointOptions(
        preset=_Preset(addresses, relays),
        secret_key=secrets.token_bytes(KEY_BYTES) if key is None else key,
        alpns=list(alpns),
        relay_mode=mode,
    )
    try:
        return await iroh.Endpoint.bind(options)
    except IrohError as error:
        where = " and ".join(addresses) or "a free port"
        raise OSError(f"Iroh cannot use {where}: {shortened(error)}") from error


async def close(endpoint: Any) -> None:
    """Close an endpoint and its connections, within a bounded time."""
    with contextlib.suppress(TimeoutError, IrohError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await endpoint.close()


def node_id(key: bytes) -> str:
    """Return the node id of a secret key."""
    return str(iroh.SecretKey.from_bytes(key).public())


def relays_of(target: Address) -> str:
    """Return the relays with which an endpoint can reach an address."""
    return target.relay or (NO_RELAYS if target.direct else PUBLIC_RELAYS)


async def dial(endpoint: Any, target: Address, alpn: bytes) -> Any:
    """Return a connection to a server, which has proved that it has the key of the address.

    Takes up to half a minute if nobody answers. Raises ``ConnectionFailed``.
    """
    try:
        node = iroh.EndpointId.from_string(target.host)
        where = iroh.EndpointAddr(node, target.relay or None, list(target.direct))
    except IrohError as error:  # half of all 32-byte numbers are not public keys
        raise ConnectionFailed(
            f"{target} names no public key ({shortened(error)}); check the node id"
        ) from error
    try:
        return await endpoint.connect(where, alpn)
    except IrohError as error:
        text = shortened(error)
        if _UNKNOWN_PROTOCOL in text:
            failure = ConnectionFailed(
                f"{target} does not speak the protocol {alpn.decode()}; check its version"
            )
            failure.http_status = NOT_FOUND
            raise failure from error
        raise ConnectionFailed(
            f"no connection to {target}: {text}; check the node id, and that the server is running"
        ) from error
