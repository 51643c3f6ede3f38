"""The state, the order of work and the end of one client's session."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, TypeVar

from burn_remote_protocol.dialects.bounded_unpacking import MAX_UNPACKED_BYTES_PER_BYTE
from burn_remote_protocol.dialects.native import Batch
from burn_remote_protocol.errors import BurnRemoteError, SessionLost, detached
from burn_remote_protocol.messages import Chunk
from burn_remote_server.access.quota import Pool
from burn_remote_server.backends.interface import Deliver
from burn_remote_server.execution.costs import decoded_bytes
from burn_remote_server.execution.engine import Engine
from burn_remote_server.execution.frame_memory import FrameMemory, Part
from burn_remote_server.execution.interpreter import Interpreter
from burn_remote_server.execution.interpreter_turns import InterpreterTurn, InterpreterTurns
from burn_remote_server.execution.worker import THREAD_ENDED, Worker
from burn_remote_server.telemetry.counters import Counters
from burn_remote_server.telemetry.logs import get_logger, session_name

__all__ = [
    "FRAME_COST",
    "MAX_WAITING_REPLIES",
    "SESSION_BYTES",
    "TURN_COST",
    "Session",
]

logger = get_logger(__name__)

T = TypeVar("T")

# Cost, in nanoseconds, that one session may accumulate on the event loop before it yields. It
# bounds the delay of other sessions; yielding itself takes about 5 µs.
TURN_COST: Final = 200_000
# Most queued replies; above it, the server stops reading the client's frames. Bounds the memory for
# a client that sends requests and does not read the replies.
MAX_WAITING_REPLIES: Final = 1024
# Cost of receiving a frame on the event loop, in nanoseconds, in addition to its tasks.
FRAME_COST: Final = 10_000
# Worst-case cost of decoding one byte of a frame other than a chunk, and of freeing the result:
# 40 ms for 512 KiB of nested lists.
DECODED_COST_PER_BYTE: Final = 80
# Memory of a session's own objects and of its thread: 40 to 60 KiB when it has executed its first
# operations, up to 80 KiB with a thread (``docs/security/limits.md``).
SESSION_BYTES: Final = 80 * 1024
# Copying 512 KiB takes about 60 µs.
CHUNK_BYTES_PER_COST: Final = 8


# The counter of a session for each count of its interpreter.
_FUSION_COUNTS: Final = (
    ("fusion_windows", "windows"),
    ("fusion_plans_explored", "plans_explored"),
    ("fusion_plans_found", "plans_found"),
    ("fusion_plans_evicted", "plans_evicted"),
    ("fusion_operations", "operations_fused"),
    ("fusion_fallbacks", "fallbacks"),
    ("graphs", "graphs"),
    ("graph_calls", "graph_calls"),
    ("graph_fallbacks", "graph_fallbacks"),
    ("graph_captures", "captures"),
    ("graph_replays", "replays"),
    ("graph_replay_fallbacks", "replay_fallbacks"),
    ("graph_captures_refused", "captures_refused"),
    ("graph_captures_released", "captures_released"),
    ("compile_seconds", "compile_seconds"),
)


class Session:
    """One client's session: its engine, its worker thread and the order of its work.

    Cheap work runs directly on the event loop if the worker's queue is empty; other work goes to
    the worker. The connection sets ``notify``, which is called on the event loop's thread after
    work has been done.
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
        own_bytes: int = 0,
        decoding_lock: threading.Lock | None = None,
        turns: InterpreterTurns | None = None,
        operation_lost_seconds: float = math.inf,
    ) -> None:
        self.identifier = identifier
        self.secret = secrets.token_bytes(16)
        # Cost on the event loop since this session last yielded, in nanoseconds.
        self.spent = 0
        self.token = ""  # the name of the token that opened it
        self.error: BurnRemoteError | None = None
        self.engine = engine
        engine.later = self._later
        # The number of responses that the device has begun, which only the engine's thread writes,
        # and the number of those that it has finished, which only the event loop writes.
        self._awaited = 0
        self._arrived = 0
        self.interpreter = interpreter
        self.counters = counters
        self._inline_cost = inline_cost
        self._stop_fetching = stop_fetching
        memory = Pool(2**62) if memory is None else memory
        # Work on the event loop runs in its own context: NumPy's floating-point error settings are
        # context variables, and the event loop's other tasks must not inherit them.
        self._context = contextvars.copy_context()
        self._context.run(interpreter.backend.prepare_thread)
        self.notify: Callable[[], None] = _no_connection
        self._loop = asyncio.get_running_loop()
        self._worker = Worker(
            f"session-{identifier:x}",
            interpreter.backend.prepare_thread,
            self._progress,
            self.fail,
            memory,
        )
        self._memory = memory
        self._own_bytes = own_bytes
        memory.add(own_bytes)
        self._decoding_lock = decoding_lock or threading.Lock()
        self.turn: Final = InterpreterTurn(turns)
        engine.turn = self.turn
        interpreter.tensors.before_waiting = self.turn.leave
        self._operation_lost_seconds = operation_lost_seconds
        self.frame_memory: Final = FrameMemory(memory, lambda: engine.is_stopped, self.turn.leave)
        self._has_ended = self._is_closed = False
        # The engine's progress, and for how many seconds it was seen unchanged.
        self._progress_seen: tuple[int, ...] = ()
        self._seconds_seen = 0.0

    @property
    def queued(self) -> int:
        """Number of unfinished worker calls and of unfinished responses of the device."""
        worker = self._worker
        return worker.submitted - worker.completed + self._awaited - self._arrived

    @property
    def is_working(self) -> bool:
        """Whether the session's thread has unfinished calls."""
        return self._worker.queued > 0

    def hops_since(self, moment: float, now: float, stale_seconds: float) -> int | None:
        """Return the hops for a progress report, if the session has been busy since a moment.

        Times are those of ``time.monotonic``. Returns 0 if the session works, and more if it waits
        for a tensor of another server (``ProgressReport.hops_after``). Returns ``None`` if the
        session was idle at any time since then. Also returns ``None`` if it waits for a tensor of
        this process, because the session that will expose that tensor reports instead. Also returns
        ``None`` if it waits for memory: the sessions that hold it may wait for this one.
        """
        busy_since = self._worker.busy_since
        if busy_since is None or busy_since > moment or self.frame_memory.is_awaited:
            return None
        slot = self.interpreter.tensors.waits_for
        if slot is None:
            return 0
        return None if slot.last_report is None else slot.last_report.hops_after(now, stale_seconds)

    def give_up_if_stuck(self, seconds: float) -> bool:
        """End the session if its running operation has not returned for too long.

        Call this regularly; ``seconds`` have passed since the last call. Returns whether the
        session was ended now. The operation's thread cannot be stopped, and its memory stays
        allocated and counted until it returns.
        """
        seen = (self._worker.completed, *self.engine.progress)
        waits = self.interpreter.tensors.waits_for is not None
        if seen != self._progress_seen or waits or not self._worker.queued:
            self._progress_seen, self._seconds_seen = seen, 0.0
            return False
        self._seconds_seen += seconds
        if self._seconds_seen < self._operation_lost_seconds or self.error is not None:
            return False
        error = self.engine.lost_task(
            f"it has not returned for {self._seconds_seen:.3g} seconds, so the server ended the "
            "session; report it to the server's operator, or ask the operator to raise "
            "operation_lost_seconds on the server if the operation may take that long"
        )
        if error is None:
            return False
        logger.error(
            "operation lost", session=session_name(self.identifier), token=self.token,
            operation=error.operation, shapes=error.shapes, seconds=round(self._seconds_seen, 1),
        )  # fmt: skip
        self.error = error
        self.engine.stop()
        self.engine.leave_groups()
        self.notify()
        return True

    def fail_if_dead(self) -> None:
        """End the session if its thread has ended although it has work."""
        if self._worker.is_dead:
            self._worker.discard_calls()
            self.error = self.error or SessionLost(THREAD_ENDED)
            if self._has_ended:
                self._close()  # the thread can no longer do it

    def describe_work(self) -> str:
        """Say for an error message what the session is doing. Any thread may call this."""
        busy_since = self._worker.busy_since
        if busy_since is None:
            return "its session has executed all tasks that its client sent"
        seconds = time.monotonic() - busy_since
        waits = " and waits for a tensor" if self.interpreter.tensors.waits_for else ""
        return (
            f"its session has been busy for {seconds:.1f} seconds, has {self.queued} unfinished "
            f"batches, and is at task {self.engine.place} of a batch{waits}"
        )

    @property
    def queued_bytes(self) -> int:
        """Bytes held by the worker's unfinished calls."""
        return self._worker.queued_bytes

    def is_behind(self, allowed_frames: int, allowed_bytes: int) -> bool:
        """Whether to stop reading from the client (backpressure).

        True if the queue exceeds either limit. Also if anything is queued, and the memory pool is
        full or has many bytes of messages.
        """
        queued = self.queued
        return queued > 0 and (
            queued >= allowed_frames
            or self.queued_bytes >= allowed_bytes
            or (self.queued_bytes > 0 and (self._memory.is_full or self._memory.has_many_urgent))
        )

    def submit_parts(self, parts: Iterator[Part], size: int) -> None:
        """Decode and execute the parts of a frame of ``size`` bytes, after the queued work.

        A large part waits until the memory pool has room for it, or until no other large part
        exceeds the pool.
        """
        self.spent += FRAME_COST + size * DECODED_COST_PER_BYTE
        self._enqueue(partial(self._run, partial(self._run_parts, parts)), size)

    def _run_parts(self, parts: Iterator[Part]) -> None:
        while (part := self._next_part(parts)) is not None:
            self.turn.spend(part.held_bytes * DECODED_COST_PER_BYTE // MAX_UNPACKED_BYTES_PER_BYTE)
            with self.frame_memory.room(part.held_bytes) as is_given:
                if not is_given or self.engine.is_stopped:
                    return
                part.execute(self.decode_in_thread(part.decode))
                # Otherwise the part would stay in memory without being counted, while the next one
                # waits for room.
                self.engine.tasks = ()

    def _next_part(self, parts: Iterator[Part]) -> Part | None:
        self.turn.enter()
        part: Part | None = self.decode_in_thread(partial(next, parts, None))
        return part

    def decode_in_thread(self, decode: Callable[[], T]) -> T:
        """Return what ``decode`` returns; only one session's thread decodes at a time.

        If 64 threads decoded at once, the event loop would wait up to 0.5 s for the interpreter
        lock.
        """
        with self._decoding_lock:
            return decode()

    def submit_batch(self, batch: Batch, frame: bytes | memoryview = b"") -> None:
        """Execute a batch now, or after the queued work; ``frame`` is the frame it came in."""
        engine = self.engine
        size = len(frame)
        # The body of ``submit_work``, inlined to save two function calls.
        self.spent += FRAME_COST + size * DECODED_COST_PER_BYTE
        worker = self._worker
        if worker.submitted == worker.completed:
            cost = engine.estimate(batch, size)
            if cost is not None and cost <= self._inline_cost:
                self.spent += cost
                self._context.run(self._run, engine.run, batch)
                self.notify()
                return
        self._enqueue(partial(self._run, engine.run, batch), decoded_bytes(batch, frame))

    def submit_work(
        self,
        run: Callable[[], None],
        estimate: Callable[[], int | None],
        size: int,
        held_bytes: int | None = None,
    ) -> None:
        """Run work that arrived in ``size`` bytes, now if it is cheap, else in the worker.

        While the work waits, it takes ``held_bytes`` of memory, by default ``size``.
        """
        self.spent += FRAME_COST + size * DECODED_COST_PER_BYTE
        if not self._worker.queued:
            cost = estimate()
            if cost is not None and cost <= self._inline_cost:
                self.spent += cost
                self._context.run(self._run, run)
                self.notify()
                return
        self._enqueue(partial(self._run, run), size if held_bytes is None else held_bytes)

    def chunk_memory(self, payload: int, offset: int, size: int) -> memoryview | None:
        """Return memory in which to receive a chunk, as ``Engine.chunk_memory``.

        Returns ``None`` while queued work may change the session's tensors.
        """
        if self._worker.queued or self.error is not None:
            return None
        return self.engine.chunk_memory(payload, offset, size)

    def submit_chunk(self, chunk: Chunk) -> None:
        """Store a chunk of an upload, now or after the queued work."""
        self.spent += FRAME_COST + len(chunk.data) // CHUNK_BYTES_PER_COST
        if not self._worker.queued and self.engine.estimate_chunk(chunk) <= self._inline_cost:
            self._context.run(self._run, partial(self.engine.write_chunk, chunk))
            if self.error is not None:
                self.notify()
            return
        call = partial(self._run, partial(self.engine.write_chunk, chunk))
        self._enqueue(call, len(chunk.data))

    def run_in_thread(self, call: Callable[[], None], held_bytes: int) -> None:
        """Run a call at once; only a call that the session's thread is running may use this.

        ``held_bytes`` is the memory of what the call executes, or 0 for a single short frame.
        """
        memory = self._memory
        self.turn.enter()
        if not held_bytes:
            self._run(call)
            return
        memory.add(held_bytes)
        try:
            self._run(call)
        finally:
            memory.give_back(held_bytes)

    def wake_event_loop(self) -> None:
        """Have ``notify`` called; only the session's thread may use this."""
        self._progress()

    @property
    def must_yield(self) -> bool:
        """Whether the call that the session's thread is running should return.

        True if other work waits for the thread or for the device, if the session has ended, or if
        the memory pool is full.
        """
        return (
            self._worker.queued > 1
            or self._awaited != self._arrived
            or self.error is not None
            or self.engine.is_stopped
            or self._memory.is_full
        )

    def submit(self, call: Callable[[], None]) -> None:
        """Run any other call of the session after the queued work."""
        self._enqueue(partial(self._run, call))

    def submit_always(self, call: Callable[[], None]) -> bool:
        """Run a call after the queued work, also if the session fails before.

        The call must use ``run_in_thread`` for the device. Returns whether there is a thread.
        """
        return self._enqueue(partial(self._run_always, call))

    def _enqueue(self, call: Callable[[], None], size: int = 0) -> bool:
        """Run a call in the worker; end the session and return ``False`` if it has no thread."""
        with contextlib.suppress(MemoryError):  # then the thread does not see whether it is late
            self.turn.announce()
        try:
            self._worker.submit(partial(self._in_turn, call), size)
        except SessionLost as error:
            self.error = self.error or error
            self.notify()
            return False
        return True

    def _in_turn(self, call: Callable[[], None]) -> None:
        """Run a call of the worker; if many sessions work, it takes turns with theirs."""
        try:
            with contextlib.suppress(MemoryError):  # then it works without turns
                self.turn.begin()
            call()
        finally:
            self.turn.end()

    def count(self) -> None:
        """Update the session's counters from the interpreter's counts."""
        quota = self.interpreter.quota
        self.counters.operations = self.interpreter.executed
        self.counters.tensors = quota.tensors
        self.counters.tensor_bytes = quota.total_bytes
        counts = self.interpreter.counts
        for counter, count in _FUSION_COUNTS:
            setattr(self.counters, counter, getattr(counts, count))

    def end(self) -> None:
        """End the session: finish the running operation, skip the rest, and free everything."""
        self._has_ended = True
        self.error = self.error or BurnRemoteError("the session has ended")
        # The running call may be waiting for a tensor that is being fetched.
        self._stop_fetching()
        self.engine.stop()
        # Freeing many tensors takes long; in the worker it does not block the event loop.
        if self._worker.queued or self.engine.estimate_close() > self._inline_cost:
            try:
                self._worker.submit(partial(self._in_turn, self._close))
            except (SessionLost, MemoryError):  # the thread cannot run it
                self._close()
        else:
            self._close()
        self._worker.stop()

    def _close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self.engine.close()
        finally:
            self._memory.give_back(self._own_bytes)

    def _run(self, call: Callable[..., None], *arguments: Batch) -> None:
        if self.error is not None:
            return
        try:
            self.interpreter.session.activate()
            failure = self.interpreter.backend.failure
            if failure is not None:
                self.interpreter.lose(failure)
            call(*arguments)
        except BurnRemoteError as error:
            # Its frames would keep decoded messages alive until the client has left.
            self.error = self.error or detached(error)
        except Exception as error:  # a defect ends this session, and no other
            self.fail(error)
        finally:
            self.engine.tasks = ()  # tasks may refer to uploaded elements

    def _run_always(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BurnRemoteError as error:
            self.error = self.error or detached(error)
        except Exception as error:  # a defect ends this session, and no other
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End this session after a bug in the server or a lack of memory; the others continue."""
        # Before the log line, which may fail for lack of memory too.
        self.error = self.error or BurnRemoteError(
            f"the server failed: {type(error).__name__}: {error}"
        )
        logger.error("session failed", session=session_name(self.identifier), exc_info=error)

    def _later(self, deliver: Deliver) -> Deliver:
        """Return a function that the device may call from its own thread.

        It queues ``deliver``, which then runs in the session's order.
        """
        self._awaited += 1

        def enqueue(value: memoryview | Exception | None) -> None:
            # The event loop may have closed in the meantime; no client is left then.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._resume, partial(deliver, value))

        return enqueue

    def _resume(self, call: Callable[[], None]) -> None:
        self._arrived += 1
        self.submit_work(call, _no_cost, 0)

    def _progress(self) -> None:
        # The event loop may have closed while the worker finishes; there is nothing to notify then.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._notify)

    def _notify(self) -> None:
        # Looked up on the event loop, because a resume may have replaced the connection.
        try:
            self.notify()
        except MemoryError as error:
            # A reply may have been taken from the outbox and not sent: its reader would wait.
            self.fail(error)


def _no_cost() -> int:
    """Return the cost of a response that is already computed."""
    return 0


def _no_connection() -> None:
    """Do nothing: no connection is attached yet."""
