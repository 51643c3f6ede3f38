"""The handler of a native client's connection: handshake, read loop, write loop, end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Literal, NamedTuple

from burn_remote_protocol.collectives import EngineKind
from burn_remote_protocol.dialects.bounded_unpacking import unpacked_bytes
from burn_remote_protocol.dialects.native import (
    CHUNK_HEAD_BYTES,
    LARGE_CHUNK_BYTES,
    MAX_GROUPS,
    SESSION_LIMITS,
    UPLOAD_CHUNK_BYTES,
    Batch,
    BatchPart,
    batch_in_parts,
    batch_received,
    chunk_position,
    decode_batch_in_steps,
    decode_frame,
    encode_frame,
    is_batch,
    is_chunk,
)
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ClosedDevice,
    ConnectionLost,
    GarbledBytes,
    ProtocolViolation,
    SessionLost,
)
from burn_remote_protocol.kept_tensors import MAX_PUBLISHED
from burn_remote_protocol.links.checksummed_links import AnyAsyncLink, CheckedAsyncLink
from burn_remote_protocol.links.interface import AsyncLink, Placement
from burn_remote_protocol.messages import (
    Acknowledged,
    Chunk,
    Closing,
    Fetch,
    Welcome,
)
from burn_remote_protocol.operations.extensions import ANNOUNCED, EXTENSIONS_FIELD
from burn_remote_server.access.admission import Grant
from burn_remote_server.access.quota import OverheadAccount, Pool
from burn_remote_server.dialects.native.frame_writer import FrameWriter
from burn_remote_server.dialects.native.handshake import (
    checked_link,
    name_of,
    read_hello,
    receive_first,
    refuse,
    send_closing,
)
from burn_remote_server.dialects.native.session_attachments import Attachment, Attachments
from burn_remote_server.execution.decoding_turns import (
    NEVER_LONG_BYTES,
    SMALL_FRAME_BYTES,
    decoding_weight,
    is_long,
)
from burn_remote_server.execution.engine import Engine
from burn_remote_server.execution.frame_memory import PART_BYTES, Part
from burn_remote_server.execution.native_outbox import NativeOutbox
from burn_remote_server.execution.sessions import (
    FRAME_COST,
    MAX_WAITING_REPLIES,
    TURN_COST,
    Session,
)
from burn_remote_server.hosting.host import NATIVE_TRANSFERS, Device, Host
from burn_remote_server.telemetry.logs import get_logger, session_name
from burn_remote_server.tensors.slots import InFlight

__all__ = ["serve_session"]

logger = get_logger(__name__)

# How many times as large as a long chunk the memory pool must be.
CHUNKS_OF_POOL: Final = 128


def _nothing() -> None:
    """Do nothing."""


async def serve_session(
    plain: AsyncLink,
    device: Device,
    attachments: Attachments,
    token: str | None = None,
    admitted: Callable[[], None] = _nothing,
    first: bytes | None = None,
) -> None:
    """Serve one client until it disconnects, violates the protocol, or the server drains.

    ``attachments`` are the native sessions of this process. ``token`` is from the path, for a
    client whose ``Hello`` has none. ``admitted`` is called once the client is admitted.
    ``first`` is the connection's first frame, if it has been received.
    """
    host = device.host
    link: AnyAsyncLink = plain
    try:
        if first is None:
            first = await receive_first(plain, host)
        link, contents = checked_link(plain, first)
        hello, version = read_hello(contents)
        grant = host.access.admit(token if hello.token is None else hello.token)
        admitted()
        if hello.resume is not None:
            attachment = attachments.resume(hello.resume, grant.name)
        else:
            attachment = _open(device, attachments, grant)
    except BurnRemoteError as error:
        host.counters.sessions_refused += 1
        await refuse(link, error)
        return
    task = asyncio.current_task()
    assert task is not None  # a handler runs in a task
    writer = _session_writer(link, attachment)
    number = attachment.attach(task, writer)
    connection = _Connection(link, number, attachment, writer, host)
    log = logger.bind(
        session=session_name(attachment.session.identifier),
        peer=link.peer,
        device=device.index,
        token=grant.name,
    )
    log.info("session resumed" if hello.resume else "session opened", client=hello.client)
    ending = _Ending()
    try:
        # A client that has left may have sent ``Closing`` before, which is read although the link
        # broke.
        with contextlib.suppress(ConnectionLost):
            await link.send(encode_frame(_welcome(device, attachment, version)))
        ending = _Ending(await connection.converse())
    except BurnRemoteError as error:
        ending = _ending(error, attachment, host)
        log.info("connection ended", code=error.code, reason=str(error))
    except asyncio.CancelledError:
        if not host.draining.is_set():
            raise
        ending = _Ending(
            SessionLost("the server shut down before the work of this session was done")
        )
    finally:
        if ending.lease_seconds > 0:
            attachment.detach(number, ending.lease_seconds)
        else:
            attachment.close(number)
    if ending.reason is not None:
        await send_closing(link, ending.reason)


class _Ending(NamedTuple):
    """How a connection ends: the reason to send, and how long to keep the session."""

    reason: BurnRemoteError | None = None
    lease_seconds: float = 0.0


def _ending(error: BurnRemoteError, attachment: Attachment, host: Host) -> _Ending:
    if isinstance(error, ClosedDevice):
        return _Ending()
    if isinstance(error, ConnectionLost | GarbledBytes) and not isinstance(error, SessionLost):
        is_kept = attachment.session.error is None and not host.draining.is_set()
        return _Ending(lease_seconds=host.settings.lease_seconds if is_kept else 0.0)
    return _Ending(reason=error)


def _session_writer(link: AnyAsyncLink, attachment: Attachment) -> FrameWriter:
    counters = attachment.session.counters

    def sent(size: int) -> None:
        counters.client_sent_bytes += size

    return FrameWriter(link, attachment.outbox, sent, attachment.session)


def _open(device: Device, attachments: Attachments, grant: Grant) -> Attachment:
    host = device.host
    identifier = host.draw_session_id(grant)

    def fetch(task: Fetch, slot: InFlight) -> None:
        host.start_fetch(outbox, device.backend, task, slot)

    def free(attachment: Attachment) -> None:
        session = attachment.session
        logger.info(
            "session closed",
            session=session_name(session.identifier),
            operations=session.interpreter.executed,
            fused=session.interpreter.counts.operations_fused,
            graph_calls=session.interpreter.counts.graph_calls,
        )
        attachments.forget(attachment)
        host.end_session(session)

    allowed = host.settings.limited(grant.limits).session_bytes(device.backend.memory_bytes())
    outbox = NativeOutbox(fetch, max_waiting_bytes=allowed)
    session = device.open_session(identifier, outbox, NATIVE_TRANSFERS, grant)
    outbox.count_in(OverheadAccount(session.interpreter.reply_quota))
    attachment = Attachment(session, outbox, free)
    attachment.session.counters.failures = outbox.failures
    attachments.add(attachment)
    return attachment


# The outcome of a frame: handled (``True``), the client's last frame (``Closing``), or not handled,
# because another link serves the session by now (``None``).
_Taken = Literal[True] | Closing | None


class _LeftToTask(Exception):
    """A frame that ends the connection was handled on arrival, outside of the task that reads.

    Links pass this exception on to that task, because it is not an error of a link.
    """

    def __init__(self, outcome: Closing | BurnRemoteError | None) -> None:
        super().__init__()
        self._outcome: Final = outcome

    def taken(self) -> Closing | None:
        """Return the outcome of the frame, or raise the error that it caused."""
        if isinstance(self._outcome, BurnRemoteError):
            raise self._outcome
        return self._outcome


class _Connection:
    """A link and the session that it serves until a later link takes over."""

    def __init__(
        self,
        link: AnyAsyncLink,
        number: int,
        attachment: Attachment,
        writer: FrameWriter,
        host: Host,
    ) -> None:
        self._link: Final = link
        self._number: Final = number
        self._attachment: Final = attachment
        self._writer: Final = writer
        self._host: Final = host
        self._queue_batches: Final = host.settings.session_queue_batches
        self._queue_bytes: Final = host.settings.session_queue_bytes

    async def converse(self) -> BurnRemoteError:
        """Read and write until the server drains; return the reason to send to the client.

        Raises ``ConnectionLost`` when the connection breaks, ``ClosedDevice`` when the client
        sends ``Closing``, and ``ProtocolViolation`` when it sends an invalid message.
        """
        attachment, writer, host = self._attachment, self._writer, self._host
        reading = asyncio.ensure_future(self._read())
        writing = asyncio.ensure_future(writer.run())
        draining = asyncio.ensure_future(host.draining.wait())
        running: set[asyncio.Future[Any]] = {reading, writing, draining}
        if isinstance(self._link, CheckedAsyncLink):
            running.add(asyncio.ensure_future(self._beat()))
        try:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            if writer.is_broken and not (reading.done() or attachment.is_leaving):
                # A client that left may have sent ``Closing`` before: read what has arrived. The
                # session would be kept as long without a connection.
                await asyncio.wait(
                    (reading, draining),
                    timeout=host.settings.lease_seconds,
                    return_when=asyncio.FIRST_COMPLETED,
                )
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
            self._link.call_on_arrival(None)
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _beat(self) -> None:
        """Send a frame each interval, so that its checksum soon reveals lost earlier frames."""
        while True:
            await asyncio.sleep(self._host.settings.heartbeat_seconds)
            self._writer.acknowledge(self._attachment.acknowledgement())

    async def _read(self) -> None:
        attachment, writer = self._attachment, self._writer
        session = attachment.session
        is_first = True
        while True:
            taken = await self._take_next()
            if taken is None:
                return
            if isinstance(taken, Closing):
                attachment.leave()
                if not is_first:
                    await self._finish()
                # ``Closing`` as the first frame of a link means that the client does not wait for
                # the queued work. A client sends it over a new link, because this server stops
                # reading the old link while much work is queued.
                raise taken.error
            if is_first:
                is_first = False
                self._link.call_on_arrival(self._take_arrived, self._take_alone)
                self._link.place_frames(CHUNK_HEAD_BYTES, self._place)
            if attachment.owes_acknowledgement:
                writer.acknowledge(attachment.acknowledgement())
            while self._must_wait():
                await writer.progress()
            if session.spent >= TURN_COST:
                # ``receive`` does not yield while frames are buffered, so without this a session
                # with many buffered frames would starve the others.
                session.spent = 0
                await asyncio.sleep(0)

    async def _take_next(self) -> _Taken:
        """Handle the next frame. No reference to the frame is left when this returns."""
        try:
            frame = await self._link.receive()
        except _LeftToTask as left:
            return left.taken()
        if frame and is_chunk(frame):
            return self._take(frame)
        if not is_long(frame):
            if not self._host.decoding.allows(len(frame)):
                await self._host.decoding.wait(decoding_weight(frame))
            return self._take(frame)
        if is_batch(frame):
            session = self._attachment.session
            if session.frame_memory.lacks_room(frame):
                return self._take_in_parts(frame)
            with session.frame_memory.counted(frame):
                message = await self._host.decoding.run(decode_batch_in_steps(frame))
            # A later link may have taken the session over while the frame was decoded.
            return self._accept(message, frame) if self._serves() else None
        async with self._host.decoding.turn():
            return self._take(frame)

    def _place(self, head: bytes, size: int) -> Placement | None:
        """Return the memory of a tensor for the elements of its next chunk.

        The chunk is not verified yet, but nothing uses these bytes of an upload before
        ``submit_chunk``.
        """
        position = chunk_position(head)
        if position is None or not self._serves():
            return None
        memory = self._attachment.session.chunk_memory(*position, size)
        return None if memory is None else Placement(memory, self._serves)

    def _serves(self) -> bool:
        # A link that broke off within a chunk must not write over what a later link delivers.
        return self._attachment.serves(self._number)

    def _must_wait(self) -> bool:
        session = self._attachment.session
        if session.queued and session.is_behind(self._queue_batches, self._queue_bytes):
            return True
        # A broken link takes no replies, so waiting for room would last forever.
        outbox = self._attachment.outbox
        return outbox.has(MAX_WAITING_REPLIES) and not self._writer.is_broken

    def _take_arrived(self) -> None:
        """Handle frames that need not wait, as soon as they arrive.

        Raises ``_LeftToTask`` after the last frame.
        """
        session = self._attachment.session
        session.spent = 0  # the event loop has just called other sessions
        allows = self._host.decoding.allows
        while session.spent < TURN_COST and not self._must_wait():
            # Longer ones may need a turn.
            longest = NEVER_LONG_BYTES if allows(NEVER_LONG_BYTES) else SMALL_FRAME_BYTES
            frame = self._link.receive_nowait(longest) if allows(longest) else None
            if frame is None:
                return
            self._take_now(frame)

    def _take_alone(self, frame: bytes | memoryview) -> bool:
        """Handle a frame that arrived alone, unless it must wait; return whether it was handled.

        Raises ``_LeftToTask`` after the last frame.
        """
        if self._must_wait() or is_long(frame):
            return False
        if not self._host.decoding.allows(len(frame)):
            return False
        self._attachment.session.spent = 0  # as in ``_take_arrived``
        self._take_now(frame)
        return True

    def _take_now(self, frame: bytes | memoryview) -> None:
        """Handle a frame outside of the task that reads. Raises ``_LeftToTask``."""
        attachment = self._attachment
        try:
            taken = self._take(frame)
        except BurnRemoteError as error:
            raise _LeftToTask(error) from None
        if taken is not True:
            raise _LeftToTask(taken)
        if attachment.owes_acknowledgement:
            self._writer.acknowledge(attachment.acknowledgement())

    def _take(self, frame: bytes | memoryview) -> _Taken:
        """Decode a frame and execute or queue its work.

        Returns ``Closing`` for the last frame, and ``None`` if another link serves the session.
        """
        # A later link may have taken the session over while this task was about to run.
        if not self._attachment.serves(self._number):
            return None
        if frame and not is_chunk(frame):
            self._host.decoding.spend(decoding_weight(frame))
            # Shorter frames always have room.
            if (
                len(frame) > PART_BYTES
                and is_batch(frame)
                and self._attachment.session.frame_memory.lacks_room(frame)
            ):
                return self._take_in_parts(frame)
        return self._accept(decode_frame(frame), frame)

    def _take_in_parts(self, frame: bytes | memoryview) -> _Taken:
        """Queue a frame with a batch undecoded, because memory is full."""
        attachment, number = self._attachment, self._number
        if not attachment.serves(number):
            return None
        session = attachment.session
        received = batch_received(frame)
        session.counters.client_received_bytes += len(frame)
        session.counters.batches += 1
        attachment.note_frame(number)
        try:
            attachment.note_acknowledged(received)
            session.submit_parts(_parts(frame, session.engine), len(frame))
        except Exception as error:
            raise _failure(session, error) from error
        return True

    def _accept(self, message: Any, frame: bytes | memoryview) -> _Taken:
        """Execute or queue the work of a frame; return what ``_take`` does.

        Call it only while the link serves the session.
        """
        attachment, number = self._attachment, self._number
        session = attachment.session
        session.counters.client_received_bytes += len(frame)
        if type(message) is Batch:
            session.counters.batches += 1
            attachment.note_frame(number)
            try:
                # Only the check comes before the batch, so that a reply leaves sooner.
                attachment.check_acknowledged(message.received)
                session.submit_batch(message, frame)
                attachment.note_acknowledged(message.received)
            except Exception as error:
                raise _failure(session, error) from error
        elif isinstance(message, Chunk):
            if message.is_placed:  # the frame is only its head
                session.counters.client_received_bytes += len(message.data)
            attachment.note_frame(number)
            attachment.note_chunk(len(message.data))
            try:
                session.submit_chunk(message)
            except Exception as error:
                raise _failure(session, error) from error
        elif isinstance(message, Acknowledged):
            session.spent += FRAME_COST
            attachment.note_acknowledged(message.received)
        elif isinstance(message, Closing):
            return message
        else:
            raise ProtocolViolation(f"a client in a session must not send {name_of(message)}")
        return True

    async def _finish(self) -> None:
        """Finish the work queued before ``Closing``.

        Other sessions may wait for tensors that this work exposes.
        """
        session = self._attachment.session
        while session.queued and session.error is None:
            await self._writer.progress()


def _failure(session: Session, error: Exception) -> BurnRemoteError:
    """End a session whose frame was counted as received but not executed; return the reason.

    If the session went on, its client would not send the frame again after a resume.
    """
    if isinstance(error, BurnRemoteError):
        session.error = session.error or error
        return error
    session.fail(error)
    return session.error or SessionLost("the server failed")


def _parts(frame: bytes | memoryview, engine: Engine) -> Iterator[Part]:
    """Yield the parts of a batch, which an engine decodes and executes."""
    for part in batch_in_parts(frame, PART_BYTES):
        yield Part(unpacked_bytes(part.packed), partial(_decoded, part), engine.run)


def _decoded(part: BatchPart) -> Batch:
    return Batch(0, part.decode())


def _about(device: Device) -> dict[str, object]:
    memory = device.backend.memory()
    return {
        "index": device.index,
        "backend": device.backend.name,
        "name": device.backend.device_name,
        "memory_bytes": memory.total,
        "memory_used_bytes": memory.used,
        EXTENSIONS_FIELD: ANNOUNCED,
    }


def _longest_chunk(max_message_bytes: int, memory: Pool) -> int:
    """Return the longest chunk of an upload that a client may send.

    A message has a chunk and its head. In a full pool, chunks of several connections must find room
    for urgent bytes, where long ones count twice.
    """
    has_room = memory.max_bytes // CHUNKS_OF_POOL
    longest = min(LARGE_CHUNK_BYTES, max_message_bytes // 16 * 15, has_room)
    return max(UPLOAD_CHUNK_BYTES, longest)


def _welcome(device: Device, attachment: Attachment, version: int) -> Welcome:
    settings, session = device.host.settings, attachment.session
    return Welcome(
        version=version,
        session=session.identifier,
        secret=session.secret,
        lease_seconds=settings.lease_seconds,
        device=_about(device),
        limits={
            **SESSION_LIMITS,
            "chunk_bytes": _longest_chunk(settings.max_message_bytes, device.host_memory),
            "groups": MAX_GROUPS,
            "group_engines": EngineKind.bits(device.host.groups.engines),
            "files": int(bool(settings.data_dir)),
            "content_bytes": device.kept.max_content_bytes,
            "published": MAX_PUBLISHED,
            "message_bytes": settings.max_message_bytes,
            "tensors": session.interpreter.quota.max_tensors,
            "heartbeat_milliseconds": max(1, round(1000 * settings.heartbeat_seconds)),
        },
        peer_address=device.peer_address,
        received=attachment.received,
    )
