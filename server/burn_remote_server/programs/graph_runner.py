"""Calls of graphs: their tensors, their bytes in the quota, and the failures of their steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import takewhile
from operator import is_not
from sys import getrefcount
from typing import Any, Final

from burn_remote_protocol.errors import OperationFailed, QuotaExceeded, detached
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler
from burn_remote_server.access.quota import Quota
from burn_remote_server.backends.interface import Backend
from burn_remote_server.fusion.counts import FusionCounts
from burn_remote_server.programs.graph_definitions import Step
from burn_remote_server.programs.graphs import EarlyOutput, GraphPlan
from burn_remote_server.programs.instructions import StepFailed
from burn_remote_server.programs.plans import as_failure
from burn_remote_server.tensors.allocations import memory_bytes
from burn_remote_server.tensors.ownership import HELD_IN_LIST
from burn_remote_server.tensors.tensor_table import TensorTable

__all__ = ["GraphRunner", "Stopped"]

# Most failures that one call of a graph reports. Reads of the outputs return every failure; reports
# only serve a client that reads no output. The graphs that a client makes of repeated operations
# have at most this many operations, so all of their failures are reported, as without graphs.
MAX_REPORTED: Final = 64

Report = Callable[[tuple[int, ...], OperationFailed], None]


class Stopped(BaseException):
    """The session ended while a graph was running.

    A ``BaseException``, so that it is not taken for the failure of a kernel.
    """


class GraphRunner:
    """Runs the graphs of one session.

    A graph runs in one loop if its inputs have arrived, as the graph declares them, and its peak
    memory fits into the quota. Otherwise, its steps run one by one as ordinary operations do. If a
    step fails in the loop, the steps from that one on also run one by one. Then the outputs of a
    failed step are failures, steps that use a failure pass it on, and each step takes its own
    bytes from the quota.
    """

    def __init__(
        self,
        backend: Backend,
        quota: Quota,
        tensors: TensorTable,
        report: Report,
        check: Callable[[], None],
        counts: FusionCounts,
    ) -> None:
        """``check`` is called before each step that runs by itself; it may raise."""
        self._backend: Final = backend
        self._quota: Final = quota
        self._tensors: Final = tensors
        self._arrays: Final = tensors.arrays
        self._report: Final = report
        self._check: Final = check
        self._counts: Final = counts

    def run(self, plan: GraphPlan, arguments: tuple[Any, ...], dying: Collection[int] = ()) -> None:
        """Run a graph; ``arguments`` are the elements of its task after the number.

        The results may take the memory of the tensors in ``dying``, which no later task uses.
        Raises ``ProtocolViolation`` if the arguments do not fit the graph.
        """
        self.call(plan, *plan.checked_call(arguments), dying)

    def call(
        self,
        plan: GraphPlan,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        numbers: tuple[Any, ...],
        dying: Collection[int],
        early: EarlyOutput | None = None,
    ) -> None:
        """Run a graph like ``run``; the arguments fit it.

        ``early`` gets its output before the rest of the graph runs, if the graph runs in one loop.
        """
        self._counts.graph_calls += 1
        arrays = self._arrays
        try:
            values = [arrays[tensor] for tensor in inputs]
        except KeyError as error:
            pass_on_of_signal_handler(error)
            if plan.error is not None:
                self._fail(outputs, plan.error)
                return
            values = _checked(plan, self._awaited(inputs))
            self._run_steps(_Call(plan, outputs, numbers, _Counted(self._quota)), values)
            return
        if plan.error is not None:
            self._fail(outputs, plan.error)
            return
        for array, (shape, dtype) in zip(values, plan.expected):  # noqa: B905 - equal lengths
            if array.shape != shape or array.dtype != dtype:
                array = None
                call = _Call(plan, outputs, numbers, _Counted(self._quota))
                self._run_steps(call, _checked(plan, values))
                return
        array = None  # the check whether an input is reusable counts its references
        reusable = _dying(plan, inputs, dying) if dying else ()
        self._run_program(plan, values, outputs, numbers, reusable, early)

    def _run_program(
        self,
        plan: GraphPlan,
        values: list[Any],
        outputs: tuple[int, ...],
        numbers: tuple[Any, ...],
        reusable: Sequence[int],
        early: EarlyOutput | None,
    ) -> None:
        """Run a graph in one loop, and what fails of it step by step."""
        quota = self._quota
        try:
            quota.take(plan.peak_bytes, plan.output_count)
        except QuotaExceeded:
            # Some steps may fit; the first one that does not gets the error.
            self._run_steps(_Call(plan, outputs, numbers, _Counted(quota)), values)
            return
        counted = plan.peak_bytes
        try:
            results = plan.run(values, numbers, reusable, early)
            self._counts.operations_fused += plan.fused_count
            if counted > plan.output_bytes:
                quota.give_back(counted - plan.output_bytes, 0)
                counted = plan.output_bytes
            self._store(outputs, results, values)  # raises no ``QuotaExceeded``
        except StepFailed as failed:
            left = _Counted(quota, plan.peak_bytes, plan.output_count)
            try:
                self._run_steps(_Call(plan, outputs, numbers, left), values, failed)
            except BaseException:
                left.give_back_all()
                raise
        except QuotaExceeded:
            quota.give_back(counted, plan.output_count)
            self._run_steps(_Call(plan, outputs, numbers, _Counted(quota)), values)
        except BaseException:  # an interrupt, the end of the session, or a lack of memory
            left = _Counted(quota, counted, plan.output_count)
            left.pass_on(plan, outputs, self._arrays)
            left.give_back_all()
            raise

    def fail_interrupted(self, plan: GraphPlan, arguments: tuple[Any, ...]) -> None:
        """Fail a graph that an interrupt stopped before it stored all its outputs."""
        outputs = plan.checked_call(arguments)[1]
        if any(tensor not in self._arrays for tensor in outputs):
            self._fail(outputs, OperationFailed("it was interrupted"))

    def _awaited(self, inputs: Sequence[int]) -> list[Any]:
        """Wait for inputs that are still arriving; return arrays, and failures as values."""
        values: list[Any] = []
        for tensor in inputs:
            try:
                values.append(self._tensors.array(tensor))
            except OperationFailed as failure:
                values.append(detached(failure))
        return values

    def store_counted(
        self, plan: GraphPlan, outputs: tuple[int, ...], results: list[Any], inputs: list[Any]
    ) -> None:
        """Store the results of a graph, whose bytes count already."""
        try:
            self._store(outputs, results, inputs)
        except BaseException:  # such as a lack of memory for a copy
            left = _Counted(self._quota, plan.output_bytes, plan.output_count)
            left.pass_on(plan, outputs, self._arrays)
            left.give_back_all()
            raise

    def _store(self, outputs: Sequence[int], results: Sequence[Any], inputs: Sequence[Any]) -> None:
        """Store arrays whose bytes are counted already."""
        arrays, slots = self._arrays, self._tensors.slots
        for tensor, result in zip(outputs, results):  # noqa: B905 - equal lengths
            if tensor in arrays or slots:
                self._tensors.forget(tensor)
            if result.base is None and getrefcount(result) <= HELD_IN_LIST:
                arrays[tensor] = result
            else:
                earlier = takewhile(partial(is_not, result), results)
                arrays[tensor] = self._tensors.record(result, [*inputs, *earlier])

    def _fail(self, outputs: tuple[int, ...], error: Exception) -> None:
        failure = OperationFailed(str(error), operation="Graph", tensor=next(iter(outputs), None))
        if isinstance(error, OperationFailed):
            failure = type(error)(error.reason, operation="Graph", tensor=failure.tensor)
        self._tensors.store_failure(outputs, failure)
        self._report(outputs[:1], failure)

    # -- step by step -------------------------------------------------------------------------

    def _run_steps(
        self, call: _Call, inputs: Sequence[Any], failed: StepFailed | None = None
    ) -> None:
        """Run the steps from the failed one on, or all."""
        plan = call.plan
        for tensor in call.outputs:
            if tensor in self._arrays:  # so that each output that has an array was stored
                self._tensors.forget(tensor)
        try:
            self._counts.graph_fallbacks += 1
            registers = plan.registers(inputs)
            start = 0
            live: dict[int, int] = {}
            if failed is not None:
                start = failed.place
                live = self._resume(call, failed, registers)
            for place in range(start, len(plan.steps)):
                self._check()
                cause = failed.cause if failed is not None and place == start else None
                self._run_step(call, place, registers, live, cause)
            self._store_mixed(call, plan.outputs(registers), inputs)
        except BaseException:  # an interrupt, the end of the session, or a lack of memory
            call.counted.pass_on(plan, call.outputs, self._arrays)
            call.counted.give_back_all()
            raise

    def _resume(self, call: _Call, failed: StepFailed, registers: list[Any]) -> dict[int, int]:
        """Fill the registers as they were before the failed step; return the live ones' bytes."""
        plan = call.plan
        done = plan.steps[: failed.place]
        live = _live(done)
        for register in live:
            registers[register] = failed.registers[register]
        for register, failure in failed.lost.items():
            registers[register] = failure
        failed.registers.clear()  # they refer to dead values, which no longer count
        kept = sum(step.kept for step in done)
        # The peak was counted. Return the excess in one call, so that no other tensor can take
        # the bytes of live values in between.
        call.counted.give_back(plan.peak_bytes - sum(live.values()), plan.output_count - kept)
        return live

    def _run_step(
        self,
        call: _Call,
        place: int,
        registers: list[Any],
        live: dict[int, int],
        cause: Exception | None,
    ) -> None:
        """Run one step on the registers; ``live`` has the counted bytes of each live register."""
        step = call.plan.steps[place]
        results = self._step(call, place, [registers[register] for register in step.inputs], cause)
        for register in step.released:
            registers[register] = None
            call.counted.give_back(live.pop(register, 0), 0)
        specs = step.plan.signature.outputs
        for register, result, spec in zip(step.outputs, results, specs, strict=True):
            registers[register] = result
            live[register] = 0 if isinstance(result, OperationFailed) else memory_bytes(spec)
        for register in step.unused:
            registers[register] = None
            call.counted.give_back(live.pop(register), 0)

    def _step(
        self, call: _Call, place: int, values: list[Any], cause: Exception | None
    ) -> list[Any]:
        """Run one step and count its outputs; return each output, or the failure in its place."""
        step = call.plan.steps[place]
        failure = next((value for value in values if isinstance(value, OperationFailed)), None)
        if failure is None or not failure.operation:  # the failure of a missing or unfitting input
            try:
                return self._results(call, place, values, cause or failure)
            except Exception as error:  # any exception of a kernel becomes the step's failure
                pass_on_of_signal_handler(error)
                explained = self._backend.explained(error)
                tensor = next(iter(call.outputs), None)
                failure = as_failure(explained, step.plan, tensor, place)
                if call.reported < MAX_REPORTED:
                    call.reported += 1
                    self._report(call.outputs[:1], failure)
        return [failure] * len(step.outputs)

    def _results(
        self, call: _Call, place: int, values: list[Any], cause: Exception | None
    ) -> list[Any]:
        step = call.plan.steps[place]
        is_overwritten = place in call.plan.overwriting
        cause = None if cause is None else self._backend.explained(cause)
        if cause is not None and (is_overwritten or not isinstance(cause, MemoryError)):
            raise cause
        plan = call.plan.prepared_plan(place, call.numbers)
        if plan.error is not None:
            raise plan.error.with_traceback(None)
        call.counted.take(plan.output_bytes, step.kept)
        try:
            results = self._run_kernel(step, plan.run, values, cause)
        except BaseException:
            call.counted.give_back(plan.output_bytes, step.kept)
            raise
        if plan.gives_one:
            return [results]
        return [result for result in results if result is not None]

    def _run_kernel(
        self, step: Step, run: Callable[..., Any], values: list[Any], cause: Exception | None
    ) -> Any:
        if cause is None:
            try:
                return run(*values)
            except Exception as error:  # of any library
                if not isinstance(self._backend.explained(error), MemoryError):
                    raise
        elif step.plan.reusable:
            raise cause  # the kernel may have overwritten an input, so it cannot be repeated
        # Freeing the device's cached memory may be enough.
        self._backend.memory_cleanup()
        return run(*values)

    def _store_mixed(self, call: _Call, results: list[Any], inputs: Sequence[Any]) -> None:
        arrays = [value for value in inputs if not isinstance(value, OperationFailed)]
        passed_on = {id(value) for value in inputs}
        failures: dict[int, tuple[OperationFailed, list[int]]] = {}
        for tensor, result in zip(call.outputs, results, strict=True):
            if isinstance(result, OperationFailed):
                failures.setdefault(id(result), (result, []))[1].append(tensor)
            else:
                self._store((tensor,), [result], arrays)
                arrays.append(result)
        for identity, (failure, tensors) in failures.items():
            if identity in passed_on:
                self._tensors.pass_failure(tensors, failure)
            else:
                self._tensors.store_failure(tensors, failure)


class _Call:
    """A call of a graph that runs step by step.

    ``counted`` is what it counts in the quota; ``reported`` counts the failures that were reported.
    """

    __slots__ = ("counted", "numbers", "outputs", "plan", "reported")

    def __init__(
        self,
        plan: GraphPlan,
        outputs: tuple[int, ...],
        numbers: tuple[Any, ...],
        counted: _Counted,
    ) -> None:
        self.plan = plan
        self.outputs = outputs
        self.numbers = numbers
        self.counted = counted
        self.reported = 0


class _Counted:
    """The bytes and tensors of a call that count in the quota and belong to no tensor yet.

    What a failing call counted is returned from here. A difference of the quota would not do,
    because making room may free other tensors meanwhile.
    """

    __slots__ = ("_quota", "bytes", "tensors")

    def __init__(self, quota: Quota, size: int = 0, tensors: int = 0) -> None:
        self._quota = quota
        self.bytes = size
        self.tensors = tensors

    def take(self, size: int, tensors: int) -> None:
        """Count results. If ``QuotaExceeded`` is raised, nothing is counted."""
        total, count = self.bytes + size, self.tensors + tensors
        self._quota.take(size, tensors)
        self.bytes, self.tensors = total, count

    def give_back(self, size: int, tensors: int) -> None:
        """Count results as freed."""
        total, count = self.bytes - size, self.tensors - tensors
        self._quota.give_back(size, tensors)
        self.bytes, self.tensors = total, count

    def pass_on(self, plan: GraphPlan, outputs: Sequence[int], arrays: Collection[int]) -> None:
        """Leave the outputs that were stored to the table of tensors."""
        for tensor, spec in zip(outputs, plan.output_specs, strict=True):
            if tensor in arrays:
                self.bytes, self.tensors = self.bytes - memory_bytes(spec), self.tensors - 1

    def give_back_all(self) -> None:
        """Count everything that is left as freed. May be called again."""
        size, tensors = self.bytes, self.tensors
        self.bytes = self.tensors = 0
        self._quota.give_back(size, tensors)


def _dying(plan: GraphPlan, inputs: tuple[int, ...], dying: Collection[int]) -> list[int]:
    """Return the places of the inputs whose memory results may take."""
    return [place for place in plan.reusable_inputs if inputs[place] in dying]


def _live(steps: Sequence[Step]) -> dict[int, int]:
    """Return the bytes of each register that is alive after these steps, except inputs."""
    live: dict[int, int] = {}
    for step in steps:
        for register in step.released:
            live.pop(register, None)
        live |= zip(step.outputs, map(memory_bytes, step.plan.signature.outputs), strict=True)
        for register in step.unused:
            del live[register]
    return live


def _checked(plan: GraphPlan, values: list[Any]) -> list[Any]:
    """Return inputs, with failures in place of arrays of other shapes and dtypes than declared.

    Like the failure of a missing tensor, such a failure makes each step fail that uses the input.
    """
    checked = []
    for value, (shape, dtype) in zip(values, plan.expected, strict=True):
        if not isinstance(value, OperationFailed) and (value.shape, value.dtype) != (shape, dtype):
            seen = f"{value.dtype}{list(value.shape)}"
            value = OperationFailed(f"the tensor is {seen}; the graph expects {dtype}{list(shape)}")
        checked.append(value)
    return checked
