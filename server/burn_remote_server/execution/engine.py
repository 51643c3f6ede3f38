"""The engine of a session: executes its messages, without I/O.

A socket's handler and the in-process link of a local device drive the same engine. It never waits
for a socket: it passes replies, fetches and failures to its ``Outbox``.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from burn_remote_protocol.dialects.native import (
    DROP_TASK,
    INLINE_BYTES,
    READ_TASK,
    Batch,
    LastUses,
    decode_task,
    dropped_next,
    follows_collective,
)
from burn_remote_protocol.errors import (
    BurnRemoteError,
    CollectiveFailed,
    OperationFailed,
    OperationLost,
    OutOfMemory,
    ProtocolViolation,
    QuotaExceeded,
    detached,
)
from burn_remote_protocol.ids import is_secret
from burn_remote_protocol.interrupted_finalizers import call_once_when_freed
from burn_remote_protocol.messages import (
    BeginUpload,
    Chunk,
    Cleanup,
    Collective,
    Define,
    DefineGraph,
    Drop,
    Execute,
    Expose,
    Fetch,
    LoadFile,
    QueryDType,
    Read,
    Seed,
    Sync,
    Task,
    Upload,
)
from burn_remote_protocol.operations.row import Operation
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.access.data_files import NO_FILES, DataFiles
from burn_remote_server.access.quota import OverheadAccount
from burn_remote_server.backends.interface import Deliver
from burn_remote_server.execution.collective_tasks import CollectiveTasks
from burn_remote_server.execution.costs import (
    DEFINITION_BYTE_COST,
    DROPPED_COST,
    READ_COST,
    batch_cost,
    python_cost,
)
from burn_remote_server.execution.early_drops import EarlyDrops
from burn_remote_server.execution.engine_interfaces import Groups, Outbox
from burn_remote_server.execution.file_tasks import FileTasks
from burn_remote_server.execution.interpreter import Interpreter
from burn_remote_server.execution.interpreter_turns import InterpreterTurn
from burn_remote_server.execution.kept_tensor_tasks import KeptTasks
from burn_remote_server.programs.graph_runner import Stopped
from burn_remote_server.programs.graphs import GraphPlan
from burn_remote_server.programs.plans import (
    Plan,
    as_failure,
)
from burn_remote_server.programs.stream_fusion import MAX_WINDOW_TASKS, Entry
from burn_remote_server.tensors.allocations import memory_bytes
from burn_remote_server.tensors.exposed_tensors import (
    Exposed,
    ExposeLimits,
    Key,
    Transfers,
    transfer_key,
)
from burn_remote_server.tensors.kept_tensors import OwnKeptTensors
from burn_remote_server.tensors.slots import InFlight, Uploading

__all__ = ["Engine"]


# Elements of a read up to this size are copied into the reply, whose bytes the outbox counts.
COUNTED_REPLY_BYTES: Final = INLINE_BYTES

# Batches of at least this cost, in nanoseconds, are examined for reads that copy nothing.
LONG_READ_COST: Final = 50_000

_INTEGER: Final = frozenset({int})

# Memory of an exposed tensor besides its elements: the objects, its entry in the registry, its id,
# and the failure that may be in its place (measured: 1.4 to 1.9 KB).
EXPOSED_BYTES: Final = 2048


def _while_alive(method: Callable[[], bool], otherwise: Callable[[], bool]) -> Callable[[], bool]:
    """Return a function that calls a method, or ``otherwise`` once the method's object is gone."""
    found = weakref.WeakMethod(method)

    def call() -> bool:
        return (found() or otherwise)()

    return call


def _not_asynchronous(deliver: Deliver) -> Deliver:
    raise AssertionError("set Engine.later to use a device that computes asynchronously")


class Engine:
    """Executes one session's tasks in order.

    Raises ``ProtocolViolation`` for an invalid message, and ``SessionLost`` if a failure or a reply
    does not fit into the quota. The session must then be closed.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        transfers: Transfers,
        outbox: Outbox,
        *,
        transfer_domain: str,
        fetch_timeout_seconds: float | None = None,
        exposes: ExposeLimits = ExposeLimits(),  # noqa: B008 - frozen
        groups: Groups | None = None,
        files: DataFiles = NO_FILES,
        kept: OwnKeptTensors | None = None,
    ) -> None:
        self._interpreter = interpreter
        self._tensors = interpreter.tensors
        self._transfers = transfers
        self._outbox = outbox
        self._transfer_domain = transfer_domain
        self._fetch_timeout_seconds = fetch_timeout_seconds
        self._exposes = exposes
        self._exposed_account = OverheadAccount(interpreter.reply_quota)
        # Set when the session ends, by another thread: the rest of a running batch is skipped.
        self.is_stopped = False
        self._tasks: Sequence[Any] = ()
        # The position of the current task. After the last task, their number.
        self.place = 0
        # The position of the last task whose handler has returned.
        self.handled = -1
        # The drops of ``tasks`` that may run early; ``None`` while everything fits into the quota.
        self._early_drops: EarlyDrops | None = None
        self._reclaim_others = interpreter.quota.reclaim
        # Weakly, because a graph's finalizer keeps the quota, and this session has the graph.
        interpreter.quota.reclaim = _while_alive(self._reclaim, self._reclaim_others)
        # Returns a function that the device may call in its own thread; the callback then runs in
        # the session's thread, in order.
        self.later: Callable[[Deliver], Deliver] = _not_asynchronous
        # The turn of the session's thread; the caller may set another one.
        self.turn = InterpreterTurn()
        self._collectives: Final = CollectiveTasks(
            interpreter,
            groups,
            self._fail,
            lambda: follows_collective(self._tasks, self.place),
        )
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            Define: lambda task: interpreter.plans.define(task.number, task.signature),
            DefineGraph: interpreter.plans.define_graph,
            Execute: lambda task: interpreter.execute(task.operation),
            Drop: lambda task: interpreter.tensors.drop(task.tensors),
            Upload: self._upload,
            BeginUpload: self._begin_upload,
            Read: self._read,
            Sync: self._sync,
            Seed: lambda task: interpreter.seed(task.seed),
            QueryDType: self._query_dtype,
            Cleanup: lambda task: interpreter.backend.memory_cleanup(),
            Expose: self._expose,
            Fetch: self._fetch,
            **self._collectives.handlers,
            **FileTasks(interpreter, outbox, files, self._fail, lambda: self.is_stopped).handlers,
            **KeptTasks(interpreter, outbox, kept, self._fail, lambda: self.is_stopped).handlers,
        }

    @property
    def tasks(self) -> Sequence[Any]:
        """The tasks that are being executed."""
        return self._tasks

    @tasks.setter
    def tasks(self, tasks: Sequence[Any]) -> None:
        self._tasks = tasks
        self._early_drops = None

    # -- running ------------------------------------------------------------------------------

    def run(self, batch: Batch) -> None:
        """Execute a batch."""
        interpreter = self._interpreter
        invoke, invoke_simple = interpreter.invoke, interpreter.invoke_simple
        numbered, handlers = interpreter.numbered, self._handlers
        # The setter of ``tasks`` written out, here and below: its call takes ten times as long.
        self._tasks = tasks = batch.tasks
        self._early_drops = None
        interpreter.begin_batch()
        waiting = self._in_turns(tasks)
        last_uses = LastUses(tasks)
        for place, task in waiting:
            if self.is_stopped:
                return
            self.place = place
            try:
                plan = numbered.get(task[0])
            except (TypeError, IndexError) as error:
                pass_on_of_signal_handler(error)
                raise ProtocolViolation("a task must be a list that begins with a number") from None
            if plan is None:
                decoded = decode_task(task)
                handlers[type(decoded)](decoded)
                self.handled = place
            elif len(task) == plan.task_length and type(task[-1]) is int:
                if plan.is_large:  # perhaps fused with the tasks after it
                    self._invoke_large(plan, tasks, place, waiting)
                elif plan.seen is not None:
                    invoke_simple(plan, task, 1)
                else:
                    invoke(plan, task[1:])
            elif isinstance(plan, GraphPlan):
                # Also inputs that later tasks of the batch drop: a training step replaces weights,
                # and the program drops the old ones a few tasks later.
                dropped = last_uses.of(place) if plan.reusable_inputs else ()
                try:
                    self._interpreter.invoke_graph(plan, task[1:], dropped)
                except Stopped:
                    return
            else:
                raise plan.wrong_tensors(task[1:])
        self.place = len(tasks)
        self._tasks = ()
        self._early_drops = None

    def _in_turns(self, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield tasks with their places, in turns with other sessions if many of them work."""
        if not self.turn.has_company:
            return enumerate(tasks)
        if not self.turn.is_crowded:
            return self.turn.unpaced(enumerate(tasks))
        numbered = self._interpreter.numbered
        return self.turn.paced(enumerate(tasks), lambda each: python_cost(each[1], numbered))

    def _invoke_large(
        self, plan: Plan, tasks: Sequence[Any], place: int, waiting: Iterator[Any]
    ) -> None:
        """Run a task; if tasks after it were fused with it, remove them from ``waiting``."""
        interpreter = self._interpreter
        if plan.is_fusible:
            done = interpreter.invoke_fused(
                partial(_fusible, tasks, place, interpreter.numbered), self
            )
            if done:
                next(islice(waiting, done - 1, done - 1), None)
                return
        # The task after the last use of a temporary tensor drops it.
        dying = dropped_next(tasks, place) if plan.reusable else ()
        interpreter.invoke(plan, tasks[place][1:], dying)

    def _reclaim(self) -> bool:
        """Make room in the quota; return whether there may be some now."""
        if self._early_drops is None:
            self._early_drops = EarlyDrops(self._tasks, self.place)
        dropped = self._early_drops.before(self.place)
        self._tensors.drop(dropped)
        return bool(dropped) or self._reclaim_others()

    def stop(self) -> None:
        """Skip the rest of a running batch, and of a running graph. Called by another thread."""
        self.is_stopped = self._interpreter.is_stopped = True

    @property
    def progress(self) -> tuple[int, ...]:
        """A value that changes whenever an operation returns. Any thread may read it."""
        return self.place, self._interpreter.executed, self._interpreter.checks

    def lost_task(self, reason: str) -> OperationFailed | None:
        """Return a failure for the current task, which has not returned for too long.

        Returns ``None`` if no task is being executed, or if the task has no time limit. Called by
        another thread.
        """
        error = OperationLost(reason)
        try:
            task = self.tasks[self.place]
        except IndexError:  # not a batch: a chunk, or the end of the session
            return None
        if type(task) is tuple:
            plan = self._interpreter.numbered.get(task[0])
            if plan is not None:
                output = next(iter(task[1 + plan.input_count :]), None)
                if isinstance(plan, GraphPlan):
                    return OperationLost(reason, operation="Graph", tensor=output)
                return as_failure(error, plan, output)
            task = decode_task(task)
        if isinstance(task, GraphPlan):  # which runs in place of repeated messages
            return OperationLost(reason, operation="Graph")
        if isinstance(task, LoadFile):  # without a limit, because a disk may take any time
            return None
        operation = task.operation if isinstance(task, Execute) else task
        if isinstance(operation, Operation):
            plan = self._interpreter.plans.known_plan(operation.signature)
            if plan is not None:
                return as_failure(
                    error, plan, next(iter(operation.tensors[plan.input_count :]), None)
                )
            return OperationLost(reason, operation=str(operation.signature.row))
        return OperationLost(reason, operation=type(task).__name__)

    def leave_groups(self) -> None:
        """Leave all groups, so that their other members need not wait for this session."""
        self._collectives.leave_groups()

    def fail_interrupted(self, task: Sequence[Any]) -> bool:
        """Fail an operation that an interrupt stopped, unless it has stored its outputs.

        An operation cannot be repeated, because it may have overwritten an input. A collective
        cannot be repeated either, because it may have begun; so its group fails. Returns ``False``
        for any other task, which the caller must execute again.
        """
        plan = self._interpreter.numbered.get(task[0])
        if plan is not None:
            self._interpreter.fail_interrupted(plan, tuple(task[1:]))
            return True
        decoded = decode_task(task)
        if not isinstance(decoded, Collective):
            return False
        self._collectives.fail(decoded, OperationFailed("it was interrupted"))
        return True

    def request_of(self, task: Sequence[Any]) -> int | None:
        """Return the number of the request that a task answers, or ``None``."""
        if task[0] in self._interpreter.numbered:
            return None
        return getattr(decode_task(task), "request", None)

    def handle(self, task: Task) -> None:
        """Execute one task."""
        self._handlers[type(task)](task)

    def estimate(self, batch: Batch, size: int = 0) -> int | None:
        """Estimate the cost of a batch of ``size`` bytes; return ``None`` if it is unknown."""
        if self._tensors.has_slots():
            return None
        interpreter = self._interpreter
        cost = batch_cost(
            batch,
            interpreter.numbered,
            size=size,
            binds_slowly=interpreter.session.binds_slowly,
        )
        if cost is not None and cost > LONG_READ_COST and batch.tasks:
            cost -= self._uncopied_elements(batch.tasks[0]) * READ_COST
        return cost

    def _uncopied_elements(self, task: Any) -> int:
        """Return how many elements a task reads if it is a read that copies nothing, else 0.

        It must be the first task of its batch, because others may replace the tensor.
        """
        if task[0] != READ_TASK:
            return 0
        try:
            read = decode_task(task)
        except BurnRemoteError:  # malformed
            return 0
        assert isinstance(read, Read)
        array = self._tensors.arrays.get(read.tensor)
        backend = self._interpreter.backend
        is_copied = array is None or backend.copies_elements(array, read.spec.dtype)
        return 0 if is_copied else read.spec.size

    def estimate_chunk(self, chunk: Chunk) -> int:
        """Estimate the cost of storing a chunk of an upload."""
        slot = self._tensors.slot(chunk.payload)
        if not isinstance(slot, Uploading) or not slot.spec.dtype.is_bool:
            return 0
        # The last chunk of a bool tensor starts the check of all its elements.
        return slot.size if slot.received + len(chunk.data) >= slot.size else 0

    def estimate_close(self) -> int:
        """Estimate the cost of ``close``."""
        definitions = int(DEFINITION_BYTE_COST * self._interpreter.plans.definition_bytes())
        dropped = len(self._tensors) + self._transfers.exposed_by(self)
        return DROPPED_COST * dropped + definitions

    def chunk_memory(self, payload: int, offset: int, size: int) -> memoryview | None:
        """Return the memory of an upload in which to receive its next chunk.

        Returns ``None`` if the chunk is not the next one, or has to be passed as bytes.
        """
        slot = self._tensors.slot(payload)
        if not isinstance(slot, Uploading) or offset != slot.received:
            return None
        if not 0 < size <= slot.size - offset:
            return None
        return self._interpreter.backend.chunk_memory(slot.upload, offset, size)

    def write_chunk(self, chunk: Chunk, *, is_repeated: bool = False) -> None:
        """Write a chunk of an upload; the last one completes the tensor.

        ``is_repeated``: an interrupt stopped the first attempt to write this chunk.
        """
        slot = self._tensors.slot(chunk.payload)
        if not isinstance(slot, Uploading):
            if is_repeated or self._tensors.refused_upload(chunk.payload):
                return
            raise ProtocolViolation(
                f"a chunk belongs to payload {chunk.payload}, which is not being uploaded"
            )
        size = len(chunk.data)
        if is_repeated and chunk.offset + size == slot.received:
            if slot.received == slot.size:
                self._tensors.finish_upload(chunk.payload, slot)
            return
        if chunk.offset != slot.received or not 0 < size <= slot.size - slot.received:
            raise ProtocolViolation(
                f"a chunk of {size:,} bytes begins at byte {chunk.offset:,} of payload "
                f"{chunk.payload}, of which {slot.received:,} of {slot.size:,} bytes have arrived"
            )
        with self._failing_alone(chunk.payload, slot.spec):
            if chunk.is_placed:
                self._interpreter.backend.chunk_written(slot.upload, size)
            else:
                self._interpreter.backend.write(slot.upload, chunk.offset, chunk.data)
            slot.received += size
            if slot.received == slot.size:
                self._tensors.finish_upload(chunk.payload, slot)

    # -- tasks --------------------------------------------------------------------------------

    def _upload(self, task: Upload) -> None:
        with self._failing_alone(task.tensor, task.data.spec):
            refusal = self._interpreter.quota.refusal([memory_bytes(task.data.spec)])
            if refusal is not None:
                raise refusal
            shared = self._interpreter.backend.to_device(task.data)
            self._tensors.store_shared(task.tensor, shared)

    def _begin_upload(self, task: BeginUpload) -> None:
        with self._failing_alone(task.tensor, task.spec):
            slot = self._tensors.begin_upload(task.tensor, task.spec, task.byte_count)
            if slot.received == slot.size:
                self._tensors.finish_upload(task.tensor, slot)

    @contextlib.contextmanager
    def _failing_alone(self, tensor: int, spec: TensorSpec) -> Iterator[None]:
        """Store the failure of an upload as its tensor."""
        try:
            yield
        except OperationFailed as error:
            self._fail(tensor, error, "Upload", str(spec))
        except MemoryError:
            self._fail(tensor, OutOfMemory(f"not enough memory for {spec}"), "Upload", str(spec))

    def _read(self, task: Read) -> None:
        deliver = partial(self._reply, task)
        try:
            array = self._tensors.read(task.tensor, task.spec)
            elements = self._interpreter.session.read(
                array, task.spec.dtype, partial(self.later, deliver)
            )
        except (BurnRemoteError, MemoryError) as error:
            deliver(detached(error))  # the table keeps the error, but not these frames
        else:
            if elements is not None:
                deliver(elements)

    def answer_read(self, task: Read, array: Any) -> None:
        """Respond to a read of a tensor that is computed, but not in the session's table yet.

        Raises ``MemoryError`` if there was no memory for the response; then none was sent.
        """
        assert task.spec.nbytes <= COUNTED_REPLY_BYTES  # more would count as memory of the tensor
        deliver = partial(self._reply, task)
        elements = self._interpreter.session.read(
            array, task.spec.dtype, partial(self.later, deliver)
        )
        if elements is not None:
            deliver(elements)

    def _sync(self, task: Sync) -> None:
        deliver = partial(self._reply, task)
        try:
            self._tensors.await_arrivals()
            is_done = self._interpreter.session.synced(partial(self.later, deliver))
        except OperationFailed as error:
            deliver(detached(error))
        else:
            if is_done:
                deliver(None)

    def _reply(self, task: Read | Sync, value: memoryview | Exception | None) -> None:
        """Respond with the elements that were read, or with the error."""
        if type(value) is memoryview and type(task) is Read and value.nbytes <= COUNTED_REPLY_BYTES:
            # The constructor of a named tuple is Python code, and each read would call it.
            self._outbox.reply(task.request, tuple.__new__(TensorData, (value, *task.spec)))
            return
        if isinstance(value, Exception) and not isinstance(value, OperationFailed):
            reason = str(value) or "the server does not have enough memory for the elements"
            value = OperationFailed(reason, operation=type(task).__name__)
        if isinstance(task, Sync) and isinstance(value, OperationFailed):
            # The reply to this sync reports it, as a failure without tensors, because Burn's
            # dialect has no other message for it.
            self._outbox.failed((), value)
            value = None
        if isinstance(value, memoryview):
            assert isinstance(task, Read)  # a sync has no elements
            try:
                self._tensors.hold_reply(task.tensor, value)
            except QuotaExceeded as error:
                refusal = QuotaExceeded(error.reason, operation="Read", shapes=str(task.spec))
                self._outbox.reply(task.request, refusal)
                return
            reply = TensorData(value, task.spec.shape, task.spec.dtype)
            self._outbox.reply(task.request, reply)
        else:
            self._outbox.reply(task.request, value)

    def _query_dtype(self, task: QueryDType) -> None:
        self._outbox.reply(task.request, int(self._interpreter.backend.dtype_usage(task.dtype)))

    def _expose(self, task: Expose) -> None:
        secret = is_secret(task.transfer)
        self.expose(task, transfer_key(self._transfer_domain, task.transfer), is_secret=secret)

    def expose(self, task: Expose, key: Key, *, is_secret: bool) -> None:
        """Make a tensor available to fetches under a key."""
        backend = self._interpreter.backend
        try:
            array = self._tensors.read(task.tensor, task.spec)
            exposed = Exposed(self._interpreter.session.share(array), task.spec, backend)
            self._tensors.expose(task.tensor, exposed)
        except OperationFailed as error:
            # Expose the failure instead of the tensor, so that a fetch receives the reason.
            exposed = Exposed(None, task.spec, backend, detached(error))
        try:
            self._exposed_account.add(EXPOSED_BYTES)
            call_once_when_freed(exposed, partial(self._exposed_account.remove, EXPOSED_BYTES))
            self._transfers.expose(
                key,
                exposed,
                owner=self,
                count=task.count,
                expires_seconds=task.expires_seconds,
                limits=self._exposes,
                is_secret=is_secret,
            )
        except OperationFailed as error:
            failure = type(error)(
                error.reason, operation="Expose", shapes=str(task.spec), tensor=task.tensor
            )
            if isinstance(error, QuotaExceeded):
                self._transfers.fail(key, Exposed(None, task.spec, backend, failure))
            self._outbox.failed((task.tensor,), failure)

    def _fetch(self, task: Fetch) -> None:
        slot = InFlight(task.spec, self._fetch_timeout_seconds)
        try:
            self._tensors.begin_fetch(task.tensor, slot)
            self._outbox.fetch(task, slot)
        except OperationFailed as error:
            slot.fail(error)
            self._fail(task.tensor, error, "Fetch", str(task.spec))

    def alias(self, tensor: int, source: int) -> None:
        """Give the elements of a tensor a second id."""
        try:
            self._tensors.alias(tensor, source)
        except OperationFailed as error:
            if error.operation:  # the operation that made the source failed, and has reported it
                self._tensors.pass_failure((tensor,), detached(error))
            else:
                self._fail(tensor, error, "RegisterAlias", "")

    def fail_tensor(self, tensor: int, error: OperationFailed, operation: str) -> None:
        """Store a failure as a tensor, and report it."""
        self._fail(tensor, error, operation, "")

    def _fail(self, tensor: int, error: OperationFailed, operation: str, shapes: str) -> None:
        fields: dict[str, Any] = {"operation": operation, "shapes": shapes, "tensor": tensor}
        if isinstance(error, CollectiveFailed):  # an earlier collective, which made an input
            fields |= {"member": error.member, "address": error.address}
        failure = type(error)(error.reason, **fields)
        self._tensors.store_failure((tensor,), failure)
        self._outbox.failed((tensor,), failure)

    def close(self) -> None:
        """Free the session's tensors, and withdraw the tensors that it exposed."""
        self._transfers.withdraw(self)
        self.leave_groups()
        self._interpreter.clear()


def _fusible(tasks: Sequence[Any], place: int, numbered: Mapping[int, Any]) -> Iterator[Entry]:
    """Yield the tasks that fusers may take: the one at ``place`` and those directly after it."""
    for task in tasks[place : place + MAX_WINDOW_TASKS]:
        if type(task) is not tuple or not task or type(task[0]) is not int:
            return
        plan = numbered.get(task[0])
        if plan is None:
            is_drop = task[0] == DROP_TASK and len(task) == 2 and type(task[1]) is tuple
            if not is_drop or not _INTEGER.issuperset(map(type, task[1])):
                return
            yield Entry(None, task[1])
        elif (
            isinstance(plan, Plan)
            and plan.joins_windows
            and plan.error is None
            and len(task) == plan.task_length
            and _INTEGER.issuperset(map(type, task))
        ):
            yield Entry(plan, task[1:])
        else:
            return
