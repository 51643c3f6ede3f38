"""Sessions of Burn 0.21 clients, each of which has two sockets.

A client opens ``/request`` and ``/response`` in any order and sends the session id, which it chose,
on both. The first socket opens the session; if the second does not follow in time, the session
ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from burn_remote_protocol.dialects.bounded_unpacking import unpacked_bytes
from burn_remote_protocol.dialects.burn_0_22 import RunGraph
from burn_remote_protocol.errors import HandshakeRefused, ProtocolViolation
from burn_remote_protocol.links.interface import LentReceiver
from burn_remote_protocol.links.receive_limits import URGENT_BYTES
from burn_remote_protocol.loop_calls import Signal
from burn_remote_protocol.messages import Upload
from burn_remote_server.access.admission import Grant
from burn_remote_server.access.quota import OverheadAccount, Pool
from burn_remote_server.dialects.burn_0_21.compatibility import ReplyDTypes
from burn_remote_server.dialects.burn_0_21.outbox import BurnOutbox
from burn_remote_server.dialects.burn_0_21.task_runner import BurnTask, TaskRunner
from burn_remote_server.execution.frame_memory import Part
from burn_remote_server.execution.sessions import MAX_WAITING_REPLIES, Session
from burn_remote_server.hosting.host import Device
from burn_remote_server.settings.server_settings import Settings
from burn_remote_server.tensors.exposed_tensors import burn_domain

__all__ = [
    "DECODED_SIZE",
    "DIALECT",
    "BurnSession",
    "BurnSessions",
    "decoded_bytes",
    "urgent_bytes",
]

DIALECT: Final = "burn-0.21"

# Memory of decoded tasks per byte of their frame, without elements: a slice of four bytes becomes
# an object of 80 bytes.
DECODED_SIZE: Final = 24
# In frames up to this size, ``decoded_bytes`` does not look for elements of uploads: the search
# takes longer than a more precise result is worth.
FEW_BYTES: Final = 4096

# A pool of 512 MiB or more has 1 MiB for each connection.
URGENT_SHARES: Final = 512
# A message that drops tensors is shorter.
LEAST_URGENT_BYTES: Final = 2**17


class BurnSession:
    """A session and the state of its sockets: two in Burn 0.21, one in Burn 0.22."""

    def __init__(
        self, session: Session, outbox: BurnOutbox, runner: TaskRunner | None = None
    ) -> None:
        self.session: Final = session
        self.outbox: Final = outbox
        self._runner: Final = runner or TaskRunner(session.engine, session.interpreter, outbox)
        # Executes tasks, in the thread that executes the session's tasks.
        self.execute: Final[Callable[[Sequence[Any]], None]] = (
            partial(_run_with_dtypes, self._runner, ReplyDTypes())
            if runner is None
            else self._runner.run
        )
        # ``wake`` is set when there are frames to send. ``progress`` is set when the queues have
        # become shorter, so reading may continue.
        self.wake: Final = Signal()
        # Sends the replies that can be sent without waiting; set by the handler that sends replies.
        self.send_now: Callable[[], None] = _no_handler
        # Lends the receiving side of the socket for replies; set by the handler that sends them.
        self.lend_responses: Callable[[], LentReceiver | None] = _nothing_to_lend
        # Held while a reply is taken from the outbox and written, and to change ``is_sending``.
        self.sending: Final = threading.Lock()
        # Whether the handler sends a reply that may take several writes.
        self.is_sending = False
        self.progress: Final = Signal()
        self.ended: Final = Signal()
        self.complete: Final = Signal()
        self._routes: set[str] = set()
        session.notify = self.notify

    def notify(self) -> None:
        """Send replies and wake the handlers, after tasks were executed."""
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
            partial(self.execute, tasks),
            partial(runner.estimate, tasks),
            size,
            decoded_bytes(tasks, size),
        )

    def submit_parts(self, parts: Iterator[Part], size: int) -> None:
        """Decode and execute the parts of a frame of ``size`` bytes after the queued tasks.

        Use this for frames for which the memory pool lacks room: ``FrameMemory.lacks_room``.
        """
        self.session.submit_parts(parts, size)

    def must_wait(self, settings: Settings) -> bool:
        """Whether to read nothing more from the client, because the session is behind."""
        return (
            self.session.is_behind(settings.session_queue_batches, settings.session_queue_bytes)
            or len(self.outbox.frames) >= MAX_WAITING_REPLIES
        )

    def send_in_thread(self, send: Callable[[bytes], bool]) -> bool:
        """Send small replies by ``send``; return whether the event loop must send the rest.

        ``send`` returns whether it has sent the reply.
        """
        frames = self.outbox.frames
        if not frames:
            return False
        with self.sending:
            while frames and not self.is_sending and len(frames[0]) == 1:
                (reply,) = frames[0]
                if not send(bytes(reply)):
                    break
                self.sent(frames.popleft())
        return bool(frames)

    @property
    def runs_graphs(self) -> bool:
        """Whether the client has registered graphs."""
        return self._runner.runs_graphs

    def send_during_tasks(self, send: Callable[[], None] | None) -> None:
        """Let tasks call ``send`` for replies that should not wait for their end."""
        self._runner.send_replies = send

    def sent(self, frame: Sequence[bytes | memoryview]) -> None:
        """Count a reply that was taken from the outbox and written."""
        self.session.counters.client_sent_bytes += sum(map(len, frame))
        self.outbox.taken(frame)

    def attach(self, route: str) -> None:
        """Register a socket. Raises ``ProtocolViolation`` if the route already has one."""
        if route in self._routes:
            raise ProtocolViolation(f"the session already has a {route} socket")
        self._routes.add(route)
        if len(self._routes) == 2:
            self.complete.set()


def urgent_bytes(memory: Pool) -> int:
    """Return how many received bytes of a connection are urgent, so that they find room.

    Fewer than in the native dialect, where tensors arrive in chunks that a client may always send.
    """
    return min(max(memory.max_bytes // URGENT_SHARES, LEAST_URGENT_BYTES), URGENT_BYTES)


def decoded_bytes(tasks: Sequence[Any], size: int) -> int:
    """Return the memory of tasks that arrived in ``size`` bytes.

    Elements of uploads count once, because decoding does not copy them. The operations of a graph
    count when they are decoded, which is later.
    """
    elements = operations = 0
    if size > FEW_BYTES:
        elements = sum(len(task.data.bytes) for task in tasks if isinstance(task, Upload))
        operations = sum(
            unpacked_bytes(task.operations)
            for task in tasks
            if type(task) is RunGraph and task.operations is not None
        )
    return max(DECODED_SIZE * max(0, size - elements), operations) + elements


def _run_with_dtypes(runner: TaskRunner, dtypes: ReplyDTypes, tasks: Sequence[Any]) -> None:
    """Run tasks of Burn 0.21, whose reads return the dtypes of Burn's own server."""
    runner.run([*dtypes.applied(tasks)])


def _no_handler() -> None:
    """Do nothing: no socket for replies is open yet."""


def _nothing_to_lend() -> None:
    """Lend nothing: no socket for replies is open."""


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
