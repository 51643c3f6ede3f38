"""How does one native connection live: handshake, read loop, write loop, end?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from burn_remote_protocol.dialects.native import (
    CHUNK_BYTES,
    MAX_SIGNATURES,
    Batch,
    decode_frame,
    encode_frame,
)
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ClosedDevice,
    ConnectionLost,
    ProtocolViolation,
    SessionLost,
)
from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_protocol.messages import (
    Acknowledged,
    Chunk,
    Closing,
    Fetch,
    Welcome,
)
from burn_remote_server.access.admission import Grant
from burn_remote_server.access.quota import FrameAccount
from burn_remote_server.connections.attachments import Attachment
from burn_remote_server.connections.frame_writer import MAX_WAITING_REPLIES, FrameWriter
from burn_remote_server.connections.greetings import greeting, name_of, refuse, say_goodbye
from burn_remote_server.execution.outbox import NativeOutbox
from burn_remote_server.execution.sessions import Session
from burn_remote_server.execution.slots import InFlight
from burn_remote_server.host import NATIVE_TRANSFERS, Device, Host
from burn_remote_server.telemetry.logs import get_logger, session_name

__all__ = ["TURN_COST", "serve_session"]

logger = get_logger(__name__)

# What one session may cost the event loop before the others get their turn, in the unit of the
# estimates, about a nanosecond. Larger: one session's small work delays the others' more. Smaller:
# turning to others, some 5 µs, shows.
TURN_COST: Final = 200_000


def _nothing() -> None:
    """Nobody wants to know."""


async def serve_session(
    link: AsyncLink,
    device: Device,
    token: str | None = None,
    admitted: Callable[[], None] = _nothing,
) -> None:
    """Serve one client until it goes, misbehaves, or the server drains.

    ``token`` is what stood in the path, for a client that says none in its ``Hello``. ``admitted``
    is called when the client may go on.
    """
    host = device.host
    try:
        hello, version = await greeting(link, host)
        grant = host.access.admit(token if hello.token is None else hello.token)
        admitted()
        if hello.resume is not None:
            attachment = await host.attachments.resume(hello.resume)
        else:
            attachment = _open(device, grant)
    except BurnRemoteError as error:
        host.counters.sessions_refused += 1
        await refuse(link, error)
        return
    log = logger.bind(
        session=session_name(attachment.session.identifier),
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
        await say_goodbye(link, ending.reason)


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


def _session_writer(link: AsyncLink, attachment: Attachment) -> FrameWriter:
    counters = attachment.session.counters

    def sent(size: int) -> None:
        counters.client_sent_bytes += size

    return FrameWriter(link, attachment.outbox, sent, attachment.session)


def _open(device: Device, grant: Grant) -> Attachment:
    host = device.host
    identifier = host.draw_session_id(grant)

    def fetch(task: Fetch, slot: InFlight) -> None:
        host.start_fetch(outbox, device.backend, task, slot)

    allowed = host.settings.limited(grant.limits).session_bytes(device.backend.memory_bytes())
    outbox = NativeOutbox(fetch, max_waiting_bytes=allowed)
    session = device.open_session(identifier, outbox, NATIVE_TRANSFERS, grant)
    outbox.count_in(FrameAccount(session.interpreter.answers))
    attachment = Attachment(session, outbox)
    attachment.session.counters.failures = outbox.failures
    host.attachments.add(attachment)
    return attachment


def _let_go(attachment: Attachment, host: Host, lease_seconds: float) -> None:
    """End a session, or keep it for its lease so that its client can come back."""

    def end() -> None:
        session = attachment.session
        logger.info(
            "session closed",
            session=session_name(session.identifier),
            operations=session.interpreter.executed,
        )
        host.attachments.forget(attachment)
        host.end_session(session)

    if lease_seconds > 0:
        attachment.detach(lease_seconds, end)
    else:
        end()


async def _converse(
    link: AsyncLink, attachment: Attachment, writer: FrameWriter, host: Host
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


async def _read(link: AsyncLink, attachment: Attachment, writer: FrameWriter, host: Host) -> None:
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
            raise ProtocolViolation(f"a client in a session does not send {name_of(message)}")
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


async def _finish(session: Session, writer: FrameWriter) -> None:
    """Wait for what a client asked for before it said goodbye: moves to others may depend on it."""
    while session.queued and session.error is None:
        await writer.progress()


def _about(device: Device) -> dict[str, object]:
    memory = device.backend.memory()
    return {
        "index": device.index,
        "backend": device.backend.name,
        "name": device.backend.device_name,
        "memory_bytes": memory.total,
        "memory_used_bytes": memory.used,
    }


def _welcome(device: Device, attachment: Attachment, version: int) -> Welcome:
    settings, session = device.host.settings, attachment.session
    return Welcome(
        version=version,
        session=session.identifier,
        secret=session.secret,
        lease_seconds=settings.lease_seconds,
        device=_about(device),
        limits={
            "chunk_bytes": CHUNK_BYTES,
            "message_bytes": settings.max_message_bytes,
            "signatures": MAX_SIGNATURES,
            "heartbeat_milliseconds": max(1, round(1000 * settings.heartbeat_seconds)),
        },
        peer_address=device.peer_address,
        received=attachment.received,
    )
