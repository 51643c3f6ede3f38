"""Fetches of tensors that other servers expose.

One connection per peer address carries all fetches from it, with their chunks interleaved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from burn_remote_protocol.dialects.native import VERSIONS, decode_frame
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ConnectionFailed,
    OperationFailed,
    ProtocolViolation,
    TransferFailed,
)
from burn_remote_protocol.handshake import (
    CHECKSUM,
    CHECKSUM_SETTING,
    HOPS_SETTING,
    MEMORY_SETTING,
    WAITING_SETTING,
)
from burn_remote_protocol.links.addresses import IROH, Address, named_address, parse_address
from burn_remote_protocol.links.checksummed_links import (
    AnyAsyncLink,
    CheckedAsyncLink,
    UncheckedFrame,
)
from burn_remote_protocol.links.interface import AsyncLink, Memory
from burn_remote_protocol.links.transport_interface import KeyedListener
from burn_remote_protocol.links.transport_registry import connect_async
from burn_remote_protocol.messages import Fetch, Hello, Refused
from burn_remote_protocol.peer_proofs import FetchSigner, peer_key
from burn_remote_server.access.peer_authentication import prove_to_source
from burn_remote_server.access.peer_rules import PeerRules, token_of
from burn_remote_server.access.tls import peer_context
from burn_remote_server.backends.interface import Backend
from burn_remote_server.settings.server_settings import Settings
from burn_remote_server.telemetry.counters import Counters
from burn_remote_server.transfers.burn_peer_fetches import BurnPeers, Decoding
from burn_remote_server.transfers.downloads import Download, ignore_progress
from burn_remote_server.transfers.iroh_fetches import IrohFetches
from burn_remote_server.transfers.peer_connection import PeerConnection
from burn_remote_server.transfers.retries import Retries

__all__ = ["Peers"]

# Most connections to other servers, whose addresses clients choose. So this is also the most
# servers from which this one can fetch tensors at the same time. A party may open another one only
# while it has opened fewer than are free, so one party opens at most half of them.
MAX_PEERS: Final = 512

# The largest message before a peer has proved its token; frames of the handshake are small.
OPENING_BYTES: Final = 64 * 1024


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
        memory: Memory | None = None,
        iroh: Callable[[], KeyedListener | None] = lambda: None,
        decoding: Decoding | None = None,
    ) -> None:
        """Load the TLS context. Raises ``InvalidCertificate``.

        ``borrows_from`` identifies this server's host. Peers on the same host lend it memory
        instead of sending bytes; ``None`` if it cannot open lent memory. ``memory`` counts large
        messages while they arrive. ``iroh`` returns the listener over Iroh, if there is one. In the
        turns of ``decoding``, long messages of Burn peers are decoded.
        """
        self._borrows_from: Final = borrows_from
        self._memory: Final = memory
        self._settings: Final = settings
        self._rules: Final = rules
        self._tls: Final = peer_context(settings)
        token = settings.peer_token
        self._key: Final = None if token is None else peer_key(token.get_secret_value())
        self._counters: Final = counters
        self._tasks: Final = tasks
        self._peers: dict[str, asyncio.Future[PeerConnection]] = {}
        # The parties whose clients opened the connections, by address.
        self._openers: dict[str, str] = {}
        # Longer than the peer's own wait for the expose, so that its error arrives before this
        # timeout.
        self._stall_seconds: Final = 1.5 * settings.fetch_timeout_seconds
        self._burn: Final = BurnPeers(self._dial, self._stall_seconds, counters, decoding)
        self._iroh: Final = IrohFetches(
            rules,
            iroh,
            settings.handshake_timeout_seconds,
            self._stall_seconds,
            counters,
            memory,
        )

    async def fetch(
        self,
        owner: object,
        backend: Backend,
        task: Fetch,
        on_progress: Callable[[int], None] = ignore_progress,
        party: str = "",
    ) -> Any:
        """Fetch a tensor that a peer exposes, for the session ``owner``; return its array.

        ``party`` is that of ``Host.open_fetches``.

        While it waits, ``on_progress(hops)`` is called as ``Download`` describes; Burn's dialect
        has no progress reports. Raises ``TransferFailed``.
        """
        if isinstance(task.transfer, int):
            allowed = self._settings.tensor_bytes(backend.memory_bytes())
            if task.address.startswith(f"{IROH}://"):
                array = await self._iroh.fetch(backend, task, allowed, party)
            else:
                array = await self._burn.fetch(owner, backend, task, allowed, party)
            self._counters.transfers_fetched += 1
            return array
        if task.spec is None:
            raise TransferFailed("a fetch from a native peer needs the expected shape and dtype")
        array = await self._fetch_from_native(
            task.address, party, task.transfer, Download(backend, task.spec, on_progress)
        )
        self._counters.transfers_fetched += 1
        return array

    async def _fetch_from_native(
        self, address: str, party: str, transfer: bytes, download: Download
    ) -> Any:
        retries = Retries(self._stall_seconds)
        while True:
            peer = None
            try:
                peer = await self._peer(address, party)
                retries.reached()
                return await peer.fetch(transfer, download)
            except OperationFailed as error:
                pause = None
                if peer is None:
                    pause = retries.pause_unreached(error)
                elif peer.is_broken:
                    pause = retries.pause(download.progress)
                elif peer.is_undecodable:
                    pause = retries.pause_violated(download.progress)
                if pause is None:
                    raise
            download.try_again()
            await asyncio.sleep(pause)

    async def _peer(self, address: str, party: str) -> PeerConnection:
        address = _normal(address)
        found = self._peers.get(address)
        if found is None or _is_over(found):
            # Clients choose the addresses, so failed connections must not accumulate.
            self._peers = {key: peer for key, peer in self._peers.items() if not _is_over(peer)}
            self._openers = {key: self._openers[key] for key in self._peers}
            own = [key for key, opener in self._openers.items() if opener == party]
            free = MAX_PEERS - len(self._peers)
            if len(own) >= free:
                self._close_idle(own if free else [*self._peers])
            self._openers[address] = party
            found = self._peers[address] = asyncio.ensure_future(self._connect(address, party))
        return await asyncio.shield(found)

    async def _connect(self, address: str, party: str) -> PeerConnection:
        try:
            link, signer = await self._open(address, party)
        except TransferFailed:
            raise
        except (BurnRemoteError, TimeoutError) as error:
            text = str(error) or "it did not complete the handshake in time"
            source = named_address(address)
            raise TransferFailed(f"cannot reach the source {source}: {text}") from error
        peer = PeerConnection(
            link,
            self._counters,
            self._stall_seconds,
            may_borrow=self._borrows_from is not None,
            signer=signer,
        )
        self._tasks.create_task(self._converse(peer))
        return peer

    async def _converse(self, peer: PeerConnection) -> None:
        """Receive until the connection ends."""
        beating = None
        if isinstance(peer.link, CheckedAsyncLink):
            beating = asyncio.ensure_future(peer.beat(self._settings.peer_beat_seconds))
        try:
            await peer.receive()
        finally:
            if beating is not None:
                beating.cancel()

    async def _dial(
        self, address: str, route: str, max_message_bytes: int, party: str
    ) -> AsyncLink:
        """Connect to a route of an address, if the rules allow the address.

        ``party`` is that of the client that named the address.

        Of the addresses to which a host name resolves, the first that opens a WebSocket is used. A
        host may have an address on which its server does not listen, such as ``::1``.
        """
        seconds = self._settings.handshake_timeout_seconds
        async with asyncio.timeout(seconds):
            target, found = await self._rules.resolve(address, party)
        failure: Exception = TimeoutError()
        for numeric in found:
            try:
                link = await connect_async(
                    address,
                    route,
                    connect_to=numeric,
                    tls=self._tls if target.secure else None,
                    timeout_seconds=seconds / len(found),
                    max_message_bytes=max_message_bytes,
                )
            except (ConnectionFailed, TimeoutError) as error:
                failure = error
                continue
            if self._memory is not None:
                link.count_received(self._memory, self._stall_seconds)
            return link
        raise failure

    async def _open(self, address: str, party: str) -> tuple[AnyAsyncLink, FetchSigner | None]:
        """Connect to a native peer and exchange proofs of the peer token."""
        target = parse_address(address)
        if token_of(target) is not None:
            # The proof contains the address, which is unencrypted without TLS.
            raise TransferFailed(
                f"{target} has a token in its path; remove it, because native servers prove the "
                "peer token instead"
            )
        # Frames have checksums only without TLS, which detects corrupted bytes itself. Older
        # sources refuse frames with checksums. A current source also refuses the first frame if a
        # bit of it was flipped, so checksums are tried twice.
        if not target.secure and self._settings.transfer_checksum:
            for _ in range(2):
                try:
                    return await self._open_link(address, target, party, is_checked=True)
                except UncheckedFrame as error:
                    if not _is_refusal(error.frame):
                        raise
        return await self._open_link(address, target, party, is_checked=False)

    async def _open_link(
        self, address: str, target: Address, party: str, *, is_checked: bool
    ) -> tuple[AnyAsyncLink, FetchSigner | None]:
        plain = await self._dial(address, "/transfer", OPENING_BYTES, party)
        link = CheckedAsyncLink(plain) if is_checked else plain
        settings = self._hints(target, is_checked=is_checked)
        hello = Hello(VERSIONS, client="burn-remote-server", settings=settings)
        try:
            async with asyncio.timeout(self._settings.handshake_timeout_seconds):
                signer = await prove_to_source(link, target, hello, self._key)
        except BaseException:
            await link.close()
            raise
        plain.limit_messages(self._settings.max_message_bytes)
        plain.keep_alive(self._settings.peer_beat_seconds)
        return link, signer

    def _hints(self, target: Address, *, is_checked: bool) -> dict[str, str]:
        """Return the settings to send to a peer in ``Hello``."""
        needs_checksum = not (target.secure or is_checked) and self._settings.transfer_checksum
        hints = {
            CHECKSUM_SETTING: CHECKSUM if needs_checksum else None,
            MEMORY_SETTING: self._borrows_from,
            WAITING_SETTING: "yes",
            HOPS_SETTING: "yes",
        }
        return {name: hint for name, hint in hints.items() if hint is not None}

    def _close_idle(self, addresses: Sequence[str]) -> None:
        """Close one of some connections that is idle. Raises ``TransferFailed`` if none is."""
        for address in addresses:
            peer = self._peers[address]
            if peer.done() and peer.result().is_idle:
                del self._peers[address], self._openers[address]
                self._tasks.create_task(peer.result().link.close())
                return
        raise TransferFailed(
            f"this server already fetches from {len(self._peers)} peers, of {MAX_PEERS} at most, "
            "and this client may open no more; try again later"
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._burn.close()
        while self._peers:  # others may be opened while this waits
            _, found = self._peers.popitem()
            if found.done() and not found.cancelled() and found.exception() is None:
                await found.result().link.close()
            else:
                found.cancel()


def _normal(address: str) -> str:
    """Return an address in the one form that all its spellings have; an invalid one unchanged."""
    try:
        return parse_address(address).uri
    except ConnectionFailed:
        return address


def _is_over(peer: asyncio.Future[PeerConnection]) -> bool:
    if not peer.done():
        return False
    return peer.cancelled() or bool(peer.exception()) or peer.result().error is not None


def _is_refusal(frame: bytes | memoryview) -> bool:
    try:
        return isinstance(decode_frame(frame), Refused)
    except ProtocolViolation:
        return False
