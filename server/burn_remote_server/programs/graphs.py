"""Graphs: sequences of operations that are checked once and run by one task.

A graph's tensors have *slots* (``DefineGraph``). A definition is turned into a program over
*registers*, which are reused: a program has as many registers as values are alive at once. The loop
of ``GraphPlan.run`` does little more than call the kernels. It looks up no tensors, compares no
shapes and counts no bytes, because all of that was done when the graph was defined.

Instructions are tuples of integers (``instructions``), which refer to kernels by their places in a
table, and ``Steps`` stores columns. So Python's garbage collector examines no object of a single
step: it stops tracking a tuple that contains only numbers and untracked tuples. A tuple with a
function stays tracked.

On a device that can capture runs, ``ProgramCapture`` runs the program.

A step that fails ends the loop with ``StepFailed``. ``GraphRunner`` continues from there, with
failures as values.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import length_hint
from typing import Any, Final, NamedTuple

from burn_remote_protocol.errors import (
    BurnRemoteError,
    OperationFailed,
    ProtocolViolation,
    shown,
)
from burn_remote_protocol.messages import DefineGraph
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.operations.wire_values import is_scalar_value
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler
from burn_remote_protocol.snapshots import items_of
from burn_remote_server.backends.interface import Backend, BackendSession, Run
from burn_remote_server.fusion.fuser import OverwrittenInputs
from burn_remote_server.programs.graph_definitions import (
    Steps,
    allocate_registers,
    definition_bytes,
    expected_inputs,
    number_variants,
    peak_bytes,
    plan_of_step,
    slot_specs,
)
from burn_remote_server.programs.graph_fusion import fused_steps
from burn_remote_server.programs.instructions import (
    CHECK,
    CHECKED_FIRST,
    CHECKED_MANY,
    CHECKED_SECOND,
    FAILED,
    FREE,
    FUSED,
    INTO_FIRST,
    INTO_ONLY,
    INTO_SECOND,
    MANY_INPUTS,
    NO_INPUT,
    NUMBERED,
    ONE_INPUT,
    REUSING,
    TWO_INPUTS,
    UNPACKED,
    Instruction,
    StepFailed,
    writes,
)
from burn_remote_server.programs.plans import Plan
from burn_remote_server.programs.program_capture import (
    Captures,
    Program,
    ProgramCapture,
    number_key,
)
from burn_remote_server.programs.program_compiler import ProgramCompiler, step_cost
from burn_remote_server.tensors.allocations import memory_bytes
from burn_remote_server.tensors.ownership import held_by_a_call, held_only_here

__all__ = ["GRAPH_STEP_COST", "EarlyOutput", "GraphPlan"]

# The time to check and compile a step, in nanoseconds: 18 to 23 µs (measured, with fusion).
GRAPH_STEP_COST: Final = 25_000

# The number of the call at which the functions of a graph are compiled, if it calls each of them
# once. LLVM takes about 20 ms for each, in a separate thread, and saves up to a few µs per call. A
# graph of several training steps calls each function several times, so it compiles them earlier.
COMPILED_AT: Final = 32

_INTEGER: Final = frozenset({int})


class EarlyOutput(NamedTuple):
    """An output that is wanted before the rest of the program runs: its place among the outputs.

    ``give`` is called with the output's array as soon as it is computed.
    """

    place: int
    give: Callable[[Any], None]


class GraphPlan:
    """A checked graph, compiled to a program; like a ``Plan``, it is found by its number.

    ``peak_bytes`` is the most that its intermediate and output tensors take together, and
    ``nbytes`` the memory of the graph itself. ``error`` is set when the device is lost; each use
    then fails with it.
    """

    # No task is as long as this, so the engine passes every task of a graph to ``GraphRunner``.
    task_length: Final = -1
    reusable: Final = ()

    def __init__(
        self,
        task: DefineGraph,
        numbered: Mapping[int, Any],
        backend: Backend,
        session: BackendSession,
        prepare: Callable[[Signature], Plan],
        limited: Callable[[Run, Sequence[Plan]], Run],
        check: Callable[[], None] = lambda: None,
        captures: Captures | None = None,
    ) -> None:
        """Check and compile a definition.

        ``numbered`` has the plans by number. ``prepare`` makes the plan of a step whose numbers
        have changed. ``limited`` adds the checks of several plans to a function that executes them
        together. A long program calls ``check`` regularly; it may raise a ``BaseException``. If
        ``captures`` is given, it captures parts of the program. Raises ``ProtocolViolation`` for an
        invalid definition.
        """
        plans = [plan_of_step(step, numbered) for step in task.steps]
        specs = slot_specs(task, plans)
        self.input_count = task.input_count
        self.output_count = len(task.outputs)
        self.output_specs = tuple(specs[slot] for slot in task.outputs)
        self.output_bytes = sum(map(memory_bytes, self.output_specs))
        self.variants = number_variants(task, plans)
        self.expected = expected_inputs(task, plans)
        # The types of a call's elements, unless it has numbers.
        ids = self.input_count + self.output_count
        self._call_types = [int] * ids if not self.variants else None
        self.error: BurnRemoteError | None = None
        self._owns_memory = backend.owns_memory
        self._session = session
        self._prepare = prepare
        steps, self._outputs, registers = allocate_registers(task, plans, len(specs))
        self.steps: Final = Steps(steps)
        self.peak_bytes = peak_bytes(steps)
        self.cost = sum(map(step_cost, steps))
        self._last_numbers: tuple[Any, ...] = ()
        blocks = fused_steps(task, plans, backend, session)
        compiled = ProgramCompiler(
            steps, task.input_count, registers, blocks, session, limited, check
        ).compiled()
        self._program, self._checked = compiled.instructions, compiled.checked
        self._assumed = compiled.assumed
        self._kernels, self._places = compiled.kernels, compiled.places
        self._registers = compiled.registers
        self._number_registers = compiled.number_registers
        # Inputs whose memory a result may take if the call uses them for the last time.
        self.reusable_inputs: Final = compiled.reusable_inputs
        # Steps whose instruction overwrites an input, so that it cannot be repeated.
        self.overwriting: Final = compiled.overwriting
        # The runs of steps that are fused, by the place of their first step.
        self.blocks: Final = compiled.blocks
        self.fused_count = sum(block.end - block.start for block in self.blocks.values())
        self.nbytes = definition_bytes(task, self.fused_count)
        # The functions among the kernels that are not compiled yet, by their places.
        self._uncompiled = compiled.direct_calls
        # How often a call of the graph calls each function, on average.
        self._repeats = len(self._uncompiled) / max(1, compiled.distinct_calls)
        self._calls = 0
        # For each step with numbers: the numbers of the last call, and the plan for them.
        self._prepared: dict[int, tuple[tuple[Any, ...], Plan]] = {}
        # The numbers of the last call, and those of these plans that it used without an error. A
        # caller that passes the same object again saves the comparison of the numbers.
        self._same_numbers: tuple[Any, ...] | None = None
        self._same_plans: dict[int, Plan] = {}
        # For outputs that were wanted early: the number of instructions up to the one that makes
        # them.
        self._early: dict[int, int] = {}
        self._capture = None if captures is None else self._captured_by(captures)

    # -- running ------------------------------------------------------------------------------

    def count_earlier_calls(self, count: int) -> None:
        """Count calls whose operations ran one by one, before the graph was compiled."""
        self._calls += count

    def run(
        self,
        inputs: Sequence[Any],
        numbers: tuple[Any, ...],
        dying: Collection[int] = (),
        early: EarlyOutput | None = None,
    ) -> list[Any]:
        """Run the program; return the outputs. Raises ``StepFailed``.

        ``dying`` are the places of those ``reusable_inputs`` that no later task uses. Results may
        take their memory if only ``inputs`` and the session's table reference them. ``early`` is
        not given its output if the program runs on a device by itself, or fails before.
        """
        if self._capture is not None:
            r = self.registers(inputs)
            self._capture.run(r, numbers)
            return self.outputs(r)
        self._set_numbers(inputs, numbers)
        if self._uncompiled:
            self._take_compiled()
        r = [*inputs, *self._registers]
        program = self._program
        for register in self._assumed:
            if not inputs[register].flags.c_contiguous:
                program = self._checked
                break
        start = 0
        if early is not None:
            start = self._made_after(early.place)
            self._run(r, program[:start], 0, numbers, inputs, dying)
            early.give(r[self._outputs[early.place]])
            program = program[start:]
        self._run(r, program, start, numbers, inputs, dying)
        return self.outputs(r)

    def _made_after(self, output: int) -> int:
        """Return the number of instructions after which an output has its final value."""
        found = self._early.get(output)
        if found is None:
            register = self._outputs[output]
            program = enumerate(self._program, 1)
            makers = [count for count, each in program if register in writes(each)]
            # Without one, a step before it is known to fail.
            found = self._early[output] = max(makers, default=len(self._program))
        return found

    # One loop with a branch per form: a function call per instruction would double its cost.
    def _run(  # noqa: C901
        self,
        r: list[Any],
        instructions: Sequence[Instruction],
        start: int,
        numbers: tuple[Any, ...],
        inputs: Sequence[Any],
        dying: Collection[int],
    ) -> None:
        """Run instructions, the first of which has the place ``start``, on the registers ``r``."""
        program = iter(instructions)
        kernels = self._kernels
        try:
            for form, k, i, j, target in program:
                if form == TWO_INPUTS:
                    r[target] = kernels[k](r[i], r[j])
                elif form == INTO_FIRST:
                    into = r[i]
                    r[target] = kernels[k](into, r[j], into)
                elif form == INTO_SECOND:
                    into = r[j]
                    r[target] = kernels[k](r[i], into, into)
                elif form == INTO_ONLY:
                    into = r[i]
                    r[target] = kernels[k](into, into)
                elif form == ONE_INPUT:
                    r[target] = kernels[k](r[i])
                elif form == REUSING:
                    r[target] = self._reusing(r, kernels[k], i, j, inputs, dying)
                elif form == FREE:
                    for register in target:
                        r[register] = None
                elif form == MANY_INPUTS:
                    r[target] = kernels[k](*[r[register] for register in i])
                elif form == NO_INPUT:
                    r[target] = kernels[k]()
                elif form == CHECK:
                    kernels[k]()
                elif form == NUMBERED:
                    plan = self.prepared(k, numbers)
                    if j and plan.reusable:
                        r[target] = self._reusing(r, plan, i, j, inputs, dying)
                    else:
                        self._store(r, target, plan.run, i)
                elif form == CHECKED_FIRST:
                    into = r[i]
                    out = (into,) if into.flags.c_contiguous else ()
                    r[target] = kernels[k](into, r[j], *out)
                elif form == CHECKED_SECOND:
                    into = r[j]
                    out = (into,) if into.flags.c_contiguous else ()
                    r[target] = kernels[k](r[i], into, *out)
                elif form == UNPACKED:
                    results = kernels[k](*[r[register] for register in i])
                    for register, result in zip(target, results):  # noqa: B905 - equal lengths
                        r[register] = result
                elif form == CHECKED_MANY:
                    operands = [r[register] for register in i]
                    for register in j[0]:
                        if not r[register].flags.c_contiguous:
                            r[target] = kernels[k + 1](*operands[: j[1]])
                            break
                    else:
                        r[target] = kernels[k](*operands)
                elif form == FUSED:
                    self._run_fused(r, kernels[k], i, j, target, inputs, dying)
                elif form == FAILED:
                    raise kernels[k].error.with_traceback(None)
                else:
                    self._store(r, target, kernels[k], i)
        except Exception as error:  # of any kernel: it becomes the failure of its step
            pass_on_of_signal_handler(error)
            index = start + len(instructions) - length_hint(program) - 1
            place = self._places[index]
            failed = StepFailed(place, index, r, None if place in self.blocks else error)
            if isinstance(error, OverwrittenInputs):
                registers = self._program[index][2]
                failure = OperationFailed(str(error))
                failed.lost = {registers[lost]: failure for lost in error.places}
            raise failed from error

    def _take_compiled(self) -> None:
        """Replace functions by their compiled forms, and start to compile them if it is time.

        Functions whose compiled form is not ready yet are tried again at a later call.
        """
        self._calls += 1
        if self._calls * self._repeats < COMPILED_AT:
            return
        for place, direct in items_of(self._uncompiled):
            run, is_final = direct.compiled()
            if run is not None:
                self._kernels[place] = run
            if is_final:
                del self._uncompiled[place]

    def _set_numbers(self, inputs: Sequence[Any], numbers: tuple[Any, ...]) -> None:
        """Write the numbers of a call into their registers, unless the last call had the same.

        Raises ``StepFailed``.
        """
        if not self._number_registers or numbers is self._same_numbers:
            return
        key = number_key(numbers)
        if key == self._last_numbers:
            self._keep_numbers(numbers)
            return
        try:
            found = self._constants(numbers)
        except Exception as error:  # the steps run one by one, and those with invalid numbers fail
            pass_on_of_signal_handler(error)
            raise StepFailed(0, 0, self.registers(inputs), None) from error
        self._last_numbers = ()  # an interrupt may stop the writes below halfway
        self._same_numbers = None
        for register, constant in found:
            self._registers[register] = constant
        self._last_numbers = key
        self._keep_numbers(numbers)

    def _keep_numbers(self, numbers: tuple[Any, ...]) -> None:
        self._same_plans = {}
        self._same_numbers = numbers

    def _constants(self, numbers: tuple[Any, ...]) -> list[tuple[int, Any]]:
        """Return the constants of a call, each with its place in ``_registers``."""
        found = []
        for register, place in self._number_registers:
            step = self.steps[place]
            fields = step.plan.signature.row.fields
            values = {fields[field].name: numbers[position] for field, position in step.numbers}
            (call,) = self._session.bind_elementwise(step.plan.signature, values)
            (constant,) = call.constants
            found.append((register - self.input_count, constant))
        return found

    def _write_numbers(self, r: list[Any], numbers: tuple[Any, ...]) -> None:
        """Write the numbers of a call into the registers of a program that runs."""
        self._set_numbers(r[: self.input_count], numbers)
        for register, _ in self._number_registers:
            r[register] = self._registers[register - self.input_count]

    def registers(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the registers at the start of a program."""
        return [*inputs, *self._registers]

    def outputs(self, registers: list[Any]) -> list[Any]:
        """Return the outputs at the end of a program."""
        return [registers[register] for register in self._outputs]

    def prepared(self, place: int, numbers: tuple[Any, ...]) -> Plan:
        """Return the plan of a step for the numbers of a call.

        Raises the error of a plan that is invalid with these numbers.
        """
        if numbers is self._same_numbers:
            known = self._same_plans.get(place)
            if known is not None and known.error is None:
                return known
        plan = self.prepared_plan(place, numbers)
        if plan.error is not None:
            raise plan.error.with_traceback(None)
        if numbers is self._same_numbers:
            self._same_plans[place] = plan
        return plan

    def prepared_plan(self, place: int, numbers: tuple[Any, ...]) -> Plan:
        """Return the plan of a step for the numbers of a call."""
        step = self.steps[place]
        if not step.numbers:
            return step.plan
        own = tuple([numbers[position] for _, position in step.numbers])
        key = number_key(own)
        known = self._prepared.get(place)
        if known is not None and known[0] == key:
            return known[1]
        fields = [field for field, _ in step.numbers]
        changed = step.plan.signature.with_scalars(zip(fields, own, strict=True))
        plan = self._prepare(changed)
        self._prepared[place] = (key, plan)
        return plan

    def _reusing(
        self,
        r: list[Any],
        plan: Plan,
        registers: Any,
        candidates: Any,
        inputs: Sequence[Any],
        dying: Collection[int],
    ) -> Any:
        """Run a step; write its result into an input that nothing else references, if any."""
        values = [r[register] for register in registers]
        for register in candidates:
            is_input = register in dying and r[register] is inputs[register]
            # Free if only ``r`` and ``values`` reference it; for an input, also ``inputs`` and the
            # session's table.
            is_free = held_by_a_call if is_input else held_only_here
            if is_free(r, register, values) and self._owns_memory(r[register]):
                return plan.run_into(*values, out=r[register])
        return plan.run(*values)

    def _run_fused(
        self,
        r: list[Any],
        run: Run,
        registers: Any,
        candidates: Any,
        targets: Any,
        inputs: Sequence[Any],
        dying: Collection[int],
    ) -> None:
        """Run several steps as one; they may overwrite inputs that nothing else references."""
        values = [r[register] for register in registers]
        reusable = []
        for register in candidates:
            is_input = register in dying and r[register] is inputs[register]
            is_free = held_by_a_call if is_input else held_only_here
            if is_free(r, register, values) and self._owns_memory(r[register]):
                reusable.append(registers.index(register))
        results = run(*values, reusable=reusable)
        for target, result in zip(targets, results, strict=True):
            r[target] = result

    def _store(self, r: list[Any], targets: Any, run: Callable[..., Any], inputs: Any) -> None:
        results = run(*[r[register] for register in inputs])
        if type(targets) is int:
            r[targets] = results
            return
        present = [result for result in results if result is not None]
        for target, result in zip(targets, present, strict=True):
            r[target] = result

    # -- checks of a call ---------------------------------------------------------------------

    def checked_call(
        self, arguments: tuple[Any, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[Any, ...]]:
        """Split the elements of a task after its number into inputs, outputs and numbers.

        Raises ``ProtocolViolation``.
        """
        # Comparing lists takes one call in C for the types of all tensors.
        if [*map(type, arguments)] == self._call_types:
            return arguments[: self.input_count], arguments[self.input_count :], ()
        count = self.input_count + self.output_count
        numbers: Any = ()
        if self.variants:
            numbers = arguments[-1] if arguments else None
            arguments = arguments[:-1]
        if (
            len(arguments) != count
            or not _INTEGER.issuperset(map(type, arguments))
            or type(numbers) is not tuple
            or len(numbers) != len(self.variants)
            or not all(map(is_scalar_value, self.variants, numbers))
        ):
            raise ProtocolViolation(
                f"the graph takes {count} tensor ids and {len(self.variants)} numbers "
                f"({', '.join(self.variants)}), not {shown((arguments, numbers))}"
            )
        return arguments[: self.input_count], arguments[self.input_count :], numbers

    # -- capture ------------------------------------------------------------------------------

    def _captured_by(self, captures: Captures) -> ProgramCapture | None:
        """Return the capture of the program, or ``None`` if no part of it can be captured."""
        # A weak reference avoids a reference cycle: the plan's memory on the device must be freed
        # together with the plan, not by a later garbage collection.
        plan = weakref.proxy(self)

        def may_capture(place: int) -> bool:
            block = self.blocks.get(place)
            steps = self.steps[place : place + 1 if block is None else block.end]
            return all(
                step.plan.error is None and captures.may_capture(step.plan.signature)
                for step in steps
            )

        def run(
            r: list[Any], program: Sequence[Instruction], start: int, numbers: tuple[Any, ...]
        ) -> None:
            plan._run(r, program, start, numbers, (), ())

        positions = {
            place: tuple(position for _, position in step.numbers)
            for place, step in enumerate(self.steps)
            if step.numbers
        }
        optimizations = [block.execution.optimization for block in self.blocks.values()]
        program = Program(
            self._checked,
            {index for index, place in enumerate(self._places) if may_capture(place)},
            self._outputs,
            {register: positions[place][0] for register, place in self._number_registers},
            {
                index: positions[instruction[1]]
                for index, instruction in enumerate(self._program)
                if instruction[0] == NUMBERED
            },
            run,
            lambda r, numbers: plan._write_numbers(r, numbers),
            lambda place, numbers: plan.prepared(place, numbers),
            lambda: all(optimization.is_final for optimization in optimizations),
        )
        capture = ProgramCapture(program, captures)
        return capture if capture.is_useful else None
