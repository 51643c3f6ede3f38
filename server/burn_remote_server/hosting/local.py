"""How does a program compute without any server? The engine, driven in the caller's thread.

``LocalDevice`` finds ``open_numpy`` through the entry point group ``burn_remote.local`` and speaks
the native dialect to it, frame by frame, as to any server.
"""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

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
    ProtocolViolation,
    TransferFailed,
)
from burn_remote_protocol.handshake import agreed_version
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
from burn_remote_server.backends import open_backends
from burn_remote_server.backends.interface import Backend
from burn_remote_server.custom import NO_OPERATIONS, CustomOperations
from burn_remote_server.execution.engine import Engine
from burn_remote_server.execution.exposed import Exposed, Key, Transfers
from burn_remote_server.execution.outbox import NativeOutbox
from burn_remote_server.execution.slots import InFlight
from burn_remote_server.hosting.host import hand_over, new_interpreter
from burn_remote_server.settings.server_settings import Settings

__all__ = ["LocalLink", "open_numpy"]

# All local devices of a process meet here, so that tensors move between them without copying.
_transfers: Final = Transfers()
_backends: dict[str, Backend] = {}


def open_numpy(custom_operations: Iterable[object] = ()) -> BlockingLink:
    """Open a session on this process's own NumPy device, with operations of the program's own.

    Raises ``UsageError`` for what was not made by ``custom_operation``.
    """
    custom = CustomOperations(custom_operations)
    backend = _backends.get("numpy")
    if backend is None:
        # No lock, which a fork could leave locked: of two threads one opens it for nothing.
        (opened,) = open_backends("numpy", 1)
        backend = _backends.setdefault("numpy", opened)
    return LocalLink(backend, Settings(), custom)


class _Progress(tuple[Any, ...]):
    """The tasks of a batch; ``place`` is that of the one that is being executed."""

    place = 0

    def __iter__(self) -> Iterator[Any]:
        for place, task in enumerate(super().__iter__()):
            self.place = place
            yield task
        self.place = len(self)


class LocalLink:
    """A ``BlockingLink`` to an engine: a frame has been executed when ``send`` returns.

    The engine runs in the thread that sends, which may be the program's main thread: Ctrl-C can
    come at any point of it.
    """

    address: Final = "the local device"
    detects_corruption: Final = True

    def __init__(
        self, backend: Backend, settings: Settings, custom: CustomOperations = NO_OPERATIONS
    ) -> None:
        self._backend = backend
        self._settings = settings
        self._outbox = NativeOutbox(self._fetch)
        self._interpreter = new_interpreter(backend, settings, self._outbox, custom=custom)
        self._engine = Engine(
            self._interpreter,
            _transfers,
            self._outbox,
            transfer_domain="local",
            # For the expose: what is exposed in the process arrives with that.
            fetch_patience_seconds=settings.fetch_timeout_seconds,
        )
        self._frames: deque[bytes] = deque()
        # Frames that were sent and not yet executed to their end, and how far the first one is.
        self._sent: deque[bytes] = deque()
        self._progress: _Progress | None = None
        self._begun: bytes | None = None
        self._arrived = threading.Condition()
        self._running = threading.Lock()
        self._greeted = False
        # Fetches that may still wait for their expose.
        self._awaited: list[tuple[Key, int, InFlight]] = []
        # The caller's own NumPy settings stay as they are.
        self._context = contextvars.copy_context()
        self._context.run(backend.prepare_thread)
        self._interrupted = False
        self.closed = False

    def send(self, frame: bytes) -> None:
        """Execute a frame. Raises ``ConnectionLost`` once the session has ended.

        After a ``KeyboardInterrupt`` the operation that was being executed has failed, and all that
        came behind it, in this frame and in others, is executed by a thread.
        """
        if self.closed:
            raise ConnectionLost(f"{self.address} was closed")
        # Handed over before anything is waited for: from here on an interrupt loses nothing.
        self._sent.append(frame)
        try:
            self._execute_sent()
        except BaseException:
            threading.Thread(
                target=self._execute_sent, name="burn-remote-local", daemon=True
            ).start()
            raise

    def _execute_sent(self) -> None:
        with self._running:
            while self._sent:
                if not self.closed:
                    self._execute(self._sent[0])
                self._sent.popleft()
                self._push_answers()

    def _execute(self, frame: bytes) -> None:
        try:
            self._context.run(self._take, frame)
        except BurnRemoteError as error:
            self._say(Closing(error) if self._greeted else Refused(error))
            self._free()

    def _push_answers(self) -> None:
        while (out := self._outbox.take()) is not None:
            self._push(out if isinstance(out, bytes) else out[0] + out[1])

    def send_parts(self, head: bytes, payload: memoryview) -> None:
        """Execute a frame that is made of two parts."""
        self.send(head + payload)

    def send_together(self, frames: Iterable[bytes]) -> None:
        """Execute several frames."""
        for frame in frames:
            self.send(frame)

    def receive(self, timeout_seconds: float | None = None) -> bytes | None:
        """Return the next frame from the engine, ``None`` when the time is over."""
        with self._arrived:
            if not self._arrived.wait_for(self._readable, timeout_seconds):
                return None
            if self._frames:
                return self._frames.popleft()
        raise ConnectionLost(f"{self.address} was closed")

    def wait_readable(self, timeout_seconds: float | None = None) -> bool:
        """Wait until a frame, or the end, can be received; consumes nothing."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._readable() or self._interrupted, timeout_seconds)
            self._interrupted = False
            return self._readable()

    def keep_alive(self, interval_seconds: float, beat: Callable[[], None] | None = None) -> None:
        """Do nothing: the server lives and dies with this process."""

    def interrupt(self) -> None:
        """Make a ``wait_readable`` of another thread return."""
        with self._arrived:
            self._interrupted = True
            self._arrived.notify_all()

    def close(self, code: int = 1000, reason: str = "") -> None:
        """End the session and free what it holds."""
        with self._running:
            self._free()

    def _free(self) -> None:
        if not self.closed:
            self._engine.close()
            for key, ticket, slot in self._awaited:
                _transfers.forget(key, ticket)
                slot.fail(TransferFailed("the session ended before the tensor arrived"))
            self._awaited.clear()
        with self._arrived:
            self.closed = True
            self._arrived.notify_all()

    def _readable(self) -> bool:
        return bool(self._frames) or self.closed

    def _push(self, frame: bytes) -> None:
        with self._arrived:
            self._frames.append(frame)
            self._arrived.notify_all()

    def _say(self, message: object) -> None:
        self._push(encode_frame(message))

    def _take(self, frame: bytes) -> None:
        message = decode_frame(frame)
        is_repeated = self._begun is frame  # an interrupt came while it was executed
        self._begun = frame
        if isinstance(message, Hello):
            self._greet(message)
        elif isinstance(message, Batch):
            self._outbox.window.acknowledge(message.received)
            self._run(message)
        elif isinstance(message, Chunk):
            self._engine.write_chunk(message, is_repeated=is_repeated)
        elif isinstance(message, Acknowledged):
            self._outbox.window.acknowledge(message.received)
        elif isinstance(message, Closing):
            self._free()
        else:
            raise ProtocolViolation(f"a client does not send {type(message).__name__}")

    def _run(self, batch: Batch) -> None:
        """Execute a batch, or what an interrupt has left of it."""
        progress = self._progress
        if progress is None:
            progress = self._progress = _Progress(batch.tasks)
        else:
            place = progress.place
            if place < len(progress) and self._engine.fail_interrupted(progress[place]):
                place += 1
            progress = self._progress = _Progress(progress[place:])
        self._engine.run(Batch(batch.received, progress))
        self._progress = None

    def _greet(self, hello: Hello) -> None:
        limits = {
            "chunk_bytes": CHUNK_BYTES,
            "message_bytes": self._settings.max_message_bytes,
            "signatures": MAX_SIGNATURES,
        }
        device = {"index": 0, "backend": self._backend.name}
        version = agreed_version(hello, VERSIONS)
        self._greeted = True
        self._say(Welcome(version, 1, b"", 0.0, device, limits, self.address))

    def _fetch(self, task: Fetch, slot: InFlight) -> None:
        key = ("local", task.transfer)

        def arrive(exposed: Exposed) -> None:
            hand_over(exposed, task, slot, self._backend)

        self._awaited = [entry for entry in self._awaited if not entry[2].arrived()]
        self._awaited.append((key, _transfers.fetch(key, arrive), slot))
