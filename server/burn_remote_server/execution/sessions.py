"""Sessions: one client's tensors, the order of its work, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from burn_remote_protocol.dialects.native import Batch
from burn_remote_protocol.errors import BurnRemoteError, HandshakeRefused
from burn_remote_protocol.messages import Chunk
from burn_remote_server.access.quota import Pool
from burn_remote_server.backends.interface import Deliver
from burn_remote_server.execution.engine import Engine
from burn_remote_server.execution.interpreter import Interpreter
from burn_remote_server.execution.worker import Worker
from burn_remote_server.telemetry.counters import Counters
from burn_remote_server.telemetry.logs import get_logger, session_name

__all__ = ["MAX_WAITING_REPLIES", "TURN_COST", "Session", "Sessions"]

logger = get_logger(__name__)


# What one session may cost the event loop before it yields to the others, in the unit of estimates
# (about a nanosecond). It bounds how long one session's small work delays the others'; yielding
# costs about 5 µs.
TURN_COST: Final = 200_000
# Replies that may wait to be sent before the next frame is read. It bounds what a client that asks
# and does not read makes the server hold.
MAX_WAITING_REPLIES: Final = 1024
# What a frame costs the event loop beside its work, in the unit of estimates (about a nanosecond).
FRAME_COST: Final = 10_000
# Decoding a byte of a frame that is no chunk, at worst: 17 ms for 512 KiB.
DECODED_COST_PER_BYTE: Final = 30
# What a batch takes in memory while it waits for the worker, for each byte of its frame: an
# invocation of 12 bytes is a list of four numbers, of 180 bytes.
DECODED_SIZE: Final = 16
# Copying 512 KiB takes about 60 µs.
CHUNK_BYTES_PER_COST: Final = 8


class Session:
    """One client's tensors, the worker that computes on them, and the order of its work.

    Small work runs at once on the event loop where nothing is queued before it; everything else
    goes to the worker. ``notify``, which the connection sets, is called on the event loop's thread
    after work has been done.
    """

    def __init__(
        self,
        identifier: int,
        engine: Engine,
        interpreter: Interpreter,
        counters: Counters,
        *,
        inline_cost: int,
        stop_fetching: Callable[[], None],
        memory: Pool | None = None,
    ) -> None:
        self.identifier = identifier
        self.secret = secrets.token_bytes(16)
        # What it has cost the event loop since that last turned to others, in the unit of
        # estimates.
        self.spent = 0
        self.token = ""  # the name of the token that opened it
        self.error: BurnRemoteError | None = None
        self.engine = engine
        engine.later = self._later
        # Answers that a device still works on. Counted by one thread each: the engine's and the
        # loop's.
        self._awaited = 0
        self._arrived = 0
        self.interpreter = interpreter
        self.counters = counters
        self._inline_cost = inline_cost
        self._stop_fetching = stop_fetching
        # Work on the event loop runs in a context of its own: NumPy keeps there how it treats
        # divisions by zero, and the loop's other tasks must not inherit that.
        self._context = contextvars.copy_context()
        self._context.run(interpreter.backend.prepare_thread)
        self.notify: Callable[[], None] = _nobody
        self._loop = asyncio.get_running_loop()
        self._worker = Worker(
            f"session-{identifier:x}",
            interpreter.backend.prepare_thread,
            self._progress,
            self._fail,
            memory,
        )
        self._memory = memory

    @property
    def queued(self) -> int:
        """Frames whose work has not been done, and answers that the device still works on."""
        return self._worker.queued + self._awaited - self._arrived

    @property
    def queued_bytes(self) -> int:
        """Bytes of those frames."""
        return self._worker.queued_bytes

    def is_behind(self, allowed_frames: int, allowed_bytes: int) -> bool:
        """Whether so much waits that nothing more should be read from the client: frames, their
        bytes, or any where the pool has no room for more."""
        return (
            self.queued >= allowed_frames
            or self.queued_bytes >= allowed_bytes
            or (self._memory is not None and self._memory.is_full and self.queued_bytes > 0)
        )

    def submit_batch(self, batch: Batch, size: int = 0) -> None:
        """Execute a batch, whose frame has ``size`` bytes, now or in its turn."""
        engine = self.engine
        self.submit_work(
            partial(engine.run, batch), partial(engine.estimate, batch, size), DECODED_SIZE * size
        )

    def submit_work(
        self, run: Callable[[], None], estimate: Callable[[], int | None], size: int
    ) -> None:
        """Execute what came in ``size`` bytes, now if it costs little, or in its turn."""
        self.spent += FRAME_COST + size * DECODED_COST_PER_BYTE
        if not self._worker.queued:
            cost = estimate()
            if cost is not None and cost <= self._inline_cost:
                self.spent += cost
                self._context.run(self._run, run)
                self.notify()
                return
        self._worker.submit(partial(self._run, run), size)

    def submit_chunk(self, chunk: Chunk) -> None:
        """Store a piece of an upload, now or in its turn."""
        self.spent += FRAME_COST + len(chunk.data) // CHUNK_BYTES_PER_COST
        if not self._worker.queued and self.engine.estimate_chunk(chunk) <= self._inline_cost:
            self._context.run(self._run, partial(self.engine.write_chunk, chunk))
            if self.error is not None:
                self.notify()
            return
        call = partial(self._run, partial(self.engine.write_chunk, chunk))
        self._worker.submit(call, len(chunk.data))

    def submit(self, call: Callable[[], None]) -> None:
        """Run anything else that belongs to the session, in its turn."""
        self._worker.submit(partial(self._run, call))

    def count(self) -> None:
        """Bring the counters up to date with what the interpreter counts on its own."""
        quota = self.interpreter.quota
        self.counters.operations = self.interpreter.executed
        self.counters.tensors = quota.tensors
        self.counters.tensor_bytes = quota.total_bytes

    def end(self) -> None:
        """Free everything, after what is running now; what is queued behind it is skipped."""
        self.error = self.error or BurnRemoteError("the session has ended")
        # What is running now may wait for a tensor that is on its way.
        self._stop_fetching()
        # Freeing many tensors one by one, the worker lets the event loop in between.
        if self._worker.queued or self.engine.estimate_close() > self._inline_cost:
            self._worker.submit(self.engine.close)
        else:
            self.engine.close()
        self._worker.stop()

    def _run(self, call: Callable[[], None]) -> None:
        if self.error is not None:
            return
        try:
            self.interpreter.session.activate()
            failure = self.interpreter.backend.failure
            if failure is not None:
                self.interpreter.lose(failure)
            call()
        except BurnRemoteError as error:
            self.error = error
        except Exception as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End this session for a defect of ours, and keep the others."""
        logger.error("session_failed", session=session_name(self.identifier), exc_info=error)
        self.error = self.error or BurnRemoteError(
            f"the server failed: {type(error).__name__}: {error}"
        )

    def _later(self, answer: Deliver) -> Deliver:
        """Return what a device calls, from a thread of its own, for ``answer`` to get its turn."""
        self._awaited += 1

        def deliver(value: memoryview | Exception | None) -> None:
            # A loop that has closed meanwhile: nobody is left to answer.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._go_on, partial(answer, value))

        return deliver

    def _go_on(self, call: Callable[[], None]) -> None:
        self._arrived += 1
        self.submit_work(call, _nothing, 0)

    def _progress(self) -> None:
        # The loop may be gone while the last worker winds down; nobody is left to notify then.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        # Looked up on the loop: the connection may be another one by then.
        self.notify()


def _nothing() -> int:
    """Return what an answer costs that is there already."""
    return 0


def _nobody() -> None:
    """No connection is there to be notified yet."""


class Sessions:
    """All sessions of a process."""

    def __init__(self, limit: int) -> None:
        self._limit: Final = limit
        self._open: dict[int, Session] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Session]:
        return iter([*self._open.values()])

    def draw_id(self) -> int:
        """Return an id for a new session. Raises ``HandshakeRefused`` when there are too many."""
        if len(self._open) >= self._limit:
            raise HandshakeRefused(
                f"the server has {self._limit} sessions, as many as it allows; try again later"
            )
        return secrets.randbits(63)

    def add(self, session: Session) -> None:
        """Count a session as open."""
        self._open[session.identifier] = session

    def remove(self, session: Session) -> None:
        """End a session and free what it holds."""
        if self._open.pop(session.identifier, None) is not None:
            session.end()
