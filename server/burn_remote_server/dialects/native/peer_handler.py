"""The source's end of a connection over which another server fetches exposed tensors."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any, Final

from burn_remote_protocol.dialects.native import CHUNK_BYTES, decode_frame, encode_frame
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ConnectionLost,
    GarbledBytes,
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
from burn_remote_protocol.links.checksummed_links import AnyAsyncLink, CheckedAsyncLink
from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_protocol.messages import Acknowledged, Fetch, FetchRequest, JoinLink, Welcome
from burn_remote_protocol.peer_proofs import FetchSigner
from burn_remote_protocol.tensors import TensorData
from burn_remote_server.access.peer_authentication import admit_target
from burn_remote_server.dialects.native.frame_writer import FrameWriter
from burn_remote_server.dialects.native.handshake import (
    checked_link,
    name_of,
    read_hello,
    receive_first,
    refuse,
    send_closing,
)
from burn_remote_server.dialects.native.link_handler import serve_link
from burn_remote_server.execution.native_outbox import NativeOutbox
from burn_remote_server.execution.sessions import MAX_WAITING_REPLIES
from burn_remote_server.hosting.host import NATIVE_TRANSFERS, Host
from burn_remote_server.tensors.slots import InFlight
from burn_remote_server.transfers.outgoing_transfers import OutgoingTransfers

__all__ = ["serve_peer"]

# Most fetches of one connection that run or wait for their tensors; a session of the other server
# sends up to 64 at a time. At this number, the connection is not read.
MAX_PEER_FETCHES: Final = 2048
# Requests of one connection that are handled in one iteration of the event loop, each about 50 µs.
# An attacker may open hundreds of connections.
REQUESTS_AT_ONCE: Final = 4


async def serve_peer(plain: AsyncLink, host: Host) -> None:
    """Serve the fetches of another server until it disconnects."""
    link: AnyAsyncLink = plain
    try:
        first = await receive_first(plain, host)
        link, contents = checked_link(plain, first)
        hello, version = read_hello(contents)
        signer = await admit_target(
            link,
            hello,
            version,
            host.access.peer_keys(),
            [device.peer_address for device in host.devices],
            host.settings.handshake_timeout_seconds,
        )
    except BurnRemoteError as error:
        await refuse(link, error)
        return
    wants_checksums = hello.settings.get(CHECKSUM_SETTING) == CHECKSUM
    outbox = NativeOutbox(
        _no_fetch,
        is_resumable=False,
        tells_waiting=hello.settings.get(WAITING_SETTING) == "yes",
        tells_hops=hello.settings.get(HOPS_SETTING) == "yes",
        has_checksums=wants_checksums and host.settings.transfer_checksum,
    )
    counters = host.counters

    def sent(size: int) -> None:
        counters.peer_sent_bytes += size

    writer = FrameWriter(link, outbox, sent)
    sending = OutgoingTransfers(
        host.transfers,
        "native",
        host.settings.fetch_timeout_seconds,
        borrower=hello.settings.get(MEMORY_SETTING) if host.settings.cuda_ipc else None,
    )
    host.outgoing_transfers.add(sending)
    fetches = _RunningFetches(host)
    try:
        await link.send(encode_frame(_peer_welcome(host, version)))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(writer.run())
            tasks.create_task(fetches.watch())
            tasks.create_task(_close_when_draining(host, sending))
            if isinstance(link, CheckedAsyncLink):
                tasks.create_task(_beat(host, writer))
            await _receive_requests(
                link, plain.peer_host, host, fetches, signer, sending, outbox, writer
            )
    except* _LinkWanted as group:
        (wanted,) = group.exceptions
        assert isinstance(wanted, _LinkWanted)
        await _serve_link(link, host, wanted.message, signer)
    except* (ConnectionLost, GarbledBytes):
        pass  # the peer continues on another connection
    except* BurnRemoteError as group:
        reason = next(error for error in group.exceptions if isinstance(error, BurnRemoteError))
        await send_closing(link, reason)
    finally:
        try:
            await fetches.end()
        finally:
            host.outgoing_transfers.discard(sending)
            sending.expose_again()


class _RunningFetches:
    """The tasks of one connection, one for each fetch.

    They are not in the connection's task group, which would cancel all of them in one iteration of
    the event loop: 300 ms for 60 connections that ended at the same moment.
    """

    def __init__(self, host: Host) -> None:
        self._host: Final = host
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._failed: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()

    def start(self, fetch: Coroutine[Any, Any, None], ended: Callable[[], None]) -> None:
        """Run a fetch; call ``ended`` when it has ended."""
        task = asyncio.ensure_future(fetch)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        task.add_done_callback(lambda _: ended())

    async def watch(self) -> None:
        """Wait for the first exception of a fetch, and raise it."""
        await self._failed

    async def end(self) -> None:
        """Cancel all fetches, a bounded number in each iteration, and wait for them."""
        if not self._failed.cancel() and not self._failed.cancelled():
            self._failed.exception()  # mark as retrieved; asyncio logs unretrieved exceptions
        self._host.cancellations.call(asyncio.Task.cancel, [*self._tasks])
        if self._tasks:
            await asyncio.wait([*self._tasks])

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failed.done():
            self._failed.set_exception(error)


async def _receive_requests(
    link: AnyAsyncLink,
    peer_host: str,
    host: Host,
    fetches: _RunningFetches,
    signer: FetchSigner | None,
    sending: OutgoingTransfers,
    outbox: NativeOutbox,
    writer: FrameWriter,
) -> None:
    """Start a task for each fetch. Raises ``ConnectionLost`` and ``ProtocolViolation``."""
    allowed = asyncio.Semaphore(MAX_PEER_FETCHES)
    for received in itertools.count(1):
        message = decode_frame(await link.receive())
        if isinstance(message, JoinLink) and received == 1:
            raise _LinkWanted(message)
        if received % REQUESTS_AT_ONCE == 0:
            await asyncio.sleep(0)  # ``receive`` does not yield while frames are buffered
        if isinstance(message, Acknowledged) and isinstance(link, CheckedAsyncLink):
            continue  # a heartbeat: its checksum has shown that no earlier frame was lost
        if not isinstance(message, FetchRequest):
            raise ProtocolViolation(f"a peer must not send {name_of(message)}")
        if signer is not None and not signer.accepts(
            message.tag, message.request, message.transfer, message.offset
        ):
            raise ProtocolViolation("a fetch has an invalid signature")
        if sending.arrived(message):
            outbox.abandon(message.request)
            continue
        await allowed.acquire()
        fetch = _serve_fetch(message, peer_host, host, sending, outbox, writer)
        fetches.start(fetch, allowed.release)
        while len(outbox) >= MAX_WAITING_REPLIES:
            await writer.progress()


class _LinkWanted(Exception):
    """The connection becomes a link of a group."""

    def __init__(self, message: JoinLink) -> None:
        super().__init__()
        self.message = message


async def _serve_link(
    link: AnyAsyncLink, host: Host, message: JoinLink, signer: FetchSigner | None
) -> None:
    try:
        await serve_link(link, host, message, signer)
    except ConnectionLost:
        pass
    except BurnRemoteError as error:
        await send_closing(link, error)


async def _beat(host: Host, writer: FrameWriter) -> None:
    """Send a frame each interval, so that its checksum soon reveals the loss of earlier frames."""
    while True:
        await asyncio.sleep(host.settings.peer_beat_seconds)
        writer.acknowledge(Acknowledged(0))


async def _close_when_draining(host: Host, sending: OutgoingTransfers) -> None:
    """End the connection when the server shuts down and the peer has received its tensors."""
    await host.sessions_ended.wait()
    await sending.finished()
    raise ConnectionLost("this server is shutting down")


async def _serve_fetch(
    request: FetchRequest,
    peer_host: str,
    host: Host,
    sending: OutgoingTransfers,
    outbox: NativeOutbox,
    writer: FrameWriter,
) -> None:
    def still_waiting(hops: int) -> None:
        outbox.wait(request.request, hops)
        writer.wake()

    try:
        exposed = sending.declined(request)
        if exposed is None:
            key = NATIVE_TRANSFERS, request.transfer
            exposed = await host.waiting_peers.exposed(key, still_waiting, peer_host)
            sending.begin(request, exposed)
        if exposed.failure is not None:
            raise exposed.failure.with_traceback(None)
        backend, array, spec = exposed.backend, exposed.array, exposed.spec
        loan = None
        if sending.may_lend(request, exposed):
            with sending.counting_loan(exposed):
                loan = await asyncio.to_thread(backend.lend, array, spec.dtype)
        if loan is not None:
            if sending.lend(request, exposed, loan):
                outbox.lend(request.request, spec, loan.handle)
                host.counters.transfers_lent += 1
        else:
            data = await asyncio.to_thread(backend.to_bytes, array, spec.dtype)
            outbox.follow(request.request, TensorData(data, spec.shape, spec.dtype), request.offset)
    except OperationFailed as error:
        sending.give_up(request)
        outbox.reply(request.request, error)
    except MemoryError:
        sending.give_up(request)
        reason = "the source does not have enough memory to copy the tensor's elements"
        outbox.reply(request.request, TransferFailed(reason))
    writer.wake()


def _no_fetch(task: Fetch, slot: InFlight) -> None:
    raise AssertionError("a peer connection has no session that could fetch")


def _peer_welcome(host: Host, version: int) -> Welcome:
    limits = {"chunk_bytes": CHUNK_BYTES, "message_bytes": host.settings.max_message_bytes}
    return Welcome(version, 0, b"", 0.0, {}, limits, host.peer_address(0))
