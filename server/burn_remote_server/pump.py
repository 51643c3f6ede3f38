"""How does one native connection live: handshake, read loop, write loop, end?"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

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
    ConnectionLost,
    OperationFailed,
    ProtocolViolation,
    SessionLost,
    TransferFailed,
)
from burn_remote_protocol.handshake import agreed_version
from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_protocol.messages import (
    Chunk,
    Closing,
    Fetch,
    FetchRequest,
    Hello,
    Refused,
    Welcome,
)
from burn_remote_protocol.tensors import TensorData
from burn_remote_server.host import Device, Host
from burn_remote_server.outbox import NativeOutbox
from burn_remote_server.sessions import Session
from burn_remote_server.slots import InFlight

__all__ = ["serve_peer", "serve_session"]

logger = structlog.get_logger(__name__)

# Answers that wait to be sent before the next frame is read. Larger: a client that asks and does not
# read makes the server hold more. Smaller: a burst of reads is answered in more steps.
MAX_WAITING_REPLIES = 1024


class _Writer:
    """Send what an outbox holds, one frame at a time, and let the reader wait for room."""

    def __init__(self, link: AsyncLink, outbox: NativeOutbox) -> None:
        self.session: Session | None = None
        self._link = link
        self._outbox = outbox
        self._wake = asyncio.Event()
        self._progress = asyncio.Event()

    def wake(self) -> None:
        """Look again: there may be something to send, or room."""
        self._wake.set()
        self._progress.set()

    async def progress(self) -> None:
        """Wait until something has been done or sent."""
        self._progress.clear()
        await self._progress.wait()

    async def run(self) -> None:
        """Send for as long as the connection lives. Raises what ended the session."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.flush()
            if self.session is not None and self.session.error is not None:
                raise self.session.error

    async def flush(self) -> None:
        """Send everything that waits."""
        while (frame := self._outbox.take()) is not None:
            if isinstance(frame, bytes):
                await self._link.send(frame)
            else:
                await self._link.send_parts(*frame)
            self._progress.set()


async def serve_session(link: AsyncLink, device: Device) -> None:
    """Serve one client until it goes, misbehaves, or the server drains."""
    host = device.host
    try:
        hello, version = await _greeting(link, host)
        identifier = host.sessions.draw_id()
        if hello.resume is not None:
            raise SessionLost("the server does not know this session any more")
    except BurnRemoteError as error:
        await _refuse(link, error)
        return

    def fetch(task: Fetch, slot: InFlight) -> None:
        host.start_fetch("native", device.backend, task, slot)

    outbox = NativeOutbox(fetch)
    writer = _Writer(link, outbox)
    session = device.open_session(identifier, outbox, "native", writer.wake)
    writer.session = session
    log = logger.bind(session=f"{identifier:x}", peer=link.peer, device=device.index)
    log.info("session_opened", client=hello.client)
    reason: BurnRemoteError | None = None
    try:
        await link.send(encode_frame(_welcome(device, session, version)))
        reason = await _converse(link, session, outbox, writer, host)
    except ConnectionLost as error:
        log.info("client_gone", reason=str(error))
    except BurnRemoteError as error:
        reason = error
        log.warning("session_refused", code=error.code, reason=str(error))
    finally:
        executed = session.interpreter.executed
        host.sessions.remove(session)
        log.info("session_closed", operations=executed)
    if reason is not None:
        await _say_goodbye(link, reason)


async def _converse(
    link: AsyncLink,
    session: Session,
    outbox: NativeOutbox,
    writer: _Writer,
    host: Host,
) -> BurnRemoteError:
    """Read and write until the server drains; return what the client is told then.

    Raises ``ConnectionLost`` when the client goes and ``ProtocolViolation`` when it misbehaves.
    """
    reading = asyncio.ensure_future(_read(link, session, outbox, writer, host))
    writing = asyncio.ensure_future(writer.run())
    draining = asyncio.ensure_future(host.draining.wait())
    running: set[asyncio.Future[Any]] = {reading, writing, draining}
    try:
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in (reading, writing):
            if task.done():
                task.result()
        reading.cancel()
        while session.queued:
            await writer.progress()
        await asyncio.wait([writing], timeout=0)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        await writer.flush()
        return SessionLost("the server is shutting down")
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _read(
    link: AsyncLink,
    session: Session,
    outbox: NativeOutbox,
    writer: _Writer,
    host: Host,
) -> None:
    queue_length = host.settings.session_queue_batches
    while True:
        message = decode_frame(await link.receive())
        if isinstance(message, Batch):
            session.submit_batch(message)
        elif isinstance(message, Chunk):
            session.submit_chunk(message)
        else:
            raise ProtocolViolation(f"a client in a session does not send {_name(message)}")
        while session.queued >= queue_length or len(outbox) >= MAX_WAITING_REPLIES:
            await writer.progress()


async def serve_peer(link: AsyncLink, host: Host) -> None:
    """Serve another server: answer its fetches until it goes."""
    try:
        _, version = await _greeting(link, host)
    except BurnRemoteError as error:
        await _refuse(link, error)
        return
    outbox = NativeOutbox(_no_fetch)
    writer = _Writer(link, outbox)
    await link.send(encode_frame(_peer_welcome(host, version)))
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(writer.run())
            while True:
                message = decode_frame(await link.receive())
                if not isinstance(message, FetchRequest):
                    raise ProtocolViolation(f"a peer does not send {_name(message)}")
                tasks.create_task(_answer(message, host, outbox, writer))
                while len(outbox) >= MAX_WAITING_REPLIES:
                    await writer.progress()
    except* ConnectionLost:
        pass
    except* BurnRemoteError as group:
        reason = next(error for error in group.exceptions if isinstance(error, BurnRemoteError))
        await _say_goodbye(link, reason)


async def _answer(request: FetchRequest, host: Host, outbox: NativeOutbox, writer: _Writer) -> None:
    value: Any
    try:
        exposed = await host.exposed(("native", request.transfer))
        if exposed.failure is not None:
            raise exposed.failure
        spec = exposed.spec
        data = await asyncio.to_thread(exposed.backend.to_bytes, exposed.array, spec.dtype)
        value = TensorData(data, spec.shape, spec.dtype)
    except OperationFailed as error:
        value = error
    except MemoryError:
        value = TransferFailed("the source has no room to copy the tensor's elements")
    outbox.reply(request.request, value)
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


def _welcome(device: Device, session: Session, version: int) -> Welcome:
    settings = device.host.settings
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
    )


def _peer_welcome(host: Host, version: int) -> Welcome:
    limits = {"chunk_bytes": CHUNK_BYTES, "message_bytes": host.settings.max_message_bytes}
    return Welcome(version, 0, b"", 0.0, {}, limits, host.peer_address(0))


async def _refuse(link: AsyncLink, error: BurnRemoteError) -> None:
    if isinstance(error, ConnectionLost) and not isinstance(error, SessionLost):
        return
    logger.warning("connection_refused", peer=link.peer, code=error.code, reason=str(error))
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
