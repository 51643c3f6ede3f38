"""The outgoing half of a native session: its tasks in order, and the batches in which they leave.

The calling thread encodes tasks directly into a batch and sends the batch when it is full. Sending
blocks if the server is slow, which gives the program backpressure. One lock keeps the order of
sending; replies are received without it.

A finalizer, a callback of the garbage collector or a signal handler may run while its thread holds
the lock. What it sends then would come between parts of another task, so it is refused. Drops need
no lock.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from burn_remote.runner.interface import TensorHandle
from burn_remote.sessions.lifetime import (
    BATCH_BYTES,
    BATCH_TASKS,
    Flusher,
    flush_or_end,
    nested_use,
)
from burn_remote.sessions.native.native_connection import Connection
from burn_remote.sessions.native.nested_calls import NestedCalls
from burn_remote.sessions.native.signature_table import SHORT_LENGTH
from burn_remote.sessions.quick_locks import QuickLock
from burn_remote.sessions.source_locations import Locations
from burn_remote_protocol.dialects.native import (
    EncodedTask,
    drop_task,
    encode_batch,
    encode_task,
)
from burn_remote_protocol.errors import fresh
from burn_remote_protocol.messages import Task, Welcome
from burn_remote_protocol.session_states import Handover
from burn_remote_protocol.tensors import MAX_RANK

__all__ = ["ENCODED_BYTES", "KEPT_DROPS", "MOST_BYTES", "TaskQueue"]

# The most bytes of an id, a number, or a size of a shape, in a task.
MOST_BYTES: Final = 9
# The most bytes of a read: a shape, and a dtype, of which a quantized one takes at most 100 bytes.
READ_BYTES: Final = 128 + MOST_BYTES * MAX_RANK
# A batch is sent when its tasks have this many bytes, without those of short operations: counting
# these would make every operation slower. So a batch never exceeds ``BATCH_BYTES`` by more than
# its last task.
ENCODED_BYTES: Final = BATCH_BYTES - BATCH_TASKS * (1 + MOST_BYTES * SHORT_LENGTH)

# A program that reads each result drops one tensor in each round trip. So many are left to a later
# batch, because a drop of its own takes 5 % of the instructions of a round trip. The flusher sends
# them if the program waits for more than ``FLUSH_SECONDS``.
KEPT_DROPS: Final = 16


class TaskQueue:
    """The outgoing half of ``NativeSession``, which opens the connection."""

    transfer_domain: str
    _connection: Connection
    _flusher: Flusher
    _extensions: Mapping[str, Any]

    def __init__(self) -> None:
        self._locations: Final = Locations()
        self._positions: Final = self._locations.ring
        self._renew_lock()
        # Outgoing state, guarded by the lock.
        self._tasks: list[EncodedTask] = []
        self._task_bytes = 0  # without the tasks of short operations
        self._clock: Final = time.monotonic
        self._flushed_at = 0.0
        # How many drops a wait may leave to a later batch, and up to how many tensors on the
        # server: a program that is close to its quota needs the room.
        self._most_kept_drops = KEPT_DROPS
        self._most_tensors_beside_kept = sys.maxsize
        self._next_tensor = 1
        self._sent_drops = 0
        self._undropped_bytes = 0
        # The last batch that the connection took, and the number of queued tasks in it.
        self._leaving = (Handover(), 0)
        # Appended by __del__ in any thread, even one that holds the lock. A list, because slicing
        # one, and deleting a slice, is atomic.
        self._dropped: list[int] = []

    def _renew_lock(self) -> None:
        # Re-entrant only to know its owner: a plain lock would wait for its own thread for good.
        lock = QuickLock()
        self._lock = lock.held
        self._nested = NestedCalls(lock.is_owned)
        # What ``execute`` checks; see ``_check_not_nested``.
        self._checked_calls = self._nested

    @property
    def welcome(self) -> Welcome:
        """The server's ``Welcome``."""
        return self._connection.welcome

    def check_open(self) -> None:
        """Raise the error that ended the session, if it has ended."""
        error = self._connection.error
        if error is not None:
            raise fresh(error)

    def _check_not_nested(self) -> None:
        """Raise ``UsageError`` inside of another call of this thread; see ``NestedCalls``."""
        if self._nested.check():
            raise nested_use(self._connection.address)

    def _end_sequence(self) -> None:
        """Do nothing. ``AutomaticGraphSession`` ends a sequence of operations here.

        Called under the lock, before any task that is not an operation.
        """

    def _enqueue(self, task: Task) -> None:
        self._check_not_nested()
        with self._lock:
            self._end_sequence()
            self.check_open()
            self._append(encode_task(task))

    # -- queueing and sending, under the lock -------------------------------------------------

    def _assign_ids(self, outputs: Sequence[TensorHandle]) -> range:
        """Assign new ids to the handles of outputs."""
        # Advanced first, so that no id is assigned twice after an interrupt.
        first = self._next_tensor
        self._next_tensor = end = first + len(outputs)
        for tensor, out in enumerate(outputs, first):
            out.id = tensor
        return range(first, end)

    def _append(self, task: EncodedTask) -> None:
        self._tasks.append(task)
        # ``_appended`` inlined, because each read calls this.
        self._task_bytes += len(task) if type(task) is bytes else READ_BYTES
        if len(self._tasks) >= BATCH_TASKS or self._task_bytes >= ENCODED_BYTES:
            self._flush()
        elif self._flusher.armed is None:
            self._flusher.schedule(self)

    def _appended(self, task: EncodedTask) -> None:
        # Only reads are not encoded yet.
        self._task_bytes += len(task) if type(task) is bytes else READ_BYTES
        if len(self._tasks) >= BATCH_TASKS or self._task_bytes >= ENCODED_BYTES:
            self._flush()
        elif self._flusher.armed is None:
            self._flusher.schedule(self)

    def _append_drops(self) -> None:
        self._undropped_bytes = 0
        dropped = self._dropped
        while dropped:
            dropping = dropped[:BATCH_TASKS]
            # Append first, then remove: an interrupt in between makes the session drop tensors
            # twice, which servers ignore.
            self._tasks.append(drop_task(dropping))
            del dropped[: len(dropping)]
            self._sent_drops += len(dropping)
            self._task_bytes += MOST_BYTES * (1 + len(dropping))

    def _flush(self, most_kept_drops: int = 0) -> bool:
        """Send queued tasks; return whether there were any. See ``flush``."""
        if self._leaving[1]:  # an interrupt came before they were forgotten
            self._forget_sent()
        if not (self._tasks or self._dropped):
            return False
        self._flusher.armed = None  # ``disarm`` inlined; must come before the queue is taken
        self._flushed_at = self._clock()
        try:
            if self._dropped:
                tensors = self._next_tensor - self._sent_drops
                if len(self._dropped) > most_kept_drops or tensors > self._most_tensors_beside_kept:
                    self._append_drops()
                else:
                    self._flusher.schedule(self)
            frame = encode_batch(self._connection.take_received(), self._tasks)
            handover = Handover()
            self._leaving = (handover, len(self._tasks))
            self._connection.send(frame, handover=handover)
        finally:
            self._forget_sent()
            if self._tasks and self._connection.error is None:  # interrupted
                self._flush_soon()
        return True

    def _forget_sent(self) -> None:
        """Remove the tasks that the connection took. Repeated after an interrupt."""
        handover, count = self._leaving
        if handover.is_done and count:
            self._task_bytes = 0
            # A single statement without a call: an interrupt cannot come in the middle.
            self._tasks, self._leaving = self._tasks[count:], (handover, 0)

    # -- dropping and flushing ----------------------------------------------------------------

    def drop(self, tensor: int) -> None:
        """Free a tensor with the next batch. Lock-free, because ``__del__`` calls it."""
        self._dropped.append(tensor)
        if self._flusher.armed is None:
            self._flusher.schedule(self)

    def flush(self, most_kept_drops: int = 0) -> bool:
        """Send queued tasks now; return whether there were any.

        Up to ``most_kept_drops`` drops are left to a later batch, or to the flusher.
        """
        if self._nested.check():
            raise nested_use(self._connection.address)
        with self._lock:
            return self._connection.error is None and self._flush(most_kept_drops)

    def flush_waiting(self) -> None:
        """Send queued tasks; the flusher calls this a millisecond after they were queued."""
        flush_or_end(self._flush_and_acknowledge, self._connection.end)

    def _flush_and_acknowledge(self) -> None:
        self.flush()
        if self._connection.acknowledgement_due:
            self._connection.acknowledge()

    def _flush_soon(self) -> None:
        if self._flusher.armed is None:
            self._flusher.schedule(self)
