"""How does a server fetch a tensor that another server exposes?

One connection per peer address carries all fetches from it, interleaved chunk by chunk.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from burn_remote_protocol.dialects.native import VERSIONS, decode_frame, encode_frame
from burn_remote_protocol.errors import (
    BurnRemoteError,
    OperationFailed,
    TransferFailed,
)
from burn_remote_protocol.handshake import CHECKSUM, CHECKSUM_SETTING, MEMORY_SETTING, accepted
from burn_remote_protocol.links.addresses import parse_address
from burn_remote_protocol.links.websocket.async_link import WebSocketLink, connect
from burn_remote_protocol.messages import Fetch, Hello
from burn_remote_server.access.peer_rules import PeerRules
from burn_remote_server.access.tls import peer_context
from burn_remote_server.backends.interface import Backend
from burn_remote_server.burn.peers import BurnPeers
from burn_remote_server.settings.server_settings import Settings
from burn_remote_server.telemetry.counters import Counters
from burn_remote_server.transfers.downloads import Download
from burn_remote_server.transfers.peer_connection import PeerConnection

__all__ = ["Peers"]

# Connections to other servers, each of which a client named. Larger: more sockets. Smaller: a
# cluster of more servers than this cannot move tensors between all of them.
MAX_PEERS: Final = 256

# Connections over which one tensor may come; each goes on where the one before broke. Larger: a
# network that breaks every time is tried for longer. Smaller: fewer breaks are survived.
TRIES: Final = 5


class Peers:
    """All connections to other servers. Belongs to the event loop's thread."""

    def __init__(
        self,
        settings: Settings,
        rules: PeerRules,
        tasks: asyncio.TaskGroup,
        counters: Counters,
        *,
        borrows_from: str | None = None,
    ) -> None:
        """Prepare to fetch; from those who lend to ``borrows_from``, by their memory.

        Raises ``InvalidCertificate``.
        """
        self._borrows_from: Final = borrows_from
        self._settings: Final = settings
        self._rules: Final = rules
        self._tls: Final = peer_context(settings)
        token = settings.peer_token
        self._token: Final = None if token is None else token.get_secret_value()
        self._counters: Final = counters
        self._tasks: Final = tasks
        self._peers: dict[str, asyncio.Future[PeerConnection]] = {}
        # The peer waits for the expose as long as this side does; its refusal must come first.
        self._stall_seconds: Final = 1.5 * settings.fetch_timeout_seconds
        self._burn: Final = BurnPeers(self._dial, self._stall_seconds, counters)

    async def fetch(self, owner: object, backend: Backend, task: Fetch) -> Any:
        """Return the array of a tensor that a peer exposes, to the session ``owner``.

        Raises ``TransferFailed``.
        """
        if isinstance(task.transfer, int):
            allowed = self._settings.tensor_bytes(backend.memory_bytes())
            array = await self._burn.fetch(owner, backend, task, allowed)
            self._counters.transfers_fetched += 1
            return array
        if task.spec is None:
            raise TransferFailed("a fetch from a native peer says what it expects")
        array = await self._fetch_from_native(
            task.address, task.transfer, Download(backend, task.spec)
        )
        self._counters.transfers_fetched += 1
        return array

    async def _fetch_from_native(self, address: str, transfer: bytes, download: Download) -> Any:
        for tries_left in reversed(range(TRIES)):
            peer = await self._peer(address)
            try:
                return await peer.fetch(transfer, download)
            except OperationFailed:
                if not peer.is_broken or not tries_left:
                    raise
                download.try_again()
        raise AssertionError("the last try returns or raises")

    async def _peer(self, address: str) -> PeerConnection:
        found = self._peers.get(address)
        if found is None or _is_over(found):
            # Clients choose the addresses: those that led nowhere must not pile up.
            self._peers = {key: peer for key, peer in self._peers.items() if not _is_over(peer)}
            if len(self._peers) >= MAX_PEERS:
                self._close_idle()
            found = self._peers[address] = asyncio.ensure_future(self._connect(address))
        return await asyncio.shield(found)

    async def _connect(self, address: str) -> PeerConnection:
        try:
            link = await self._open(address)
        except TransferFailed:
            raise
        except (BurnRemoteError, TimeoutError) as error:
            text = str(error) or "no answer to the handshake"
            raise TransferFailed(f"cannot reach the source {address}: {text}") from error
        may_borrow = self._borrows_from is not None
        peer = PeerConnection(link, self._counters, self._stall_seconds, may_borrow=may_borrow)
        self._tasks.create_task(peer.receive())
        return peer

    async def _dial(self, address: str, route: str, max_message_bytes: int) -> WebSocketLink:
        seconds = self._settings.handshake_timeout_seconds
        async with asyncio.timeout(seconds):
            target, numeric = await self._rules.resolve(address)
        return await connect(
            address,
            route,
            connect_to=numeric,
            tls=self._tls if target.secure else None,
            timeout_seconds=seconds,
            max_message_bytes=max_message_bytes,
        )

    async def _open(self, address: str) -> WebSocketLink:
        seconds = self._settings.handshake_timeout_seconds
        link = await self._dial(address, "/transfer", self._settings.max_message_bytes)
        try:
            hints = self._hints(address)
            hello = Hello(VERSIONS, self._token, client="burn-remote-server", settings=hints)
            await link.send(encode_frame(hello))
            async with asyncio.timeout(seconds):
                accepted(decode_frame(await link.receive()), VERSIONS)
        except BaseException:
            await link.close()
            raise
        return link

    def _hints(self, address: str) -> dict[str, str]:
        """Return what a peer is told of this server."""
        # What was garbled on the way does not come through TLS at all.
        is_open = not parse_address(address).secure
        hints = {
            CHECKSUM_SETTING: CHECKSUM if is_open and self._settings.transfer_checksum else None,
            MEMORY_SETTING: self._borrows_from,
        }
        return {name: hint for name, hint in hints.items() if hint is not None}

    def _close_idle(self) -> None:
        """Make room for another peer. Raises ``TransferFailed`` where all are in use."""
        for address, peer in self._peers.items():
            if peer.done() and peer.result().is_idle:
                del self._peers[address]
                self._tasks.create_task(peer.result().link.close())
                return
        raise TransferFailed(f"this server fetches from {MAX_PEERS} peers already")

    async def close(self) -> None:
        """Close all connections."""
        await self._burn.close()
        for found in self._peers.values():
            if found.done() and not found.cancelled() and found.exception() is None:
                await found.result().link.close()
            else:
                found.cancel()


def _is_over(peer: asyncio.Future[PeerConnection]) -> bool:
    if not peer.done():
        return False
    return peer.cancelled() or bool(peer.exception()) or peer.result().error is not None
