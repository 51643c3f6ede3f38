"""How does one native connection live: handshake, read loop, write loop, end?"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from burn_remote_protocol.dialects.native import (
    CHUNK_BYTES,
    MAX_SIGNATURES,
    VERSIONS,
    Batch,
    decode_frame,
    encode_frame,
)
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ClosedDevice,
    ConnectionLost,
    OperationFailed,
    ProtocolViolation,
    SessionLost,
    TransferFailed,
)
from burn_remote_protocol.handshake import CHECKSUM, CHECKSUM_SETTING, agreed_version
from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_protocol.messages import (
    Acknowledged,
    Chunk,
    Closing,
    Fetch,
    FetchRequest,
    Hello,
    Refused,
    Welcome,
)
from burn_remote_protocol.tensors import TensorData
from burn_remote_server.access import Grant
from burn_remote_server.attachments import Attachment
from burn_remote_server.host import Device, Host
from burn_remote_server.outbox import NativeOutbox
from burn_remote_server.sending import Sending
from burn_remote_server.sessions import Session
from burn_remote_server.slots import InFlight
from burn_remote_server.telemetry import get_logger

__all__ = ["MAX_WAITING_REPLIES", "TURN_COST", "serve_peer", "serve_session"]

logger = get_logger(__name__)

# Answers that wait to be sent before the next frame is read. Larger: a client that asks and does
# not read makes the server hold more. Smaller: a burst of reads is answered in more steps.
MAX_WAITING_REPLIES = 1024


# What one session may cost the event loop before the others get their turn, in the unit of the
# estimates, about a nanosecond. Larger: one session's small work delays the others' more. Smaller:
# turning to others, some 5 µs, shows.
TURN_COST: Final = 200_000


class _Writer:
    """Send what an outbox holds, one frame at a time, and let the reader wait for room."""

    def __init__(
        self,
        link: AsyncLink,
        outbox: NativeOutbox,
        sent: Callable[[int], None],
        session: Session | None = None,
    ) -> None:
        self._link = link
        self._outbox = outbox
        self._sent = sent
        self._session = session
        self._said: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._progress = asyncio.Event()

    def wake(self) -> None:
        """Look again: there may be something to send, or room."""
        self._wake.set()
        self._progress.set()

    def say(self, message: object) -> None:
        """Send a message that does not belong to the session's frames."""
        self._said.append(encode_frame(message))
        self._wake.set()

    async def progress(self) -> None:
        """Wait until something has been done or sent."""
        self._progress.clear()
        await self._progress.wait()

    async def run(self) -> None:
        """Send for as long as the connection lives. Raises what ended the session."""
        while True:
            await self.flush()
            if self._session is not None and self._session.error is not None:
                raise self._session.error
            await self._wake.wait()
            self._wake.clear()

    async def flush(self) -> None:
        """Send everything that waits."""
        while self._said or len(self._outbox):
            if self._said:
                await self._link.send(self._said.popleft())
                continue
            frame = self._outbox.take()
            if isinstance(frame, bytes):
                await self._link.send(frame)
                self._sent(len(frame))
            elif frame is not None:
                await self._link.send_parts(*frame)
                self._sent(len(frame[1]))
            self._progress.set()


async def serve_session(link: AsyncLink, device: Device, token: str | None = None) -> None:
    """Serve one client until it goes, misbehaves, or the server drains.

    ``token`` is what stood in the path, for a client that says none in its ``Hello``.
    """
    host = device.host
    try:
        hello, version = await _greeting(link, host)
        grant = host.access.admit(token if hello.token is None else hello.token)
        if hello.resume is not None:
            attachment = await host.attachments.resume(hello.resume)
        else:
            attachment = _open(device, grant)
    except BurnRemoteError as error:
        host.counters.sessions_refused += 1
        await _refuse(link, error)
        return
    log = logger.bind(
        session=f"{attachment.session.identifier:x}",
        peer=link.peer,
        device=device.index,
        token=grant.name,
    )
    log.info("session resumed" if hello.resume else "session opened", client=hello.client)
    connection = asyncio.current_task()
    assert connection is not None  # a handler runs in a task
    writer = _session_writer(link, attachment)
    attachment.attach(connection, writer.wake)
    ending = _Ending()
    try:
        await link.send(encode_frame(_welcome(device, attachment, version)))
        ending = _Ending(await _converse(link, attachment, writer, host))
    except BurnRemoteError as error:
        ending = _ending(error, attachment, host)
        log.info("connection ended", code=error.code, reason=str(error))
    finally:
        if attachment.serves(connection):
            _let_go(attachment, host, ending.lease_seconds)
    if ending.reason is not None:
        await _say_goodbye(link, ending.reason)


class _Ending(NamedTuple):
    """How a connection ends: what the client is told, and how long its session is kept."""

    reason: BurnRemoteError | None = None
    lease_seconds: float = 0.0


def _ending(error: BurnRemoteError, attachment: Attachment, host: Host) -> _Ending:
    if isinstance(error, ClosedDevice):
        return _Ending()
    if isinstance(error, ConnectionLost) and not isinstance(error, SessionLost):
        is_kept = attachment.session.error is None and not host.draining.is_set()
        return _Ending(lease_seconds=host.settings.lease_seconds if is_kept else 0.0)
    return _Ending(reason=error)


def _session_writer(link: AsyncLink, attachment: Attachment) -> _Writer:
    counters = attachment.session.counters

    def sent(size: int) -> None:
        counters.client_sent_bytes += size

    return _Writer(link, attachment.outbox, sent, attachment.session)


def _open(device: Device, grant: Grant) -> Attachment:
    host = device.host
    identifier = host.draw_session_id(grant)

    def fetch(task: Fetch, slot: InFlight) -> None:
        host.start_fetch("native", device.backend, task, slot)

    allowed = host.settings.limited(grant.limits).session_bytes(device.backend.memory_bytes())
    outbox = NativeOutbox(fetch, max_waiting_bytes=allowed)
    attachment = Attachment(device.open_session(identifier, outbox, "native", grant), outbox)
    attachment.session.counters.failures = outbox.failures
    host.attachments.add(attachment)
    return attachment


def _let_go(attachment: Attachment, host: Host, lease_seconds: float) -> None:
    """End a session, or keep it for its lease so that its client can come back."""

    def end() -> None:
        session = attachment.session
        logger.info(
            "session closed",
            session=f"{session.identifier:x}",
            operations=session.interpreter.executed,
        )
        host.attachments.forget(attachment)
        host.end_session(session)

    if lease_seconds > 0:
        attachment.detach(lease_seconds, end)
    else:
        end()


async def _converse(
    link: AsyncLink, attachment: Attachment, writer: _Writer, host: Host
) -> BurnRemoteError:
    """Read and write until the server drains; return what the client is told then.

    Raises ``ConnectionLost`` when the client is gone, ``ClosedDevice`` when it said goodbye, and
    ``ProtocolViolation`` when it misbehaves.
    """
    reading = asyncio.ensure_future(_read(link, attachment, writer, host))
    writing = asyncio.ensure_future(writer.run())
    draining = asyncio.ensure_future(host.draining.wait())
    running: set[asyncio.Future[Any]] = {reading, writing, draining}
    try:
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for finished in (reading, writing):
            if finished.done():
                finished.result()
        reading.cancel()
        while attachment.session.queued:
            await writer.progress()
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        await writer.flush()
        return SessionLost("the server is shutting down")
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _read(link: AsyncLink, attachment: Attachment, writer: _Writer, host: Host) -> None:
    queue_length = host.settings.session_queue_batches
    queue_bytes = host.settings.session_queue_bytes
    session, outbox = attachment.session, attachment.outbox
    while True:
        frame = await link.receive()
        session.counters.client_received_bytes += len(frame)
        message = decode_frame(frame)
        if isinstance(message, Batch):
            session.counters.batches += 1
            attachment.note_frame()
            attachment.note_acknowledged(message.received)
            session.submit_batch(message, len(frame))
        elif isinstance(message, Chunk):
            attachment.note_frame()
            session.submit_chunk(message)
        elif isinstance(message, Acknowledged):
            attachment.note_acknowledged(message.received)
        elif isinstance(message, Closing):
            await _finish(session, writer)
            raise message.error
        else:
            raise ProtocolViolation(f"a client in a session does not send {_name(message)}")
        if (acknowledgement := attachment.acknowledgement()) is not None:
            writer.say(acknowledgement)
        while (
            session.queued >= queue_length
            or session.queued_bytes >= queue_bytes
            or len(outbox) >= MAX_WAITING_REPLIES
        ):
            await writer.progress()
        if session.spent >= TURN_COST:
            # Frames that have arrived are received without waiting: without this, a session with
            # many of them would keep the others from theirs.
            session.spent = 0
            await asyncio.sleep(0)


async def _finish(session: Session, writer: _Writer) -> None:
    """Wait for what a client asked for before it said goodbye: moves to others may depend on it."""
    while session.queued and session.error is None:
        await writer.progress()


async def serve_peer(link: AsyncLink, host: Host, token: str | None = None) -> None:
    """Serve another server: answer its fetches until it goes."""
    try:
        hello, version = await _greeting(link, host)
        host.access.admit_peer(token if hello.token is None else hello.token)
    except BurnRemoteError as error:
        await _refuse(link, error)
        return
    wants_checksums = hello.settings.get(CHECKSUM_SETTING) == CHECKSUM
    outbox = NativeOutbox(
        _no_fetch,
        is_resumable=False,
        has_checksums=wants_checksums and host.settings.transfer_checksum,
    )
    counters = host.counters

    def sent(size: int) -> None:
        counters.peer_sent_bytes += size

    writer = _Writer(link, outbox, sent)
    await link.send(encode_frame(_peer_welcome(host, version)))
    sending = Sending(host.transfers, "native", host.settings.fetch_timeout_seconds)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(writer.run())
            while True:
                message = decode_frame(await link.receive())
                if not isinstance(message, FetchRequest):
                    raise ProtocolViolation(f"a peer does not send {_name(message)}")
                if sending.arrived(message):
                    continue
                tasks.create_task(_answer(message, host, sending, outbox, writer))
                while len(outbox) >= MAX_WAITING_REPLIES:
                    await writer.progress()
    except* ConnectionLost:
        pass
    except* BurnRemoteError as group:
        reason = next(error for error in group.exceptions if isinstance(error, BurnRemoteError))
        await _say_goodbye(link, reason)
    finally:
        sending.expose_again()


async def _answer(
    request: FetchRequest, host: Host, sending: Sending, outbox: NativeOutbox, writer: _Writer
) -> None:
    try:
        exposed = await host.exposed(("native", request.transfer))
        sending.begin(request, exposed)
        if exposed.failure is not None:
            raise exposed.failure
        spec = exposed.spec
        data = await asyncio.to_thread(exposed.backend.to_bytes, exposed.array, spec.dtype)
        outbox.follow(request.request, TensorData(data, spec.shape, spec.dtype), request.offset)
    except OperationFailed as error:
        outbox.reply(request.request, error)
    except MemoryError:
        sending.give_up(request)
        reason = "the source has no room to copy the tensor's elements"
        outbox.reply(request.request, TransferFailed(reason))
    writer.wake()


def _no_fetch(task: Fetch, slot: InFlight) -> None:
    raise AssertionError("a peer connection has no session that could fetch")


def _name(message: object) -> str:
    return type(message).__name__


async def _greeting(link: AsyncLink, host: Host) -> tuple[Hello, int]:
    seconds = host.settings.handshake_timeout_seconds
    try:
        async with asyncio.timeout(seconds):
            hello = decode_frame(await link.receive())
    except TimeoutError:
        raise ProtocolViolation(f"no Hello came within {seconds:g} seconds") from None
    if not isinstance(hello, Hello):
        raise ProtocolViolation(f"a connection opens with Hello, not with {_name(hello)}")
    return hello, agreed_version(hello, VERSIONS)


def _welcome(device: Device, attachment: Attachment, version: int) -> Welcome:
    settings, session = device.host.settings, attachment.session
    return Welcome(
        version=version,
        session=session.identifier,
        secret=session.secret,
        lease_seconds=settings.lease_seconds,
        device={"index": device.index, "backend": device.backend.name},
        limits={
            "chunk_bytes": CHUNK_BYTES,
            "message_bytes": settings.max_message_bytes,
            "signatures": MAX_SIGNATURES,
        },
        peer_address=device.peer_address,
        received=attachment.received,
    )


def _peer_welcome(host: Host, version: int) -> Welcome:
    limits = {"chunk_bytes": CHUNK_BYTES, "message_bytes": host.settings.max_message_bytes}
    return Welcome(version, 0, b"", 0.0, {}, limits, host.peer_address(0))


async def _refuse(link: AsyncLink, error: BurnRemoteError) -> None:
    if isinstance(error, ConnectionLost) and not isinstance(error, SessionLost):
        return
    logger.warning("connection refused", peer=link.peer, code=error.code, reason=str(error))
    try:
        await link.send(encode_frame(Refused(error)))
        await link.close(1008, "refused")
    except ConnectionLost:
        pass


async def _say_goodbye(link: AsyncLink, error: BurnRemoteError) -> None:
    try:
        await link.send(encode_frame(Closing(error)))
        await link.close(1001 if isinstance(error, SessionLost) else 1008, error.code)
    except ConnectionLost:
        pass
