"""Handlers of the sockets that Burn 0.21 clients and servers open.

Burn's client hangs when the server closes a socket, so failures are sent as responses and the
socket stays open. The client must not be pinged, so no pings are sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from burn_remote_protocol.dialects.bounded_unpacking import Steps, completed
from burn_remote_protocol.dialects.burn_0_21 import (
    Close,
    decode_init,
    decode_tasks,
    decode_tasks_in_steps,
    task_bytes,
)
from burn_remote_protocol.dialects.burn_0_21_operation_prediction import OperationPredictor
from burn_remote_protocol.dialects.burn_0_21_responses import decode_data_request, encode_data
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ConnectionLost,
    HandshakeRefused,
    LimitExceeded,
    ProtocolViolation,
    SessionLost,
    detached,
)
from burn_remote_protocol.ids import is_secret
from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_protocol.tensors import TensorData
from burn_remote_server.dialects.burn_0_21.idle_connections import IdleConnections
from burn_remote_server.dialects.burn_0_21.task_runner import Unreadable
from burn_remote_server.dialects.burn_0_21.thread_intake import (
    DecodedFrames,
    ThreadIntake,
    TwoSocketReceiver,
    lender,
)
from burn_remote_server.dialects.burn_0_21.two_socket_sessions import (
    DIALECT,
    BurnSession,
    BurnSessions,
    decoded_bytes,
)
from burn_remote_server.execution.decoding_turns import (
    LARGE_FRAME_BYTES,
    SMALL_FRAME_BYTES,
    decoding_weight,
    is_long,
)
from burn_remote_server.execution.frame_memory import Part
from burn_remote_server.execution.sessions import TURN_COST, Session
from burn_remote_server.hosting.host import Device, Host
from burn_remote_server.telemetry.logs import get_logger, session_name
from burn_remote_server.tensors.exposed_tensors import Key, burn_domain, transfer_key
from burn_remote_server.transfers.burn_peer_fetches import MESSAGE_OVERHEAD_BYTES
from burn_remote_server.transfers.throughput_watchdog import watch_reader

__all__ = [
    "POLICY_VIOLATION",
    "drain",
    "end_with",
    "finish",
    "send_replies",
    "serve_data",
    "serve_request",
    "serve_response",
]

logger = get_logger(__name__)

# Most frames in one batch for the worker. With fewer, passing batches to the worker takes longer,
# about 40 µs each. With more, replies to the first frames of a batch wait longer for the others.
MAX_BATCH_FRAMES: Final = 256
# A batch of this weight (``decoding_weight``) takes no more frames: all its frames are decoded in
# one iteration of the event loop, and decoding them takes up to 1 ms.
FULL_BATCH_WEIGHT: Final = LARGE_FRAME_BYTES
# A batch with this many unrecognized frames takes no more frames: decoding these takes up to 2 ms.
MAX_UNKNOWN_FRAMES: Final = 16
# The weight of such a frame in ``DecodingTurns`` besides its own.
UNKNOWN_FRAME_WEIGHT: Final = 4096
# Messages sent in one iteration of the event loop, about 0.6 ms.
SENT_AT_ONCE: Final = 64
# Larger messages are sent in slices, so that other tasks run in between.
WHOLE_BYTES: Final = 2**24
# Larger messages are sent in fragments, which the Rust client accepts but copies once more. A frame
# has at most 512 MiB in Burn 0.21.
ONE_FRAME_BYTES: Final = 2**28
# The size of a slice and of a fragment. While a socket is full, the event loop may keep a copy of
# the bytes that the socket did not accept, so this limits the copy for a slow reader.
FRAGMENT_BYTES: Final = 2**20
# Queued requests of one peer. A Burn server waits for each response, so it queues none.
MAX_WAITING_REQUESTS: Final = 64
# One in this many connections of the server may be of a known peer that sends no request.
IDLE_SHARE: Final = 4

POLICY_VIOLATION: Final = 1008  # RFC 6455, section 7.4.1


async def serve_request(
    link: AsyncLink,
    device: Device,
    sessions: BurnSessions,
    token: str | None,
    address: str = "",
) -> None:
    """Execute the tasks that a client sends on ``/request`` until it disconnects.

    ``address`` is the address at which the client reached this server.
    """
    joined = await _join(link, device, sessions, "/request", token, address)
    if joined is None:
        return
    identifier, session = joined
    log = logger.bind(session=session_name(identifier), peer=link.peer, device=device.index)
    log.info("session opened", dialect=DIALECT)
    try:
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(_complete_or_end(session, device, "/response"))
            ending = tasks.create_task(end_with(session))
            draining = tasks.create_task(drain(session, device.host))
            await _execute(link, session, device)
            for task in (waiting, ending, draining):
                task.cancel()
    except* BurnRemoteError as group:
        log.info("connection ended", reason=str(group.exceptions[0]))
    finally:
        sessions.leave(device, identifier, session)
        interpreter = session.session.interpreter
        log.info(
            "session closed",
            operations=interpreter.executed,
            fused=interpreter.counts.operations_fused,
        )


async def serve_response(
    link: AsyncLink,
    device: Device,
    sessions: BurnSessions,
    token: str | None,
    address: str = "",
) -> None:
    """Send a session's responses on ``/response`` until it ends."""
    joined = await _join(link, device, sessions, "/response", token, address)
    if joined is None:
        return
    identifier, session = joined
    try:
        async with asyncio.TaskGroup() as tasks:
            listening = tasks.create_task(_listen(link))
            waiting = tasks.create_task(_complete_or_end(session, device, "/request"))
            session.lend_responses = lender(link)
            await send_replies(link, session)
            listening.cancel()
            waiting.cancel()
    except* BurnRemoteError:
        pass  # the client disconnected; the handler of ``/request`` reports it
    finally:
        sessions.leave(device, identifier, session)


async def _join(
    link: AsyncLink,
    device: Device,
    sessions: BurnSessions,
    route: str,
    token: str | None,
    address: str,
) -> tuple[int, BurnSession] | None:
    """Return the id and the session of a new socket, or ``None`` if it was refused."""
    host = device.host
    seconds = host.settings.handshake_timeout_seconds
    try:
        grant = host.access.admit(token)
        async with asyncio.timeout(seconds):
            identifier = decode_init(await link.receive())
        return identifier, sessions.join(device, identifier, route, grant, address)
    except (BurnRemoteError, TimeoutError) as error:
        reason = str(error) or f"no Init arrived within {seconds:g} seconds"
        host.counters.sessions_refused += 1
        logger.warning("connection refused", peer=link.peer, route=route, reason=reason)
        detached(error)  # else it keeps what was decoded while the client delays closing
        await link.close(POLICY_VIOLATION, reason)
        return None


async def _complete_or_end(session: BurnSession, device: Device, missing: str) -> None:
    seconds = device.host.settings.handshake_timeout_seconds
    try:
        async with asyncio.timeout(seconds):
            await session.complete.wait()
    except TimeoutError:
        raise ProtocolViolation(
            f"the client did not open the {missing} socket within {seconds:g} seconds"
        ) from None


async def end_with(session: BurnSession) -> None:
    """Wait until the session ends, and raise the reason."""
    await session.ended.wait()
    raise session.session.error or ProtocolViolation("the session has ended")


async def _execute(link: AsyncLink, session: BurnSession, device: Device) -> None:
    # One message contains a whole tensor, so the session's quota is the size limit.
    link.limit_messages(
        session.session.interpreter.quota.max_bytes + MESSAGE_OVERHEAD_BYTES,
        device.backend.arriving_memory,
    )
    intake = _Intake(link, session, device)
    link.call_on_arrival(intake.take_arrived)
    try:
        await intake.take_all()
    except _Closed:
        await finish(session)
    finally:
        link.call_on_arrival(None)


class _Closed(Exception):
    """The client has closed its session."""


class _Intake:
    """Decodes the frames of ``/request``, and executes or queues their tasks.

    Most frames are handled as soon as they arrive, without waking the task that receives. That task
    handles the frames that must wait: longer ones, and all frames while the session is behind.
    """

    def __init__(self, link: AsyncLink, session: BurnSession, device: Device) -> None:
        self._link: Final = link
        self._session: Final = session
        self._decoding: Final = device.host.decoding
        self._must_wait: Final = partial(session.must_wait, device.host.settings)
        self._predictor: Final = OperationPredictor()
        self._is_slow = False  # the last batch had many unknown frames
        self._in_thread: Final = ThreadIntake(
            session,
            lambda: TwoSocketReceiver.lent(lender(link), session.lend_responses),
            partial(_decoded_in_thread, self._predictor, session.session),
            self._must_wait,
            device.host.draining.is_set,
        )

    def take_arrived(self) -> None:
        """Handle arrived frames that need not wait. Raises ``_Closed``."""
        work = self._session.session
        work.spent = 0  # the event loop has just called other sessions
        while (
            work.spent < TURN_COST
            and not self._is_slow
            and not self._must_wait()
            and not work.frame_memory.is_full
            and self._decoding.allows(LARGE_FRAME_BYTES)
            and (frame := self._link.receive_nowait(SMALL_FRAME_BYTES)) is not None
        ):
            self._submit(
                _decoded_batch(
                    frame, self._link, self._predictor, work, longest_bytes=SMALL_FRAME_BYTES
                )
            )
        self._in_thread.expect_work()

    async def take_all(self) -> None:
        """Handle the frames that ``take_arrived`` leaves. Raises ``_Closed``."""
        session, work, decoding = self._session, self._session.session, self._decoding
        waiting: bytes | None = None
        while True:
            frame = await self._link.receive() if waiting is None else waiting
            waiting = None
            if not decoding.allows(LARGE_FRAME_BYTES):  # more frames may have arrived
                await decoding.wait(LARGE_FRAME_BYTES)
            if work.frame_memory.lacks_room(frame):
                _submit_in_parts(frame, session)
            else:
                waiting = await self._take(frame)
            del frame  # do not keep it alive during the waits below
            while self._must_wait():
                session.progress.clear()
                await session.progress.wait()
            if work.spent >= TURN_COST:
                # ``receive`` does not yield while frames are buffered, so let other sessions run
                # here.
                work.spent = 0
                await asyncio.sleep(0)
            if waiting is None:
                self._in_thread.expect_work()

    async def _take(self, frame: bytes) -> bytes | None:
        """Handle a frame and later ones that have arrived; return one that waits for the next."""
        work, decoding = self._session.session, self._decoding
        if is_long(frame):
            with work.frame_memory.counted(frame):
                decoded = await decoding.run(_decoded_in_steps(frame))
            batch = _decoded_batch(frame, self._link, self._predictor, work, decoded)
            self._submit(batch)
        elif self._is_slow:
            async with decoding.turn():
                batch = _decoded_batch(frame, self._link, self._predictor, work)
                self._submit(batch)
        else:
            batch = _decoded_batch(frame, self._link, self._predictor, work)
            self._submit(batch)
        return batch.waiting

    def _submit(self, batch: _Batch) -> None:
        """Execute or queue the tasks of a batch. Raises ``_Closed``."""
        self._is_slow = batch.unknown >= MAX_UNKNOWN_FRAMES
        self._decoding.spend(batch.weight + UNKNOWN_FRAME_WEIGHT * batch.unknown)
        counters = self._session.session.counters
        counters.client_received_bytes += batch.size
        counters.batches += 1
        tasks = [task for task in batch.tasks if type(task) is not Close]
        self._session.submit(tasks, batch.size)
        if len(tasks) < len(batch.tasks):
            raise _Closed


class _Batch(NamedTuple):
    """Tasks, the bytes in which they arrived, and a large frame that waits for the next batch.

    ``unknown`` is the number of frames that took long to decode, and ``weight`` that of the frames
    that were decoded without turns.
    """

    tasks: list[Any]
    size: int
    waiting: bytes | None
    unknown: int
    weight: int


def _decoded_batch(
    frame: bytes,
    link: AsyncLink,
    predictor: OperationPredictor,
    work: Session,
    decoded: Sequence[Any] | None = None,
    longest_bytes: int | None = None,
) -> _Batch:
    """Decode a frame and later frames that have arrived, within a bounded time.

    ``decoded`` has the tasks of the first frame if it was decoded in steps. Later frames of more
    than ``longest_bytes`` stay in the link.
    """
    seen = predictor.unknown
    weight = 0
    if decoded is None:
        decoded = _decoded(frame, predictor)
        weight = decoding_weight(frame) if predictor.unknown > seen else len(frame)
    tasks = [*decoded]
    size, count = len(frame), 1
    waiting: bytes | None = None
    while (
        size < LARGE_FRAME_BYTES
        and weight < FULL_BATCH_WEIGHT
        and count < MAX_BATCH_FRAMES
        and (unknown := predictor.unknown) - seen < MAX_UNKNOWN_FRAMES
        and not work.frame_memory.is_full
        and (more := link.receive_nowait(longest_bytes)) is not None
    ):
        if is_long(more) or work.frame_memory.lacks_room(more):
            waiting = more
            break
        tasks += _decoded(more, predictor)
        size += len(more)
        weight += decoding_weight(more) if predictor.unknown > unknown else len(more)
        count += 1
    return _Batch(tasks, size, waiting, predictor.unknown - seen, weight)


def _decoded(frame: bytes, predictor: OperationPredictor) -> Sequence[Any]:
    try:
        return decode_tasks(frame, predictor.recognize)
    except ProtocolViolation as error:
        return _unreadable(error)


def _decoded_in_thread(
    predictor: OperationPredictor, work: Session, frames: Sequence[bytes]
) -> DecodedFrames:
    """Decode frames in the session's thread, up to one that the event loop must handle."""
    tasks: list[Any] = []
    size = 0
    unread: Sequence[bytes] = ()
    for place, frame in enumerate(frames):
        if len(frame) > LARGE_FRAME_BYTES or work.frame_memory.lacks_room(frame):
            unread = frames[place:]
            break
        if len(frame) <= SMALL_FRAME_BYTES:
            decoded = _decoded(frame, predictor)
        else:
            with work.frame_memory.counted(frame):
                decoded = work.decode_in_thread(partial(_decoded, frame, predictor))
        if any(type(task) is Close for task in decoded):
            unread = frames[place:]  # the event loop decodes this again, and ends the session
            break
        tasks += decoded
        size += len(frame)
    return DecodedFrames(tasks, size, decoded_bytes(tasks, size), unread)


def _decoded_in_steps(frame: bytes) -> Steps[Sequence[Any]]:
    """Decode a long frame, which is no known operation."""
    try:
        return (yield from decode_tasks_in_steps(frame))
    except ProtocolViolation as error:
        return _unreadable(error)


def _unreadable(error: ProtocolViolation) -> tuple[Unreadable]:
    # Its frames would keep objects that were decoded from the frame alive, up to 30 MiB.
    return (Unreadable(detached(error)),)


def _submit_in_parts(frame: bytes, session: BurnSession) -> None:
    """Queue a frame undecoded, because memory is full. It is longer than one with ``Close``."""
    session.session.counters.client_received_bytes += len(frame)
    session.session.counters.batches += 1

    def decode() -> Sequence[Any]:
        return completed(_decoded_in_steps(frame))

    part = Part(task_bytes(frame), decode, session.execute)
    session.submit_parts(iter([part]), len(frame))


async def drain(session: BurnSession, host: Host) -> None:
    """Finish the queued work and end the session when the server shuts down."""
    await host.draining.wait()
    await finish(session)
    raise SessionLost("the server is shutting down")


async def finish(session: BurnSession) -> None:
    """Wait until the queued work is done, or the session has ended."""
    while session.session.queued and session.session.error is None:
        session.progress.clear()
        await session.progress.wait()


async def send_replies(link: AsyncLink, session: BurnSession) -> None:
    """Send the replies of a session until it ends.

    Small replies are sent in the iteration of the event loop in which they are ready, without this
    task (``send_now``), because waking it takes about 20 µs.
    """
    frames = session.outbox.frames
    session.send_now = partial(_send_ready, link, session)
    sent = 0
    try:
        while True:
            while frames:
                if sent >= SENT_AT_ONCE:
                    sent = 0
                    await asyncio.sleep(0)  # sending does not yield if the client reads fast enough
                    continue  # all replies may have been sent during the wait
                with session.sending:
                    if not frames:
                        break  # the session's thread has just sent the last one
                    sent += 1
                    frame = frames.popleft()
                    session.is_sending = True  # a message in fragments must not be interrupted
                await _send(link, frame)
                with session.sending:
                    session.is_sending = False
                    session.sent(frame)
                # Free the elements now, not when the next frame is sent.
                del frame
                session.progress.set()
            if session.ended.is_set():
                return
            session.wake.clear()
            await session.wake.wait()
    finally:
        session.send_now = _send_nothing
        session.is_sending = True  # nothing is sent after the end


def _send_ready(link: AsyncLink, session: BurnSession) -> None:
    """Send the small replies at the head of the queue, while the socket accepts them."""
    frames = session.outbox.frames
    if not frames:
        return
    with session.sending:
        for _ in range(min(len(frames), SENT_AT_ONCE)):
            if session.is_sending or not link.is_writable() or len(frames[0]) > 1:
                return
            frame = frames.popleft()
            link.send_nowait(*frame)
            session.sent(frame)


def _send_nothing() -> None:
    """Leave the replies to the task that sends them."""


async def _send(link: AsyncLink, buffers: Sequence[bytes | memoryview]) -> int:
    """Send one message from several buffers; return its size."""
    size = sum(map(len, buffers))
    if size <= WHOLE_BYTES:
        await link.send_buffers(buffers)
    elif size <= ONE_FRAME_BYTES:
        await link.send_slices(buffers, FRAGMENT_BYTES)
    else:
        await link.send_buffers(buffers, FRAGMENT_BYTES)
    return size


async def _listen(link: AsyncLink) -> None:
    """Detect that the client closes ``/response``, on which it sends no frames."""
    while True:
        await link.receive()
        await asyncio.sleep(0)  # ``receive`` does not yield while frames are buffered


async def serve_data(
    link: AsyncLink, device: Device, token: str | None, address: str, idle: IdleConnections
) -> None:
    """Serve another server's requests for tensors on ``/data``, one at a time.

    Burn's own transfer ids are small and easily guessed, so only known peers may use them. Others
    must also send each request in time; connections of known peers count in ``idle``.
    """
    host = device.host
    is_known = host.access.serves_small_ids(token, host.peer_rules.allows_address(link.peer_host))
    requests = _Requests(
        idle if is_known else None, link.peer_host, _allowed_idle(host.settings.max_connections)
    )
    sending = asyncio.Lock()
    try:
        async with asyncio.TaskGroup() as tasks:
            # Reading also while a request waits for its tensor detects that the peer disconnected.
            tasks.create_task(requests.receive(link))
            tasks.create_task(_close_when_draining(host, sending))
            while True:
                transfer = await requests.next(host.settings.handshake_timeout_seconds)
                if not is_known and not is_secret(transfer):
                    raise HandshakeRefused(
                        "this server accepts small transfer ids only with a valid token or from "
                        "addresses that --peer allows"
                    )
                key = transfer_key(burn_domain(address), transfer)
                async with sending:
                    await _serve_data_request(link, host, key)
    except* ConnectionLost as group:
        logger.info("peer connection ended", peer=link.peer, reason=str(group.exceptions[0]))
    except* BurnRemoteError as group:
        # The dialect has no message for a failed transfer, so close the connection.
        reason = str(group.exceptions[0])
        logger.warning("transfer refused", peer=link.peer, reason=reason)
        await link.close(POLICY_VIOLATION, reason)


class _Requests:
    """The requests of a peer that were received but not served.

    ``idle`` bounds the number of peers that send none; without it, their time is bounded.
    """

    def __init__(self, idle: IdleConnections | None, peer_host: str, allowed_idle: int) -> None:
        self._idle: Final = idle
        self._peer_host: Final = peer_host
        self._allowed_idle: Final = allowed_idle
        self._queue: Final[asyncio.Queue[int]] = asyncio.Queue(MAX_WAITING_REQUESTS)

    async def receive(self, link: AsyncLink) -> None:
        """Receive requests until the connection ends. Raises ``BurnRemoteError``."""
        while True:
            await self._queue.put(decode_data_request(await link.receive()))

    async def next(self, seconds: float) -> int:
        """Return the next request.

        Raises ``HandshakeRefused`` if an unknown peer sends none in time, and ``LimitExceeded`` for
        a known one if too many are idle.
        """
        if not self._queue.empty():
            return self._queue.get_nowait()
        if self._idle is not None:
            return await self._next_of_known(self._idle)
        try:
            async with asyncio.timeout(seconds):
                return await self._queue.get()
        except TimeoutError:
            raise HandshakeRefused(f"no request arrived within {seconds:g} seconds") from None

    async def _next_of_known(self, idle: IdleConnections) -> int:
        ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def end(error: LimitExceeded) -> None:
            if not ended.done():
                ended.set_exception(error)

        arriving = asyncio.ensure_future(self._queue.get())
        try:
            with idle.waiting(self._peer_host, end, self._allowed_idle):
                done, _ = await asyncio.wait((arriving, ended), return_when=asyncio.FIRST_COMPLETED)
            return (arriving if arriving in done else ended).result()
        finally:
            arriving.cancel()
            if not ended.cancel():
                ended.exception()  # mark as retrieved; asyncio logs unretrieved exceptions


def _allowed_idle(max_connections: int) -> int:
    """Return how many connections of known peers may be idle: the others are for clients."""
    return max(1, max_connections // IDLE_SHARE)


async def _close_when_draining(host: Host, sending: asyncio.Lock) -> None:
    """End the connection when the server shuts down and no tensor is being sent over it."""
    await host.sessions_ended.wait()
    async with sending:
        raise ConnectionLost("this server is shutting down")


async def _serve_data_request(link: AsyncLink, host: Host, key: Key) -> None:
    exposed = await host.waiting_peers.exposed(key, peer_host=link.peer_host)
    if exposed.failure is not None:
        raise exposed.failure.with_traceback(None)
    spec = exposed.spec
    elements = await asyncio.to_thread(exposed.backend.to_bytes, exposed.array, spec.dtype)
    data = TensorData(elements, spec.shape, spec.dtype)
    sending = asyncio.ensure_future(_send(link, encode_data(data)))
    try:
        await watch_reader(
            sending, link.peer, host.settings.fetch_timeout_seconds, lambda: link.sent_bytes
        )
        host.counters.peer_sent_bytes += sending.result()
    finally:
        sending.cancel()
        await asyncio.wait([sending])
        if not sending.cancelled():
            sending.exception()  # mark as retrieved; asyncio logs unretrieved exceptions
