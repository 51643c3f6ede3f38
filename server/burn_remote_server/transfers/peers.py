"""How does a server fetch a tensor that another server exposes?

One connection per peer address carries all fetches from it, interleaved chunk by chunk.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from burn_remote_protocol.dialects.native import VERSIONS, decode_frame, encode_frame
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ConnectionLost,
    GarbledBytes,
    OperationFailed,
    ProtocolViolation,
    TransferFailed,
)
from burn_remote_protocol.handshake import CHECKSUM, CHECKSUM_SETTING, MEMORY_SETTING, accepted
from burn_remote_protocol.links.addresses import parse_address
from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_protocol.links.websocket_asyncio import WebSocketLink, connect
from burn_remote_protocol.messages import Chunk, Fetch, FetchRequest, Hello, Lent, Reply
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.access.peer_rules import PeerRules
from burn_remote_server.access.tls import peer_context
from burn_remote_server.backends.interface import Backend
from burn_remote_server.burn.peers import BurnPeers
from burn_remote_server.process.configuration import Settings
from burn_remote_server.telemetry.counters import Counters
from burn_remote_server.telemetry.logs import get_logger
from burn_remote_server.transfers.downloads import Download, transfer_failure

__all__ = ["Peers"]

logger = get_logger(__name__)


# Connections to other servers, each of which a client named. Larger: more sockets. Smaller: a
# cluster of more servers than this cannot move tensors between all of them.
MAX_PEERS: Final = 256

# Fetches that were given up and whose answer a peer still owes. Larger: a peer that never answers
# has more of them remembered. Smaller: one that answers late sends tensors in vain.
MAX_LEFT: Final = 1024

# Connections over which one tensor may come; each goes on where the one before broke. Larger: a
# network that breaks every time is tried for longer. Smaller: fewer breaks are survived.
TRIES: Final = 5


class _Peer:
    """The connection to one peer."""

    def __init__(self, link: AsyncLink, counters: Counters, *, may_borrow: bool) -> None:
        self.link = link
        self._may_borrow = may_borrow
        self._counters = counters
        self.error: TransferFailed | None = None
        self.is_broken = False  # and did not end for what the peer sent
        self._downloads: dict[int, Download] = {}
        # Transfers by request, of fetches that were given up before the peer answered.
        self._left: dict[int, bytes] = {}
        self._requests = 0

    async def fetch(self, transfer: bytes, download: Download, stall_seconds: float) -> Any:
        """Fetch one tensor; gives up when nothing arrives for ``stall_seconds``."""
        self._requests += 1
        request = self._requests
        self._downloads[request] = download
        try:
            wanted = FetchRequest(request, transfer, download.received)
            outcome = await self._outcome(wanted, download, stall_seconds)
            if not isinstance(outcome, Lent):
                return outcome
            try:
                array = await download.borrow(outcome)
            except TransferFailed as reason:
                logger.warning("cannot borrow memory", peer=self.link.peer, reason=str(reason))
                download.decline()
                return await self._outcome(wanted, download, stall_seconds)
            # The source lends until it hears that all is copied, or the connection ends.
            if self.error is not None:
                raise self.error
            self._counters.transfers_borrowed += 1
            return array
        except BurnRemoteError as error:
            raise transfer_failure(error) from error
        finally:
            del self._downloads[request]
            download.done.cancel()
            if self.error is None and download.exposed_bytes is not None:
                with contextlib.suppress(ConnectionLost):
                    await self._say_enough(request, transfer, download.exposed_bytes)
            elif self.error is None and download.owes_answer:
                self._leave(request, transfer)

    async def _say_enough(self, request: int, transfer: bytes, exposed_bytes: int) -> None:
        """Tell the peer to send no more of a tensor, and to keep it for no other try."""
        await self.link.send(encode_frame(FetchRequest(request, transfer, exposed_bytes)))

    def _leave(self, request: int, transfer: bytes) -> None:
        """Remember a fetch that was given up, to tell the peer so when it answers."""
        self._left[request] = transfer
        if len(self._left) > MAX_LEFT:
            del self._left[next(iter(self._left))]

    async def _outcome(self, wanted: FetchRequest, download: Download, stall_seconds: float) -> Any:
        """Ask for a tensor, and return its array or where it is lent."""
        if self.error is not None:
            raise self.error
        await self.link.send(encode_frame(wanted))
        seen = -1
        while not download.done.done():
            if seen == download.received:
                raise TransferFailed(
                    f"nothing arrived from {self.link.peer} for {stall_seconds:g} seconds"
                )
            seen = download.received
            await asyncio.wait([download.done], timeout=stall_seconds)
        return download.done.result()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being fetched."""
        return not self._downloads

    async def receive(self) -> None:
        """Hand what arrives to the downloads, until the connection ends."""
        try:
            while True:
                frame = await self.link.receive()
                self._counters.peer_received_bytes += len(frame)
                message = decode_frame(frame)
                if isinstance(message, Reply):
                    transfer = self._left.pop(message.request, None)
                    if transfer is not None and isinstance(message.value, TensorSpec):
                        await self._say_enough(message.request, transfer, message.value.nbytes)
                    self._hand(message.request, lambda download: download.begin(message.value))  # noqa: B023
                elif isinstance(message, Chunk):
                    self._hand(message.payload, lambda download: download.write(message))  # noqa: B023
                elif isinstance(message, Lent) and self._may_borrow:
                    self._hand(message.request, lambda download: download.lend(message))  # noqa: B023
                else:
                    raise ProtocolViolation(f"a peer sent {type(message).__name__}")
        except BurnRemoteError as error:
            self.is_broken = isinstance(error, ConnectionLost | GarbledBytes)
            self.error = TransferFailed(f"the connection to {self.link.peer} broke: {error}")
            for download in self._downloads.values():
                download.fail(self.error)
            await self.link.close()

    def _hand(self, request: int, take: Callable[[Download], None]) -> None:
        # A fetch that gave up is no longer there; what still arrives for it is left aside.
        download = self._downloads.get(request)
        if download is None or download.done.done():
            return
        try:
            take(download)
        except OperationFailed as error:
            download.fail(error)
        except MemoryError:
            download.fail(TransferFailed(f"the target has no room for {download.spec}"))


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
        self._peers: dict[str, asyncio.Future[_Peer]] = {}
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
        # The peer waits for the expose as long as this side does; its refusal must come first.
        stall_seconds = 1.5 * self._settings.fetch_timeout_seconds
        for tries_left in reversed(range(TRIES)):
            peer = await self._peer(address)
            try:
                return await peer.fetch(transfer, download, stall_seconds)
            except OperationFailed:
                if not peer.is_broken or not tries_left:
                    raise
                download.try_again()
        raise AssertionError("the last try returns or raises")

    async def _peer(self, address: str) -> _Peer:
        found = self._peers.get(address)
        if found is None or _is_over(found):
            # Clients choose the addresses: those that led nowhere must not pile up.
            self._peers = {key: peer for key, peer in self._peers.items() if not _is_over(peer)}
            if len(self._peers) >= MAX_PEERS:
                self._close_idle()
            found = self._peers[address] = asyncio.ensure_future(self._connect(address))
        return await asyncio.shield(found)

    async def _connect(self, address: str) -> _Peer:
        try:
            link = await self._open(address)
        except TransferFailed:
            raise
        except (BurnRemoteError, TimeoutError) as error:
            text = str(error) or "no answer to the handshake"
            raise TransferFailed(f"cannot reach the source {address}: {text}") from error
        peer = _Peer(link, self._counters, may_borrow=self._borrows_from is not None)
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

    async def _open(self, address: str) -> AsyncLink:
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


def _is_over(peer: asyncio.Future[_Peer]) -> bool:
    if not peer.done():
        return False
    return peer.cancelled() or bool(peer.exception()) or peer.result().error is not None
