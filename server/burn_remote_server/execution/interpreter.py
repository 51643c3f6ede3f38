"""Execution of a session's operations on its tensors.

This module handles signatures, arrays and failures, but neither asyncio nor frames. If an operation
fails, its outputs become failed tensors. An operation on failed tensors fails with the failure of
the first one. Reads report failures.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from sys import getrefcount
from typing import Any, Final

from burn_remote_protocol.errors import (
    DeviceLost,
    OperationFailed,
    QuotaExceeded,
    detached,
    fresh,
)
from burn_remote_protocol.operations.row import Operation
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler
from burn_remote_server.access.quota import Quota
from burn_remote_server.backends.interface import Backend, BackendSession
from burn_remote_server.custom import NO_OPERATIONS, CustomOperations
from burn_remote_server.execution.plan_table import PlanTable
from burn_remote_server.fusion.counts import FusionCounts
from burn_remote_server.fusion.fusing_backend import FusionBackend
from burn_remote_server.programs.graph_runner import GraphRunner, Stopped
from burn_remote_server.programs.graphs import EarlyOutput, GraphPlan
from burn_remote_server.programs.operation_sequences import ONE_INPUT, OperationSequence
from burn_remote_server.programs.plans import (
    Plan,
    as_failure,
)
from burn_remote_server.programs.stream_fusion import Entry, Progress, StreamFusion
from burn_remote_server.tensors.ownership import HELD_HERE, held_once
from burn_remote_server.tensors.tensor_table import TensorTable

__all__ = ["Interpreter"]


class Interpreter:
    """Executes the operations of one session in order, on one backend.

    Not thread-safe: only the session's worker, or the event loop in its place, calls it. ``report``
    is called for each failed operation, except those that failed only because an input had failed.
    """

    def __init__(
        self,
        backend: Backend,
        quota: Quota,
        report: Callable[[tuple[int, ...], OperationFailed], None],
        *,
        max_operation_cost: int | None = None,
        max_operation_seconds: float | None = None,
        max_fetches: int | None = None,
        custom: CustomOperations = NO_OPERATIONS,
        reply_quota: Quota | None = None,
    ) -> None:
        self.backend = backend
        self.quota = quota
        # The quota of elements that wait to be sent. They are in host memory, which a device with
        # its own memory counts separately.
        self.reply_quota = quota if reply_quota is None else reply_quota
        self.session: BackendSession = backend.open_session(custom)
        self.tensors: Final = TensorTable(backend, self.session, quota, max_fetches, reply_quota)
        self.tensors.report = report
        # Attributes, because every operation uses them and a second lookup costs time.
        self._arrays: Final = self.tensors.arrays
        self._slots: Final = self.tensors.slots
        self._forget: Final = self.tensors.forget
        self._record: Final = self.tensors.record
        self._report = report
        self.counts: Final = FusionCounts()
        self.plans: Final = PlanTable(
            backend,
            self.session,
            self.tensors,
            quota,
            self.reply_quota,
            self.counts,
            self.check_stopped,
            max_operation_cost=max_operation_cost,
            max_operation_seconds=max_operation_seconds,
        )
        self.numbered: Final = self.plans.numbered
        self.fusion: Final = self._stream_fusion()
        self._graphs: Final = GraphRunner(
            backend, quota, self.tensors, report, self.check_stopped, self.counts
        )
        # Set when the session ends, by another thread: the rest of a running graph is skipped.
        self.is_stopped = False
        self._is_cleared = False
        self.executed = 0
        self.checks = 0  # number of calls of ``check_stopped``, which show progress

    def _stream_fusion(self) -> StreamFusion | None:
        if not isinstance(self.backend, FusionBackend):
            return None
        if not self.backend.fusion_runtime.fuses_streams:
            return None
        return StreamFusion(
            self.backend,
            self.backend.owns_memory,
            self.session,
            self.tensors,
            self.quota,
            self.plans.limited,
            self.counts,
        )

    # -- operations ---------------------------------------------------------------------------

    def execute(self, operation: Operation) -> None:
        """Run an operation that was sent with its full signature."""
        signature, tensors = operation
        if signature.row.family == "Init":
            return  # Burn sends it at the end of an upload; there is nothing to do
        if signature.row.family == "Drop":
            self.tensors.drop(tensors)
            return
        self.invoke(self.plans.plan_of(signature), tensors)

    def begin_batch(self) -> None:
        """Prepare for the tasks of another batch."""
        if self.fusion is not None:
            self.fusion.known_until = 0

    def invoke_graph(
        self, plan: GraphPlan, arguments: tuple[Any, ...], dying: Collection[int] = ()
    ) -> None:
        """Run a graph; ``arguments`` are the elements of its task after the number.

        ``dying`` are tensors that the batch drops before it uses them again.
        """
        self.executed += len(plan.steps)
        self._graphs.run(plan, arguments, dying)

    def call_graph(
        self,
        plan: GraphPlan,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        numbers: tuple[Any, ...],
        dying: Collection[int],
        early: EarlyOutput | None = None,
    ) -> None:
        """Run a graph like ``invoke_graph`` with arguments that are known to fit it.

        ``early`` is an output that is wanted before the rest of the graph runs.
        """
        self.executed += len(plan.steps)
        self._graphs.call(plan, inputs, outputs, numbers, dying, early)

    def store_joined(
        self, plan: GraphPlan, outputs: tuple[int, ...], results: list[Any], inputs: list[Any]
    ) -> None:
        """Store the results of a graph that ran in place of single operations."""
        self.executed += len(plan.steps)
        self.counts.operations_fused += plan.fused_count
        self._graphs.store_counted(plan, outputs, results, inputs)

    def check_stopped(self) -> None:
        """Raise ``Stopped`` if the session has ended. Graphs call this between long operations."""
        self.checks += 1
        if self.is_stopped:
            raise Stopped

    def invoke_fused(self, entries: Callable[[], Iterable[Entry]], progress: Progress) -> int:
        """Run a fused block that begins at the current task; return its number of tasks, or 0."""
        assert self.fusion is not None  # only then is a plan fusible
        before = self.counts.operations_fused
        done = self.fusion.run(entries, progress)
        self.executed += self.counts.operations_fused - before
        return done

    def invoke(self, plan: Plan, tensors: tuple[int, ...], dying: Sequence[int] = ()) -> None:
        """Run a prepared operation. ``tensors`` has the ids of its inputs, then of its outputs.

        ``dying`` are tensors that the next task drops.
        """
        self.executed += 1
        arrays = self._arrays
        count = plan.input_count
        try:
            # Unrolled for one and two inputs: a comprehension takes twice as long.
            if count == 2:
                inputs = [arrays[tensors[0]], arrays[tensors[1]]]
            elif count == 1:
                inputs = [arrays[tensors[0]]]
            else:
                inputs = [arrays[tensor] for tensor in tensors[:count]]
        except KeyError as error:
            pass_on_of_signal_handler(error)
            self._invoke_waiting(plan, tensors)
            return
        if plan.reusable:
            self._run(plan, tensors, inputs, self._reusing(plan, tensors, inputs, dying))
        else:
            self._run(plan, tensors, inputs, plan.run)

    def invoke_simple(self, plan: Plan, task: tuple[Any, ...], start: int) -> None:
        """Run a task like ``invoke``, in less time if it is a usual case.

        ``plan.seen`` must be set. The tensor ids of ``task`` begin at position ``start``.
        """
        arrays = self._arrays
        output = task[-1]
        inputs: tuple[Any, ...]
        seen: tuple[Any, ...]
        try:
            first = arrays[task[start]]
            if plan.input_count == 1:
                inputs = (first,)
                seen = (first.shape, first.dtype)
            else:
                second = arrays[task[start + 1]]
                inputs = (first, second)
                # One comparison of tuples, which calls no ``__eq__`` for identical objects.
                seen = (first.shape, first.dtype, second.shape, second.dtype)
            is_usual = not (
                seen != plan.seen or plan.error is not None or self._slots or output in arrays
            )
            if is_usual:
                self.quota.take(plan.output_bytes, 1)
        except (KeyError, QuotaExceeded) as error:
            pass_on_of_signal_handler(error)
            is_usual = False
        # Outside the ``try``, or a ``KeyError`` of a signal handler would run the operation again.
        if not is_usual:
            self.invoke(plan, task[start:])
            return
        self.executed += 1
        try:
            try:
                result = plan.run(*inputs)
            except BaseException as error:
                result = self._run_again(plan, plan.run, inputs, error)
            try:
                if result.base is not None or getrefcount(result) > HELD_HERE:
                    result = self._record(result, inputs)
            except BaseException:
                self.quota.give_back(plan.output_bytes, 1)
                raise
        except Exception as error:  # any exception of a kernel becomes the failure of its outputs
            self._fail(plan, task[start:], error)
            return
        arrays[output] = result
        for position in plan.last_uses:
            self._forget(task[start + position])

    # One loop with a branch per number of inputs: a call per operation takes a third of its time.
    def invoke_sequence(  # noqa: C901
        self, sequence: OperationSequence, numbers: tuple[int, ...], progress: Progress
    ) -> int:
        """Run operations and drops like ``invoke`` and ``drop``, in less time in the usual case.

        ``numbers`` has the tensors of the steps. ``progress.place`` becomes the place of each step.
        Returns the number of steps that were done; ``invoke`` must run the next one.

        The results of all steps count before the first one, and what the steps free counts until
        the last one. So they must fit into what is reserved already: a larger reservation could
        take memory from other sessions.
        """
        steps, stored_bytes, size, count = sequence
        quota = self.quota
        if self._slots or not quota.take_reserved(size, count):
            return 0
        arrays, allocations, nbytes = self._arrays, self.tensors.allocations, self.backend.nbytes
        shared, lent, take = allocations.shared, allocations.lent, arrays.pop
        inputs: Any
        seen: tuple[Any, ...]
        failed: tuple[Plan, int, Exception] | None = None
        # ``stored`` counts the operations whose results are in the table.
        done = stored = freed = freed_count = 0
        try:
            for progress.place, plan, expected, first, second, output, dying in steps:
                if self.is_stopped:
                    break
                if plan is not None:
                    try:
                        # As in ``invoke_simple``.
                        if second > ONE_INPUT:
                            one, two = inputs = (arrays[numbers[first]], arrays[numbers[second]])
                            seen = (one.shape, one.dtype, two.shape, two.dtype)
                        elif second == ONE_INPUT:
                            one = arrays[numbers[first]]
                            inputs, seen = (one,), (one.shape, one.dtype)
                        else:
                            inputs = [arrays[tensor] for tensor in numbers[first:output]]
                            seen = tuple([fact for a in inputs for fact in (a.shape, a.dtype)])
                    except KeyError as error:
                        pass_on_of_signal_handler(error)
                        break
                    tensor = numbers[output]
                    if seen != expected or tensor in arrays:
                        break
                    try:
                        result = plan.run(*inputs)
                        if result.base is not None or getrefcount(result) > HELD_HERE:
                            result = self._record(result, inputs)
                    except Exception as error:  # any exception of a kernel
                        failed = plan, first, error
                        break
                    arrays[tensor] = result
                    stored += 1
                    if dying:
                        for place, nbytes_of_input in dying:
                            array = take(numbers[place], None)
                            if array is None:
                                continue  # the operation has this tensor twice
                            if array.base is not None or id(array) in shared or lent:
                                allocations.forget(array)
                            else:
                                freed += nbytes_of_input
                                freed_count += 1
                        # These variables would keep the memory.
                        array = inputs = one = two = result = None
                else:
                    for place, _ in dying:
                        array = take(numbers[place], None)
                        if array is None:
                            continue  # without slots, the session has no such tensor
                        if array.base is not None or id(array) in shared or lent:
                            allocations.forget(array)
                        else:
                            freed += nbytes(array)
                            freed_count += 1
                    array = inputs = one = two = result = None
                done += 1
        finally:
            self.executed += stored
            # The results that were not stored, and the tensors that were freed.
            quota.give_back(size - stored_bytes[stored] + freed, count - stored + freed_count)
        if failed is not None:
            plan, first, reason = failed
            self._fail_or_repeat(plan, numbers[first : first + plan.task_length - 1], reason)
            done += 1
        return done

    def _fail_or_repeat(self, plan: Plan, tensors: tuple[int, ...], error: Exception) -> None:
        """Fail an operation of a sequence, or run it again if it ran out of memory."""
        error = self.backend.explained(error)
        if isinstance(error, MemoryError):
            error.__traceback__ = None  # its frames refer to the inputs
            self.backend.memory_cleanup()
            self.invoke(plan, tensors)
        else:
            self.executed += 1
            self._fail(plan, tensors, error)

    def _reusing(
        self, plan: Plan, tensors: tuple[int, ...], inputs: list[Any], dying: Sequence[int]
    ) -> Callable[..., Any]:
        """Return a kernel that writes into an input of ``dying`` if possible, else the usual one.

        It is possible if nothing else references the input.
        """
        for position in plan.reusable:
            if (
                (position in plan.last_uses or tensors[position] in dying)
                and held_once(inputs, position)
                and self.backend.owns_memory(inputs[position])
            ):
                return partial(plan.run_into, out=inputs[position])
        return plan.run

    def _invoke_waiting(self, plan: Plan, tensors: tuple[int, ...]) -> None:
        """Run an operation with inputs that are failed or still arriving."""
        try:
            inputs = [self.tensors.array(tensor) for tensor in tensors[: plan.input_count]]
        except OperationFailed as failure:
            if not failure.operation:
                self._fail(plan, tensors, failure)
            else:
                self._drop_last_uses(plan, tensors)
                self.tensors.pass_failure(tensors[plan.input_count :], detached(failure))
            return
        self._run(plan, tensors, inputs, plan.run)

    def _run(  # noqa: C901 - one function, because each operation would call the others
        self,
        plan: Plan,
        tensors: tuple[int, ...],
        inputs: list[Any],
        run: Callable[..., Any],
    ) -> None:
        try:
            if plan.error is not None:
                raise fresh(plan.error)
            for array, (shape, dtype) in zip(inputs, plan.expected):  # noqa: B905 - equal lengths
                if array.shape != shape or array.dtype != dtype:
                    raise plan.mismatch(inputs)
            self.quota.take(plan.output_bytes, plan.output_count)
            try:
                results = run(*inputs)
            except BaseException as error:
                results = self._run_again(plan, run, inputs, error)
            try:
                # Nearly every result owns its memory and needs no record.
                if plan.gives_one and (
                    results.base is not None or getrefcount(results) > HELD_HERE
                ):
                    results = self._record(results, inputs)
            except BaseException:
                self.quota.give_back(plan.output_bytes, plan.output_count)
                raise
        except Exception as error:  # any exception of a kernel becomes the failure of its outputs
            self._fail(plan, tensors, error)
            return
        arrays = self._arrays
        if plan.gives_one:
            tensor = tensors[-1]
            if tensor in arrays or self._slots:
                self._forget(tensor)
            arrays[tensor] = results
        else:
            self._store_all(tensors[plan.input_count :], results, inputs)
        for position in plan.last_uses:
            self._forget(tensors[position])

    def _store_all(
        self, tensors: tuple[int, ...], results: tuple[Any, ...], inputs: list[Any]
    ) -> None:
        present = [self._record(result, inputs) for result in results if result is not None]
        for tensor, result in zip(tensors, present, strict=True):
            self._forget(tensor)
            self._arrays[tensor] = result

    def _run_again(
        self, plan: Plan, run: Callable[..., Any], inputs: Sequence[Any], error: BaseException
    ) -> Any:
        """Retry an operation that ran out of memory; raise any other error."""
        try:
            if isinstance(error, Exception):
                error = self.backend.explained(error)
            # An operation that overwrites an input cannot be repeated.
            if not isinstance(error, MemoryError) or run is not plan.run:
                raise error
            # Freeing the device's cached memory may be enough.
            self.backend.memory_cleanup()
            return plan.run(*inputs)
        except BaseException:
            self.quota.give_back(plan.output_bytes, plan.output_count)
            raise
        finally:
            # The traceback refers to this frame, which refers to the error; the cycle would keep
            # the inputs alive.
            del error

    def _fail(self, plan: Plan, tensors: tuple[int, ...], error: Exception) -> None:
        pass_on_of_signal_handler(error)  # on a local device; ``fail_interrupted`` is called next
        outputs = tensors[plan.input_count :]
        error = self.backend.explained(error)
        failure = as_failure(error, plan, outputs[0] if outputs else None)
        # A plan or a slot may keep the error, and the traceback's frames would keep the inputs.
        error.__traceback__ = None
        self._drop_last_uses(plan, tensors)
        self.tensors.store_failure(outputs, failure)
        self._report(outputs, failure)

    def fail_interrupted(self, plan: Plan | GraphPlan, tensors: tuple[Any, ...]) -> None:
        """Fail an operation that an interrupt stopped before it stored all its outputs."""
        if isinstance(plan, GraphPlan):
            self._graphs.fail_interrupted(plan, tensors)
            return
        if any(tensor not in self._arrays for tensor in tensors[plan.input_count :]):
            self._fail(plan, tensors, OperationFailed("it was interrupted"))

    def _drop_last_uses(self, plan: Plan, tensors: tuple[int, ...]) -> None:
        for position in plan.last_uses:
            self._forget(tensors[position])

    # -- the session --------------------------------------------------------------------------

    def seed(self, seed: int) -> None:
        """Set the seed of the session's random numbers."""
        self.session.seed(seed)

    def lose(self, reason: str) -> None:
        """Fail all later operations and reads, because the device is lost.

        No kernel may run: the thread may already be using another device.
        """
        if self.tensors.lost is None:
            self.tensors.lost = DeviceLost(reason)
            self.plans.fail(self.tensors.lost)

    def clear(self) -> None:
        """Free all tensors and prepared signatures. A second call does nothing."""
        if self._is_cleared:
            return
        self._is_cleared = True
        self.tensors.clear()
        self.plans.clear()
        if self.fusion is not None:
            self.fusion.clear()
        self.quota.end()
        self.session.close()
