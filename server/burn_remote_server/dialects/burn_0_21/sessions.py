"""Sessions of Burn 0.21 clients, each of which has two sockets.

A client opens ``/request`` and ``/response`` in any order and sends the session id, which it chose,
on both. The first socket opens the session; if the second does not follow in time, the session
ends.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from burn_remote_protocol.dialects.burn_0_21_responses import BurnReply, encode_reply
from burn_remote_protocol.dialects.native import INLINE_BYTES
from burn_remote_protocol.errors import (
    HandshakeRefused,
    LimitExceeded,
    OperationFailed,
    ProtocolViolation,
    QuotaExceeded,
)
from burn_remote_protocol.messages import Fetch, ReplyValue, Upload
from burn_remote_protocol.tensors import TensorData
from burn_remote_server.access.admission import Grant
from burn_remote_server.access.quota import OverheadAccount, ended_for_memory
from burn_remote_server.dialects.burn_0_21.compatibility import ReplyDTypes
from burn_remote_server.dialects.burn_0_21.task_runner import BurnTask, TaskRunner
from burn_remote_server.execution.outbox import held_bytes
from burn_remote_server.execution.sessions import DECODED_SIZE, Session
from burn_remote_server.hosting.host import Device
from burn_remote_server.tensors.exposed import burn_domain
from burn_remote_server.tensors.slots import InFlight

__all__ = ["DIALECT", "BurnOutbox", "BurnSession", "BurnSessions"]

DIALECT: Final = "burn-0.21"

# Most failures kept until a read or a sync reports them, so that a program that never syncs cannot
# accumulate them.
MAX_UNREPORTED: Final = 64


# Of frames up to this size, elements are not subtracted: that would take longer than it is worth.
FEW_BYTES: Final = 4096


class BurnOutbox:
    """The queue of reply frames in Burn's dialect. The engine appends, the pump takes."""

    # encode(reply, is_sync=False): the release's form of a reply, as a list of buffers.
    encode = staticmethod(encode_reply)

    def __init__(self, device: Device, max_waiting_bytes: int) -> None:
        self._device = device
        self._max_waiting_bytes = max_waiting_bytes
        # Each counter has one writing thread: the engine's, or the pump's.
        self._added_bytes = 0
        self.taken_bytes = 0
        self.frames: deque[list[bytes | memoryview]] = deque()
        self.failures: Counter[str] = Counter()  # number so far, by error code
        self._unreported: list[OperationFailed] = []
        self._account: OverheadAccount | None = None

    def count_in(self, account: OverheadAccount) -> None:
        """Count the bytes of later frames in an account."""
        self._account = account

    def reply(self, request: int, value: ReplyValue) -> None:
        """Queue the response to a request.

        Raises ``SessionLost``, which ends the session, if not even an error fits into the quota.
        """
        if isinstance(value, OperationFailed):
            self._unreported = [each for each in self._unreported if each.tensor != value.tensor]
        frame = self._encoded(request, value)
        size = sum(map(len, frame))
        waiting = self._added_bytes - self.taken_bytes
        if waiting and waiting + size > self._max_waiting_bytes:
            refusal = QuotaExceeded(
                f"bytes of queued responses: {waiting + size:,} would be queued, "
                f"{self._max_waiting_bytes:,} are allowed; read fewer tensors at once"
            )
            frame = self.encode(BurnReply(request, refusal))
            size = sum(map(len, frame))
        elif size <= INLINE_BYTES:
            frame = [b"".join(frame)]  # a small view could keep a large tensor's memory alive
        try:
            self._count(frame)
        except QuotaExceeded as error:
            frame = self.encode(BurnReply(request, error))
            size = sum(map(len, frame))
            try:
                self._count(frame)
            except QuotaExceeded:
                raise ended_for_memory("a response", error) from error
        self._added_bytes += size
        self.frames.append(frame)

    def append(self, frame: list[bytes | memoryview]) -> None:
        """Queue another small frame. Raises ``SessionLost`` if it does not fit into the quota."""
        try:
            self._count(frame)
        except QuotaExceeded as error:
            raise ended_for_memory("a response", error) from error
        self._added_bytes += sum(map(len, frame))
        self.frames.append(frame)

    def taken(self, frame: Sequence[bytes | memoryview]) -> None:
        """Count a frame as sent."""
        self.taken_bytes += sum(map(len, frame))
        if self._account is not None:
            self._account.remove(_own_bytes(frame))

    def _count(self, frame: Sequence[bytes | memoryview]) -> None:
        if self._account is not None:
            self._account.add(_own_bytes(frame))

    def failed(self, tensors: tuple[int, ...], error: OperationFailed) -> None:
        """Keep a failure until a read of the tensor, or else the next sync, reports it."""
        self.failures[error.code] += 1
        if len(self._unreported) < MAX_UNREPORTED:
            self._unreported.append(error)

    def _encoded(self, request: int, value: ReplyValue) -> list[bytes | memoryview]:
        try:
            if value is None and self._unreported:
                first, self._unreported = self._unreported[0], []
                return self.encode(BurnReply(request, first), is_sync=True)
            assert not isinstance(value, tuple) or isinstance(value, TensorData)  # native only
            return self.encode(BurnReply(request, value))
        except LimitExceeded as error:
            return self.encode(BurnReply(request, OperationFailed(str(error))))

    def fetch(self, task: Fetch, slot: InFlight) -> None:
        """Start a fetch."""
        self._device.host.start_fetch(self, self._device.backend, task, slot)


def _own_bytes(frame: Sequence[bytes | memoryview]) -> int:
    """Return a frame's own memory, without elements that are views of a tensor's memory.

    ``TensorTable.hold_reply`` counts those.
    """
    return held_bytes(sum(len(buffer) for buffer in frame if isinstance(buffer, bytes)))


class BurnSession:
    """A session and the state of its sockets: two in Burn 0.21, one in Burn 0.22."""

    def __init__(
        self, session: Session, outbox: BurnOutbox, runner: TaskRunner | None = None
    ) -> None:
        self.session: Final = session
        self.outbox: Final = outbox
        self._runner: Final = runner or TaskRunner(session.engine, session.interpreter, outbox)
        self.dtypes: Final = ReplyDTypes()
        # ``wake`` is set when there are frames to send, ``progress`` when there may be room to read
        # on.
        self.wake: Final = asyncio.Event()
        # Sends what can be sent without waiting; the handler that sends replies sets it.
        self.send_now: Callable[[], None] = _no_handler
        self.progress: Final = asyncio.Event()
        self.ended: Final = asyncio.Event()
        self.complete: Final = asyncio.Event()
        self._routes: set[str] = set()
        session.notify = self.notify

    def notify(self) -> None:
        """Send replies, and wake the handlers, after work was done."""
        self.send_now()
        if self.outbox.frames or self.session.error is not None or self.ended.is_set():
            self.wake.set()
        self.progress.set()
        if self.session.error is not None:
            self.ended.set()

    def submit(self, tasks: Sequence[BurnTask], size: int) -> None:
        """Execute tasks that arrived in ``size`` bytes, now or after the queued ones."""
        runner = self._runner
        self.session.submit_work(
            partial(runner.run, tasks),
            partial(runner.estimate, tasks),
            size,
            _decoded_bytes(tasks, size),
        )

    def attach(self, route: str) -> None:
        """Register a socket. Raises ``ProtocolViolation`` if the route already has one."""
        if route in self._routes:
            raise ProtocolViolation(f"the session already has a {route} socket")
        self._routes.add(route)
        if len(self._routes) == 2:
            self.complete.set()


def _decoded_bytes(tasks: Sequence[BurnTask], size: int) -> int:
    """Return the memory of tasks that arrived in ``size`` bytes; elements are not copied."""
    elements = 0
    if size > FEW_BYTES:
        elements = sum(len(task.data.bytes) for task in tasks if isinstance(task, Upload))
    return DECODED_SIZE * max(0, size - elements) + elements


def _no_handler() -> None:
    """Do nothing: no socket for replies is open yet."""


class BurnSessions:
    """The Burn sessions of one process, by device and the id that the client chose."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[int, int], BurnSession] = {}

    def join(
        self, device: Device, identifier: int, route: str, grant: Grant, address: str = ""
    ) -> BurnSession:
        """Return the session of a new socket; its first socket opens the session.

        ``address`` is the address at which the client reached this server.

        Raises ``ProtocolViolation`` if the session already has this socket, ``HandshakeRefused`` if
        the server has too many sessions or if the other socket has a different token.
        """
        key = (device.index, identifier)
        found = self._sessions.get(key)
        if found is None:
            settings = device.host.settings.limited(grant.limits)
            outbox = BurnOutbox(device, settings.session_bytes(device.backend.memory_bytes()))
            # Ids chosen by clients can collide, so the server also draws its own id.
            session = device.open_session(
                device.host.draw_session_id(grant), outbox, burn_domain(address), grant
            )
            outbox.count_in(OverheadAccount(session.interpreter.reply_quota))
            session.counters.failures = outbox.failures
            found = self._sessions[key] = BurnSession(session, outbox)
        elif found.session.token != grant.name:
            # Ids can be guessed: another client must not receive this session's responses.
            raise HandshakeRefused("both sockets of a session must present the same token")
        found.attach(route)
        return found

    def leave(self, device: Device, identifier: int, session: BurnSession) -> None:
        """End a session because one of its sockets closed. A second call does nothing."""
        key = (device.index, identifier)
        # When the second socket closes, another session may already use the same id.
        if self._sessions.get(key) is session:
            del self._sessions[key]
            device.host.end_session(session.session)
            session.ended.set()
            session.notify()
