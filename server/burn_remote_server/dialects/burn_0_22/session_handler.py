"""The handler of the socket of a Burn 0.22 session.

When the server closes the socket, Burn's client waits forever or fails without a reason. So
failures are sent as responses and the socket stays open. No pings are sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from burn_remote_protocol.dialects.burn_0_22 import (
    VERSION,
    Close,
    PackedMessage,
    SessionInit,
    decode_init,
    ends_with_close,
    packed_messages,
)
from burn_remote_protocol.dialects.burn_0_22_recognition import MessageRecognizer
from burn_remote_protocol.dialects.burn_0_22_responses import (
    IncompatibleProtocol,
    NoSuchDevice,
    Refusal,
    SessionInfo,
    Unauthorized,
    encode_info,
    encode_refusal,
)
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ConnectionLost,
    HandshakeRefused,
    ProtocolViolation,
    detached,
)
from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_server.access.admission import Grant
from burn_remote_server.access.quota import OverheadAccount
from burn_remote_server.dialects.burn_0_21.socket_handlers import (
    POLICY_VIOLATION,
    drain,
    end_with,
    finish,
    send_replies,
)
from burn_remote_server.dialects.burn_0_21.task_runner import Unreadable
from burn_remote_server.dialects.burn_0_21.thread_intake import ThreadIntake, lender
from burn_remote_server.dialects.burn_0_21.two_socket_sessions import (
    BurnSession,
    urgent_bytes,
)
from burn_remote_server.dialects.burn_0_22.client_process_search import process_at
from burn_remote_server.dialects.burn_0_22.frame_batch import (
    MAX_UNKNOWN_MESSAGES,
    SHORT_FRAME_BYTES,
    FrameBatch,
    decoded_frames,
)
from burn_remote_server.dialects.burn_0_22.local_groups import LocalGroups, SessionCollectives
from burn_remote_server.dialects.burn_0_22.local_transfers import (
    ClientIdentity,
    LocalClient,
    LocalClients,
)
from burn_remote_server.dialects.burn_0_22.outbox import Burn22Outbox
from burn_remote_server.dialects.burn_0_22.task_runner import Burn22Runner
from burn_remote_server.execution.decoding_turns import LARGE_FRAME_BYTES, decoding_weight
from burn_remote_server.execution.frame_memory import Part
from burn_remote_server.execution.sessions import TURN_COST
from burn_remote_server.execution.time_slices import lengthen_slice, restore_slice
from burn_remote_server.hosting.host import Device, Host
from burn_remote_server.telemetry.logs import get_logger, session_name
from burn_remote_server.tensors.exposed_tensors import burn_domain
from burn_remote_server.transfers.burn_peer_fetches import MESSAGE_OVERHEAD_BYTES

__all__ = ["serve_burn_session"]

logger = get_logger(__name__)

DIALECT: Final = "burn-0.22"

# The weight of messages in ``DecodingTurns`` besides that of their frames: executing a known one
# takes some microseconds, decoding an unknown one up to 100.
MESSAGE_WEIGHT: Final = 128
UNKNOWN_MESSAGE_WEIGHT: Final = 2048

NORMAL_CLOSURE: Final = 1000  # RFC 6455, section 7.4.1


class _Refused(Exception):
    """A client is refused; ``answer`` is the response of Burn's protocol, if it has one."""

    def __init__(self, reason: str, answer: Refusal | None) -> None:
        super().__init__(reason)
        self.answer = answer


class _Opened(NamedTuple):
    """An open session, its device and its client."""

    session: BurnSession
    device: Device
    client: LocalClient


async def serve_burn_session(
    link: AsyncLink,
    host: Host,
    clients: LocalClients,
    groups: LocalGroups,
    token: str | None,
    address: str,
    first: bytes,
) -> None:
    """Serve a client of Burn 0.22 until it disconnects or closes its session.

    ``token`` is the token in the path, for a client that sends none. ``address`` is the address at
    which the client reached this server. ``first`` is the connection's first frame.
    """
    try:
        opened = _open(link, host, clients, groups, token, address, first)
    except _Refused as refused:
        host.counters.sessions_refused += 1
        logger.warning("connection refused", peer=link.peer, reason=str(refused))
        await _refuse(link, refused)
        return
    session, device, _ = opened
    log = logger.bind(
        session=session_name(session.session.identifier), peer=link.peer, device=device.index
    )
    log.info("session opened", dialect=DIALECT)
    # One message may contain a whole tensor, so the session's quota is the size limit.
    link.limit_messages(
        session.session.interpreter.quota.max_bytes + MESSAGE_OVERHEAD_BYTES,
        device.backend.arriving_memory,
    )
    link.count_received(
        device.host_memory,
        host.settings.fetch_timeout_seconds,
        urgent_bytes(device.host_memory),
    )
    try:
        await link.send(encode_info(SessionInfo(len(host.devices))))
        async with asyncio.TaskGroup() as tasks:
            others = [
                tasks.create_task(send_replies(link, session)),
                tasks.create_task(end_with(session)),
                tasks.create_task(drain(session, host)),
            ]
            await _execute(link, session, device)
            for task in others:
                task.cancel()
    except* BurnRemoteError as group:
        log.info("connection ended", reason=str(group.exceptions[0]))
    finally:
        clients.leave(opened.client)
        groups.leave(opened.client)
        host.end_session(session.session)
        session.ended.set()
        session.notify()
        interpreter = session.session.interpreter
        log.info(
            "session closed",
            operations=interpreter.executed,
            fused=interpreter.counts.operations_fused,
            graph_calls=interpreter.counts.graph_calls,
        )
    await link.close(NORMAL_CLOSURE, "")


def _open(
    link: AsyncLink,
    host: Host,
    clients: LocalClients,
    groups: LocalGroups,
    token: str | None,
    address: str,
    first: bytes,
) -> _Opened:
    """Open the session that a first frame asks for. Raises ``_Refused``."""
    try:
        init = decode_init(first)
    except ProtocolViolation as error:
        raise _Refused(str(error), IncompatibleProtocol()) from None
    if init.version != VERSION:
        reason = (
            f"the client has version {init.version} of Burn's protocol; this server has {VERSION}"
        )
        raise _Refused(reason, IncompatibleProtocol())
    try:
        grant = host.access.admit(_token(init, token))
    except HandshakeRefused as error:
        raise _Refused(str(error), Unauthorized()) from None
    if init.device_index >= len(host.devices):
        reason = (
            f"the client asks for device {init.device_index}; this server has "
            f"{len(host.devices)} devices, whose numbers begin at 0"
        )
        raise _Refused(reason, NoSuchDevice(len(host.devices)))
    device = host.devices[init.device_index]
    identity = ClientIdentity(grant.name, link.peer_host)
    find = partial(process_at, link.peer_host, _port(link.peer), host.port)
    client = clients.join(identity, device.index, find)
    try:
        session = _session(device, grant, client, groups, address)
    except BurnRemoteError as error:
        clients.leave(client)
        raise _Refused(str(error), None) from None
    return _Opened(session, device, client)


def _port(peer: str) -> int:
    """Return the port in a peer's ``host:port``; 0 for a connection without one."""
    port = peer.rpartition(":")[2]
    return int(port) if port.isdigit() else 0


def _token(init: SessionInit, in_path: str | None) -> str | None:
    """Return the token that a client presents."""
    if not init.authorization:
        return in_path
    try:
        return init.authorization.decode()
    except UnicodeDecodeError:
        raise HandshakeRefused("the client's token is not UTF-8") from None


def _session(
    device: Device, grant: Grant, client: LocalClient, groups: LocalGroups, address: str
) -> BurnSession:
    host = device.host
    settings = host.settings.limited(grant.limits)
    outbox = Burn22Outbox(device, settings.session_bytes(device.backend.memory_bytes()))
    session = device.open_session(host.draw_session_id(grant), outbox, burn_domain(address), grant)
    outbox.count_in(OverheadAccount(session.interpreter.reply_quota))
    session.counters.failures = outbox.failures
    collectives = SessionCollectives(groups, client, [each.peer_address for each in host.devices])
    runner = Burn22Runner(session.engine, session.interpreter, outbox, client, collectives)
    return BurnSession(session, outbox, runner)


async def _refuse(link: AsyncLink, refused: _Refused) -> None:
    detached(refused)  # else it keeps what was decoded while the client delays closing
    try:
        if refused.answer is None:
            await link.close(POLICY_VIOLATION, str(refused))
            return
        await link.send(encode_refusal(refused.answer))
        await link.close(NORMAL_CLOSURE, "")
    except ConnectionLost:
        pass


class _Closed(Exception):
    """The client has closed its session."""


class _Intake:
    """Decodes the frames of a session, and executes or queues their tasks.

    Most frames are handled as soon as they arrive, without waking the task that receives. That task
    handles the frames that must wait: long ones, and all frames while the session is behind.
    """

    def __init__(self, link: AsyncLink, session: BurnSession, device: Device) -> None:
        self._link: Final = link
        self._session: Final = session
        self._decoding: Final = device.host.decoding
        self._must_wait: Final = partial(session.must_wait, device.host.settings)
        self._recognizer: Final = MessageRecognizer()
        self._is_slow = False  # the last batch had many unknown messages
        self._in_thread: Final = ThreadIntake(
            session,
            lender(link),
            partial(decoded_frames, recognizer=self._recognizer, work=session.session),
            self._must_wait,
            device.host.draining.is_set,
            self._choose_slice,
        )
        self._has_long_slice = False  # the session's thread

    def take_arrived(self) -> None:
        """Handle arrived frames that need not wait. Raises ``_Closed``."""
        session = self._session.session
        session.spent = 0  # the event loop has just called other sessions
        while (
            session.spent < TURN_COST
            and not self._is_slow
            and not self._must_wait()
            and not session.frame_memory.is_full
            and self._decoding.allows(LARGE_FRAME_BYTES)
        ):
            batch = FrameBatch(self._recognizer)
            batch.add_arrived(self._link, is_busy=bool(session.queued))
            if not (batch.count or batch.size):
                break
            self._submit(batch)
        self._in_thread.expect_work()

    def take_alone(self, frame: bytes | memoryview) -> bool:
        """Handle a frame that arrived alone, if it is known; return whether it was handled."""
        if self._is_slow or len(frame) > SHORT_FRAME_BYTES or self._must_wait():
            return False
        if not self._decoding.allows(len(frame)):
            return False
        known = self._recognizer.recognize(frame)
        if known is None:
            return False
        session = self._session.session
        session.spent = 0  # as in ``take_arrived``
        session.counters.client_received_bytes += len(frame)
        session.counters.batches += 1
        tasks: list[Any] = [known]
        self._session.submit(tasks, len(frame))
        self._in_thread.expect_work()
        return True

    async def take(self, frame: bytes | memoryview) -> None:
        """Handle a frame and later frames that have arrived. Raises ``_Closed``."""
        session = self._session.session
        if not self._decoding.allows(len(frame)):
            await self._decoding.wait(decoding_weight(frame))
        if session.frame_memory.lacks_room(frame):
            self._submit_in_parts(frame)
        else:
            self._submit(await self._decoded(frame))
        del frame  # do not keep it alive during the waits below
        while self._must_wait():
            self._session.progress.clear()
            await self._session.progress.wait()
        if session.spent >= TURN_COST:
            # ``receive`` does not yield while frames are buffered, so let other sessions run here.
            session.spent = 0
            await asyncio.sleep(0)
        self._in_thread.expect_work()

    async def _decoded(self, frame: bytes | memoryview) -> FrameBatch:
        """Decode a frame, and short ones that have arrived after it."""
        session = self._session.session
        batch = FrameBatch(self._recognizer)
        if self._is_slow or len(frame) > SHORT_FRAME_BYTES:
            with session.frame_memory.counted(frame):
                await batch.add_in_turns(frame, self._decoding)
        else:
            batch.add(frame)
        if self._decoding.allows(LARGE_FRAME_BYTES) and not session.frame_memory.is_full:
            batch.add_arrived(self._link, is_busy=bool(session.queued))
        return batch

    def _submit_in_parts(self, frame: bytes | memoryview) -> None:
        """Queue a frame undecoded, because memory is full. Raises ``_Closed``."""
        session = self._session
        session.session.counters.client_received_bytes += len(frame)
        session.session.counters.batches += 1
        session.submit_parts(_parts(frame, session), len(frame))
        if ends_with_close(frame):
            raise _Closed

    def _choose_slice(self) -> None:
        """Give the session's thread a long time slice, unless the client sends graphs.

        Such a client waits for the thread, which should not be interrupted then.
        """
        if self._has_long_slice == self._session.runs_graphs:
            self._has_long_slice = not self._has_long_slice
            self._session.session.submit(partial(_set_slice, is_long=self._has_long_slice))

    def _submit(self, batch: FrameBatch) -> None:
        """Execute or queue the tasks of a batch."""
        self._is_slow = batch.unknown >= MAX_UNKNOWN_MESSAGES
        self._decoding.spend(
            batch.weight + MESSAGE_WEIGHT * batch.count + UNKNOWN_MESSAGE_WEIGHT * batch.unknown
        )
        counters = self._session.session.counters
        counters.client_received_bytes += batch.size
        counters.batches += 1
        places = [place for place, task in enumerate(batch.tasks) if type(task) is Close]
        self._session.submit(batch.tasks[: places[0]] if places else batch.tasks, batch.size)
        if places:
            raise _Closed


def _parts(frame: bytes | memoryview, session: BurnSession) -> Iterator[Part]:
    """Yield the messages of a frame, which the session's thread decodes and executes."""
    try:
        for message in packed_messages(frame):
            yield Part(message.unpacked_bytes, partial(_tasks, message), session.execute)
    except ProtocolViolation as error:
        unreadable = [Unreadable(detached(error))]
        yield Part(0, lambda: unreadable, session.execute)


def _tasks(message: PackedMessage) -> Sequence[Any]:
    tasks = [task for task in message.decode() if type(task) is not Close]
    return [Unreadable(task) if isinstance(task, ProtocolViolation) else task for task in tasks]


def _set_slice(*, is_long: bool) -> None:
    """Give the session's thread a long or a usual time slice, if the system can do that."""
    if is_long:
        lengthen_slice()
    else:
        restore_slice()


async def _execute(link: AsyncLink, session: BurnSession, device: Device) -> None:
    intake = _Intake(link, session, device)
    link.call_on_arrival(intake.take_arrived, intake.take_alone)
    try:
        while True:
            await intake.take(await link.receive())
    except _Closed:
        await finish(session)
    finally:
        link.call_on_arrival(None)
