"""The target's end of a peer connection, which carries all fetches from that peer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from burn_remote_protocol.dialects.native import decode_frame, encode_frame
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ConnectionLost,
    GarbledBytes,
    OperationFailed,
    ProtocolViolation,
    TransferFailed,
)
from burn_remote_protocol.links.checksummed_links import AnyAsyncLink, CheckedAsyncLink
from burn_remote_protocol.messages import (
    Acknowledged,
    Chunk,
    Closing,
    FetchRequest,
    Lent,
    Reply,
    Waiting,
)
from burn_remote_protocol.peer_proofs import FetchSigner
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.telemetry.counters import Counters
from burn_remote_server.telemetry.logs import get_logger
from burn_remote_server.transfers.downloads import Download, transfer_failure
from burn_remote_server.transfers.throughput_watchdog import (
    FairShare,
    ThroughputSample,
    watch_throughput,
)

__all__ = ["PeerConnection"]

logger = get_logger(__name__)

# Most fetches of one connection at a time: half of the 2,048 requests that a source serves at a
# time, because abandoned fetches may occupy the other half. A source leaves further requests
# unread, so it sends no progress reports for them.
MAX_FETCHES: Final = 1024

# Most abandoned fetches that are remembered until the peer replies. For further ones, a peer that
# replies late is not told to stop, so it sends tensors that no session needs.
MAX_ABANDONED: Final = 1024


class PeerConnection:
    """The connection to one peer. Belongs to the event loop's thread."""

    def __init__(
        self,
        link: AnyAsyncLink,
        counters: Counters,
        stall_seconds: float,
        *,
        may_borrow: bool,
        signer: FetchSigner | None = None,
    ) -> None:
        self.link = link
        self._signer = signer
        self._stall_seconds = stall_seconds
        self._may_borrow = may_borrow
        self._counters = counters
        self.error: TransferFailed | None = None
        self.is_broken = False  # the connection broke for another reason than an invalid message
        self.is_undecodable = False  # the peer sent bytes that do not decode to a message
        self._downloads: dict[int, Download] = {}
        self._slots = asyncio.Semaphore(MAX_FETCHES)
        self._waiting = 0  # fetches that wait for a slot
        # Transfer ids by request, of fetches that were abandoned before the peer replied.
        self._abandoned: dict[int, bytes] = {}
        self._requests = 0

    async def fetch(self, transfer: bytes, download: Download) -> Any:
        """Fetch one tensor; fail if the peer is silent or too slow.

        While ``MAX_FETCHES`` fetches run, this first waits for one of them to end. That wait needs
        no time limit, because each running fetch has one.
        """
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        try:
            return await self._fetch(transfer, download)
        finally:
            self._slots.release()

    async def _fetch(self, transfer: bytes, download: Download) -> Any:
        self._requests += 1
        request = self._requests
        self._downloads[request] = download
        try:
            wanted = FetchRequest(request, transfer, download.received)
            outcome = await self._outcome(wanted, download)
            if not isinstance(outcome, Lent):
                return outcome
            try:
                array = await download.borrow(outcome)
            except TransferFailed as reason:
                logger.warning("cannot borrow memory", peer=self.link.peer, reason=str(reason))
                download.decline()
                return await self._outcome(wanted, download)
            await self._check_alive()
            self._counters.transfers_borrowed += 1
            return array
        except OperationFailed:
            # As it is: an error that was its own cause would have no end of causes.
            raise
        except BurnRemoteError as error:
            raise transfer_failure(error) from error
        finally:
            del self._downloads[request]
            download.done.cancel()
            if self.error is None and download.exposed_bytes is not None:
                with contextlib.suppress(ConnectionLost):
                    await self._confirm(request, transfer, download.exposed_bytes)
            elif self.error is None and download.awaits_reply:
                self._abandon(request, transfer)

    async def _check_alive(self) -> None:
        """Ping the lender before trusting a borrowed copy.

        The lender keeps the memory unchanged until it receives the confirmation or closes the
        connection. This end may not have noticed yet that it closed. Raises the error of the
        connection.
        """
        try:
            async with asyncio.timeout(self._stall_seconds):
                await self.link.probe()
        except TimeoutError:
            raise TransferFailed(f"{self.link.peer} does not respond") from None
        except ConnectionLost as error:
            self._break(error)
        if self.error is not None:
            raise self.error.with_traceback(None)

    async def _confirm(self, request: int, transfer: bytes, exposed_bytes: int) -> None:
        """Tell the peer to stop sending a tensor and to free it."""
        # A peer that does not read the message keeps the tensor until the fetch expires.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._stall_seconds):
                await self._send(FetchRequest(request, transfer, exposed_bytes))

    async def _send(self, wanted: FetchRequest) -> None:
        """Send a fetch, signed where the handshake agreed on a key."""
        if self._signer is not None:
            tag = self._signer.tag(wanted.request, wanted.transfer, wanted.offset)
            wanted = replace(wanted, tag=tag)
        await self.link.send(encode_frame(wanted))

    def _abandon(self, request: int, transfer: bytes) -> None:
        """Remember an abandoned fetch: when the peer replies, a confirmation stops its transfer."""
        self._abandoned[request] = transfer
        if len(self._abandoned) > MAX_ABANDONED:
            del self._abandoned[next(iter(self._abandoned))]

    async def _outcome(self, wanted: FetchRequest, download: Download) -> Any:
        """Request a tensor; return its array, or the handle of lent memory."""
        if self.error is not None:
            raise self.error.with_traceback(None)
        try:
            async with asyncio.timeout(self._stall_seconds):
                await self._send(wanted)
        except TimeoutError:
            raise TransferFailed(f"{self.link.peer} does not accept requests") from None
        except ConnectionLost as error:
            # The send failed before ``receive`` noticed that the connection broke. The caller may
            # retry over another connection.
            self._break(error)
            assert self.error is not None
            raise self.error from error
        share = FairShare()
        await watch_throughput(
            download.done,
            self.link.peer,
            self._stall_seconds,
            has_begun=lambda: download.exposed_bytes is not None,
            arrived=lambda: self.link.received_bytes,
            allowed=lambda: share.allowed(self._sample(download)),
            reports=lambda: download.reports,
        )
        return download.done.result()

    def _sample(self, download: Download) -> ThroughputSample:
        arrived = self.link.received_bytes
        return ThroughputSample(arrived, download.received, len(self._downloads), self._requests)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being fetched."""
        return not self._downloads and not self._waiting

    async def beat(self, interval_seconds: float) -> None:
        """Send a frame each interval: its checksum, which includes the frame number, reveals loss.

        Otherwise, the loss of a frame would be noticed only with the next frame.
        """
        with contextlib.suppress(ConnectionLost):
            while self.error is None:
                await asyncio.sleep(interval_seconds)
                await self.link.send(encode_frame(Acknowledged(0)))

    async def receive(self) -> None:
        """Pass received messages to the downloads, until the connection ends."""
        try:
            while True:
                message = await self._received()
                if isinstance(message, Reply):
                    transfer = self._abandoned.pop(message.request, None)
                    if transfer is not None and isinstance(message.value, TensorSpec):
                        await self._confirm(message.request, transfer, message.value.nbytes)
                    self._hand(message.request, Download.begin, message.value)
                elif isinstance(message, Chunk):
                    self._hand(message.payload, Download.write, message)
                elif isinstance(message, Waiting):
                    self._hand(message.request, Download.note_progress, message.hops)
                elif isinstance(message, Lent) and self._may_borrow:
                    self._hand(message.request, Download.lend, message)
                elif isinstance(message, Closing):
                    # The peer could not decode a request. A try over a new connection may succeed.
                    raise ConnectionLost(f"{self.link.peer} ended the connection: {message.error}")
                else:
                    raise ProtocolViolation(f"a peer sent {type(message).__name__}")
        except BurnRemoteError as error:
            self._break(error)
            await self.link.close()
        except Exception as error:  # otherwise it would end the server, which owns this task
            logger.exception("peer connection failed unexpectedly", peer=self.link.peer)
            self._break(BurnRemoteError(f"the server failed: {type(error).__name__}: {error}"))
            await self.link.close()

    async def _received(self) -> object:
        try:
            while True:
                frame = await self.link.receive()
                self._counters.peer_received_bytes += len(frame)
                message = decode_frame(frame)
                # A heartbeat: its checksum has shown that no earlier frame was lost.
                is_beat = isinstance(message, Acknowledged)
                if not (is_beat and isinstance(self.link, CheckedAsyncLink)):
                    return message
        except ProtocolViolation:
            self.is_undecodable = True
            raise

    def _break(self, error: BurnRemoteError) -> None:
        self.is_broken = isinstance(error, ConnectionLost | GarbledBytes)
        self.error = TransferFailed(f"the connection to {self.link.peer} broke: {error}")
        for download in self._downloads.values():
            download.fail(self.error)

    def _hand(self, request: int, take: Callable[[Download, Any], None], content: Any) -> None:
        """Pass the content of a message to its download, unless the fetch has ended."""
        download = self._downloads.get(request)
        if download is None or download.done.done():
            return
        try:
            take(download, content)
        except OperationFailed as error:
            download.fail(error)
        except MemoryError:
            reason = f"the target does not have enough memory for {download.spec}"
            download.fail(TransferFailed(reason))
