"""In-process computation without a server: an engine that runs in the caller's thread.

``LocalDevice`` finds ``open_numpy`` through the entry point group ``burn_remote.local`` and
exchanges frames of the native dialect with it, as with any server.
"""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from burn_remote_protocol.collectives import EngineKind, GroupSpec
from burn_remote_protocol.dialects.native import (
    MAX_GROUPS,
    SESSION_LIMITS,
    VERSIONS,
    Batch,
    decode_frame,
    encode_frame,
)
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ConnectionFailed,
    ConnectionLost,
    ProtocolViolation,
    TransferFailed,
)
from burn_remote_protocol.handshake import agreed_version
from burn_remote_protocol.interrupted_finalizers import call_once_when_freed
from burn_remote_protocol.kept_tensors import MAX_PUBLISHED
from burn_remote_protocol.links.interface import BlockingLink
from burn_remote_protocol.messages import (
    Acknowledged,
    Chunk,
    Closing,
    Fetch,
    Hello,
    Refused,
    Welcome,
)
from burn_remote_protocol.operations.extensions import ANNOUNCED, EXTENSIONS_FIELD
from burn_remote_protocol.waiters import Waiters
from burn_remote_server.access.quota import Pool
from burn_remote_server.backends import open_backends
from burn_remote_server.backends.interface import Backend
from burn_remote_server.collectives.groups import Groups, SessionGroups
from burn_remote_server.collectives.links import Incoming
from burn_remote_server.custom import NO_OPERATIONS, CustomOperations
from burn_remote_server.execution.engine import Engine
from burn_remote_server.execution.native_outbox import NativeOutbox
from burn_remote_server.fusion.runtime_selection import with_fusion
from burn_remote_server.hosting.host import hand_over, new_interpreter
from burn_remote_server.settings.server_settings import Settings
from burn_remote_server.telemetry.counters import CounterRegistry
from burn_remote_server.tensors.exposed_tensors import Exposed, Key, Transfers
from burn_remote_server.tensors.kept_tensors import KeptTensors, OwnKeptTensors
from burn_remote_server.tensors.slots import InFlight

__all__ = ["LocalLink", "open_numpy"]

# Shared by all local devices of a process, so tensors move between them without being copied.
_transfers: Final = Transfers()
# The named tensors of all local devices. Contents of uploads are not kept (limit 0), because an
# upload to a local device sends nothing.
_kept: Final = KeptTensors(Pool(2**62), 0, 1.0)
_backends: dict[str, Backend] = {}

ADDRESS: Final = "the local device"


class _NoPeers:
    """Opens no links: members of a group of local devices are all in this process (``Dials``)."""

    def join_seconds(self, spec: GroupSpec) -> float:
        return spec.bound_seconds

    def dial(self, spec: GroupSpec, token: str, check: Callable[[], None]) -> Incoming:
        previous = spec.addresses[spec.rank - 1]
        raise ConnectionFailed(f"a local device has no links to servers such as {previous}")


# The engines of groups of local devices. ``MEMORY`` is the default of such groups.
_ENGINES: Final = (EngineKind.RING, EngineKind.MEMORY)
_groups: Final = Groups(_NoPeers(), lambda address: address == ADDRESS, CounterRegistry(), _ENGINES)
# Groups of links that were garbage-collected without ``close``. A finalizer may run in any thread,
# even one that holds a member's lock, so the next link leaves them.
_abandoned: Final[deque[SessionGroups]] = deque()


def _leave_abandoned() -> None:
    while _abandoned:
        _abandoned.popleft().end()


def open_numpy(custom_operations: Iterable[object] = ()) -> BlockingLink:
    """Open a session on the NumPy device of this process, with the given custom operations.

    Raises ``UsageError`` for an object that ``custom_operation`` did not create.
    """
    custom = CustomOperations(custom_operations)
    backend = _backends.get("numpy")
    if backend is None:
        # Without a lock, which a fork could leave locked: two threads may both open a backend, and
        # the second one is discarded.
        (opened,) = open_backends("numpy", 1)
        backend = _backends.setdefault("numpy", with_fusion(opened))
    return LocalLink(backend, Settings(), custom)


class LocalLink:
    """A ``BlockingLink`` to an in-process engine; ``send`` returns when the frame is executed.

    The engine runs in the sending thread. That may be the program's main thread, so a
    ``KeyboardInterrupt`` can be raised at any point of the execution.
    """

    address: Final = ADDRESS
    peer_host: Final = ""
    detects_corruption: Final = True

    def __init__(
        self, backend: Backend, settings: Settings, custom: CustomOperations = NO_OPERATIONS
    ) -> None:
        self._backend = backend
        self._settings = settings
        self._outbox = NativeOutbox(self._fetch)
        self._interpreter = new_interpreter(backend, settings, self._outbox, custom=custom)
        quota = self._interpreter.quota
        groups = _groups.session(backend, quota, is_staged=False)
        _leave_abandoned()
        call_once_when_freed(self, partial(_abandoned.append, groups))
        self._engine = Engine(
            self._interpreter,
            _transfers,
            self._outbox,
            transfer_domain="local",
            # Bounds the wait for the expose; the tensor itself then arrives at once.
            fetch_timeout_seconds=settings.fetch_timeout_seconds,
            groups=groups,
            kept=OwnKeptTensors(_kept, "", quota.max_bytes),
        )
        self._frames: deque[bytes] = deque()
        # Frames that are not fully executed.
        self._sent: deque[bytes] = deque()
        # The first of these frames, once its execution has begun.
        self._begun: bytes | None = None
        # The tasks of this first frame that remained after an interrupt.
        self._rest: tuple[Any, ...] | None = None
        self._lock = threading.RLock()
        self._arrived = Waiters()
        self._running = threading.Lock()
        self._is_open = False
        # Fetches that may still be waiting for their expose.
        self._awaited: list[tuple[Key, int, InFlight]] = []
        # Keeps the caller's NumPy settings unchanged.
        self._context = contextvars.copy_context()
        self._context.run(backend.prepare_thread)
        self._interrupted = False
        self.closed = False

    def send(self, frame: bytes) -> None:
        """Execute a frame; see ``send_together``."""
        self.send_together([frame])

    def send_parts(self, head: bytes, payload: memoryview, *, is_constant: bool = False) -> None:
        """Execute a frame that is given in two parts."""
        self.send_together([head + payload])

    def send_together(self, frames: list[bytes]) -> None:
        """Execute several frames. Raises ``ConnectionLost`` once the session has ended.

        A frame that has left the list is executed, also after a ``KeyboardInterrupt``. Then the
        operation that was being executed fails, and a separate thread executes the tasks after it,
        in this frame and in later ones.
        """
        if self.closed:
            raise ConnectionLost(f"{self.address} was closed")
        sent = self._sent
        try:
            # CPython runs no signal handler between these statements, because they call nothing.
            sent += frames
            del frames[:]
            self._execute_sent()
        except BaseException:
            threading.Thread(target=self._go_on, name="burn-remote-local", daemon=True).start()
            raise

    def _go_on(self) -> None:
        """Execute and deliver what an interrupted call left."""
        self._execute_sent()
        with self._running:
            # If another call was interrupted meanwhile, the outbox may have an incomplete reply.
            # The thread that executes the rest of that frame needs it there, and delivers it.
            if not self._sent:
                self._deliver()

    def _execute_sent(self) -> None:
        with self._running:
            sent = self._sent
            while sent:
                if not self.closed:
                    try:
                        self._context.run(self._take, sent[0])
                    except BurnRemoteError as error:
                        self._send_message(Closing(error) if self._is_open else Refused(error))
                        self._free()
                sent.popleft()
                if not self._outbox.is_empty:
                    self._deliver()

    def _deliver(self) -> None:
        with self._lock:
            self._outbox.move_to(self._frames)
            self._arrived.wake()

    def receive(self, timeout_seconds: float | None = None) -> bytes | None:
        """Return the next frame from the engine, or ``None`` after the timeout."""
        if not (self._readable() or self._arrived.wait_until(self._readable, timeout_seconds)):
            return None
        # Only one thread receives. CPython runs no signal handler between removing the frame and
        # the caller's assignment, because nothing is called. So no lock is taken: leaving a
        # ``with`` block is a call.
        frames = self._frames
        if frames:
            frame = frames[0]
            del frames[0]
            return frame
        raise ConnectionLost(f"{self.address} was closed")

    def wait_readable(self, timeout_seconds: float | None = None) -> bool:
        """Wait until a frame or the end can be received, without consuming it."""
        self._arrived.wait_until(lambda: self._readable() or self._interrupted, timeout_seconds)
        self._interrupted = False
        return self._readable()

    def has_buffered(self) -> bool:
        """Whether a frame or the end can be received."""
        return self._readable()

    def has_ended(self) -> bool:
        """Whether the link was closed."""
        return self.closed

    def keep_alive(self, interval_seconds: float, beat: Callable[[], None] | None = None) -> None:
        """Do nothing: an in-process engine needs no keepalive."""

    def interrupt(self) -> None:
        """Make another thread's ``wait_readable`` return."""
        with self._lock:
            self._interrupted = True
            self._arrived.wake()

    def close(self, code: int = 1000, reason: str = "") -> None:
        """End the session and free its tensors."""
        with self._running:
            self._free()

    def _free(self) -> None:
        if not self.closed:
            self._engine.close()
            for key, ticket, slot in self._awaited:
                _transfers.forget(key, ticket)
                slot.fail(TransferFailed("the session ended before the tensor arrived"))
            self._awaited.clear()
        with self._lock:
            self.closed = True
            self._arrived.wake()

    def _readable(self) -> bool:
        return bool(self._frames) or self.closed

    def _push(self, frame: bytes) -> None:
        with self._lock:
            self._frames.append(frame)
            self._arrived.wake()

    def _send_message(self, message: object) -> None:
        self._push(encode_frame(message))

    def _take(self, frame: bytes) -> None:
        message = decode_frame(frame)
        is_repeated = self._begun is frame  # an interrupt stopped its execution
        if not is_repeated:
            engine = self._engine
            self._begun, self._rest, engine.place, engine.handled = frame, None, 0, -1
        if isinstance(message, Hello):
            self._open_session(message)
        elif isinstance(message, Batch):
            self._outbox.window.acknowledge(message.received)
            if is_repeated:
                self._run_rest(message)
            else:
                self._engine.run(message)
        elif isinstance(message, Chunk):
            self._engine.write_chunk(message, is_repeated=is_repeated)
        elif isinstance(message, Acknowledged):
            self._outbox.window.acknowledge(message.received)
        elif isinstance(message, Closing):
            self._free()
        else:
            raise ProtocolViolation(f"a client must not send {type(message).__name__}")

    def _run_rest(self, batch: Batch) -> None:
        """Execute the rest of a batch that an interrupt stopped."""
        tasks = batch.tasks if self._rest is None else self._rest
        engine = self._engine
        place = engine.place
        if place < len(tasks) and self._needs_no_repetition(tasks[place]):
            place += 1
        # These assignments contain no function call, so no interrupt can occur between them.
        self._rest, engine.place, engine.handled = tasks[place:], 0, -1
        engine.run(Batch(batch.received, self._rest))

    def _needs_no_repetition(self, task: Any) -> bool:
        """Whether an interrupted task has completed or failed, so that it is not repeated."""
        if self._engine.handled == self._engine.place:
            return True
        request = self._engine.request_of(task)
        if request is not None:
            return self._outbox.has_answered(request)
        return self._engine.fail_interrupted(task)

    def _open_session(self, hello: Hello) -> None:
        limits = {
            **SESSION_LIMITS,
            "groups": MAX_GROUPS,
            "group_engines": EngineKind.bits(_ENGINES),
            "published": MAX_PUBLISHED,
            "message_bytes": self._settings.max_message_bytes,
            "tensors": self._settings.max_session_tensors,
        }
        device = {"index": 0, "backend": self._backend.name, EXTENSIONS_FIELD: ANNOUNCED}
        version = agreed_version(hello, VERSIONS)
        self._is_open = True
        self._send_message(Welcome(version, 1, b"", 0.0, device, limits, self.address))

    def _fetch(self, task: Fetch, slot: InFlight) -> None:
        key = ("local", task.transfer)

        def arrive(exposed: Exposed) -> None:
            hand_over(exposed, task, slot, self._backend)

        self._awaited = [entry for entry in self._awaited if not entry[2].arrived()]
        self._awaited.append((key, _transfers.fetch(key, arrive), slot))
