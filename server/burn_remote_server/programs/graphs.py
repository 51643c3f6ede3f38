"""Graphs: sequences of operations that are checked once and run by one task.

A graph's tensors have *slots* (``DefineGraph``). A definition is turned into a program over
*registers*, which are reused: a program needs as many as values are alive at once. The loop of
``GraphPlan.run`` does little more than call the kernels: it looks up no tensors, compares no shapes
and counts no bytes, because all of that was settled when the graph was defined.

Instructions are tuples of integers (``instructions``), which have the places of kernels in a table,
and ``Steps`` has columns. So Python's garbage collector examines no object of a single step: it
stops tracking tuples that hold nothing but numbers and such tuples. A tuple with a function would
be tracked.

On a device that captures runs, the program is run by ``ProgramCapture``.

A step that fails ends the loop with ``StepFailed``. ``GraphRunner`` continues from there, with
failures as values.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import length_hint
from typing import Any, Final

from burn_remote_protocol.errors import (
    BurnRemoteError,
    OperationFailed,
    ProtocolViolation,
    shown,
)
from burn_remote_protocol.messages import DefineGraph
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.operations.wire_values import is_scalar_value
from burn_remote_server.backends.interface import (
    Backend,
    BackendSession,
    ElementwiseCall,
    Run,
)
from burn_remote_server.fusion.fuser import OverwrittenInputs
from burn_remote_server.fusion.search import Block
from burn_remote_server.programs.graph_definitions import (
    FREED_BYTES,
    Step,
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
    CHECKED_SECOND,
    FAILED,
    FREE,
    FUSED,
    INTO_FIRST,
    INTO_ONLY,
    INTO_SECOND,
    MANY_INPUTS,
    MANY_OUTPUTS,
    MAY_REUSE,
    NO_INPUT,
    NUMBERED,
    ONE_INPUT,
    REUSING,
    TWO_INPUTS,
    Instruction,
    StepFailed,
)
from burn_remote_server.programs.program_capture import (
    Captures,
    Program,
    ProgramCapture,
    number_key,
)
from burn_remote_server.tensors.ownership import held_by_a_call, held_only_here
from burn_remote_server.tensors.plans import Plan, memory_bytes

__all__ = ["GRAPH_STEP_COST", "GraphPlan"]

# The time to check and compile a step, in nanoseconds: 18 to 23 µs (measured, with fusion).
GRAPH_STEP_COST: Final = 25_000

# Estimated time, in nanoseconds, between two checks of whether the session has ended.
STOP_COST: Final = 10_000_000

# Calling a kernel from the loop, in nanoseconds, and preparing a step again for new numbers.
CALL_COST: Final = 300
PREPARE_COST: Final = 30_000

_INTEGER: Final = frozenset({int})

# The forms that overwrite an operand of two, and those that first check its order.
_CHECKED: Final = {INTO_FIRST: CHECKED_FIRST, INTO_SECOND: CHECKED_SECOND}


class GraphPlan:
    """A checked graph, compiled to a program; it takes the place of a ``Plan`` under its number.

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

        ``numbered`` has the plans by number; ``prepare`` makes the plan of a step whose numbers
        have changed. ``limited`` adds the checks of several plans to a function that executes them
        together. A long program calls ``check`` from time to time; it may raise a
        ``BaseException``. Parts of the program are captured through ``captures``, if it is given.
        Raises ``ProtocolViolation`` for an invalid definition.
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
        self._limited = limited
        self._check = check
        steps, self._outputs, self._registers = allocate_registers(task, plans, len(specs))
        self.steps: Final = Steps(steps)
        self.peak_bytes = peak_bytes(steps)
        self.cost = sum(map(_cost, steps))
        # Registers whose values follow from the numbers of a call, and the steps that take them.
        self._number_registers: list[tuple[int, int]] = []
        # These registers by the identity of the plan, which ``steps`` keeps alive, and the numbers.
        self._shared_registers: dict[tuple[int, Any], int] = {}
        self._last_numbers: tuple[Any, ...] = ()
        # Inputs whose memory a result may take if they die.
        self.reusable_inputs: set[int] = set()
        # Steps whose instruction overwrites an input, so that it cannot be repeated.
        self.overwriting: set[int] = set()
        # The runs of steps that are fused, by the place of their first step.
        self.blocks: dict[int, Block] = {
            block.start: block for block in fused_steps(task, plans, backend, session)
        }
        self.fused_count = sum(block.end - block.start for block in self.blocks.values())
        self.nbytes = definition_bytes(task, self.fused_count)
        # The inputs that ``_program`` takes to be in C order.
        self._assumed: tuple[int, ...] = ()
        self._program, self._kernels, self._places = self._compiled(steps)
        self._checked = tuple([(_CHECKED.get(form, form), *rest) for form, *rest in self._program])
        # For each step with numbers: the last ones, and the plan for them.
        self._prepared: dict[int, tuple[tuple[Any, ...], Plan]] = {}
        self._capture = None if captures is None else self._captured_by(captures)

    # -- running ------------------------------------------------------------------------------

    def run(
        self, inputs: Sequence[Any], numbers: tuple[Any, ...], dying: Collection[int] = ()
    ) -> list[Any]:
        """Run the program; return the outputs. Raises ``StepFailed``.

        ``dying`` are places of ``reusable_inputs`` that nobody uses afterwards. Results may take
        their memory if only ``inputs`` and the session's table reference them.
        """
        if self._capture is not None:
            r = self.registers(inputs)
            self._capture.run(r, numbers)
            return self.outputs(r)
        self._set_numbers(inputs, numbers)
        r = [*inputs, *self._registers]
        program = self._program
        for register in self._assumed:
            if not inputs[register].flags.c_contiguous:
                program = self._checked
                break
        self._run(r, program, 0, numbers, inputs, dying)
        return self.outputs(r)

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
                elif form == FUSED:
                    self._run_fused(r, kernels[k], i, j, target, inputs, dying)
                elif form == FAILED:
                    raise kernels[k].error.with_traceback(None)
                else:
                    self._store(r, target, kernels[k], i)
        except Exception as error:
            index = start + len(instructions) - length_hint(program) - 1
            place = self._places[index]
            failed = StepFailed(place, index, r, None if place in self.blocks else error)
            if isinstance(error, OverwrittenInputs):
                registers = self._program[index][2]
                failure = OperationFailed(str(error))
                failed.lost = {registers[lost]: failure for lost in error.places}
            raise failed from error

    def _set_numbers(self, inputs: Sequence[Any], numbers: tuple[Any, ...]) -> None:
        """Write the numbers of a call into their registers, unless they are there.

        Raises ``StepFailed``.
        """
        if not self._number_registers:
            return
        key = number_key(numbers)
        if key == self._last_numbers:
            return
        try:
            found = self._constants(numbers)
        except Exception as error:  # the steps that cannot take their numbers fail, one by one
            raise StepFailed(0, 0, self.registers(inputs), None) from error
        self._last_numbers = ()  # an interrupt may leave a part of them
        for register, constant in found:
            self._registers[register] = constant
        self._last_numbers = key

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
        plan = self.prepared_plan(place, numbers)
        if plan.error is not None:
            raise plan.error.with_traceback(None)
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
            # ``r`` and ``values``, for an input also ``inputs`` and the table, and nothing else.
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
        """Run several steps as one; let it overwrite the inputs that nothing else references."""
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
        # Compared as lists, in C: a call checks these types for each of its tensors.
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

    # -- compilation --------------------------------------------------------------------------

    def _compiled(
        self, all_steps: Sequence[Step]
    ) -> tuple[tuple[Instruction, ...], tuple[Any, ...], list[int]]:
        """Return the instructions, the kernels that they name, and the step of each instruction."""
        program: list[Instruction] = []
        kernels = _Kernels()
        places: list[int] = []
        unread = {*range(self.input_count)}  # registers that still have inputs
        # Registers of results that nothing else can reference: ufuncs return new arrays and keep no
        # reference. Any other kernel may return a view of an input.
        private: set[int] = set()
        orders = _MemoryOrders(self.input_count)
        # The calls of plans, bound once: each binding may make new functions.
        bound: dict[Plan, tuple[ElementwiseCall, ...]] = {}
        place = cost = 0
        while place < len(all_steps):
            block = self.blocks.get(place)
            end = place + 1 if block is None else block.end
            steps = all_steps[place:end]
            found = None if block else self._elementwise(place, steps[0], private, orders, bound)
            if found is None:
                found = self._fused(steps, place, block) if block else _instruction(place, steps[0])
                for step in steps:
                    private.difference_update(step.inputs, step.outputs)
                    orders.note(step, is_ufunc=False)
            form, kernel, i, j, target = found
            if form in MAY_REUSE:
                self.reusable_inputs.update(unread.intersection(j))
            cost += sum(_cost(step) for step in steps)
            if cost > STOP_COST and place:
                program.append((CHECK, kernels.place(self._check), 0, 0, 0))
                places.append(place)
                cost = 0
            k = place if form == NUMBERED else kernels.place(kernel)
            program.append((form, k, i, j, target))
            for step in steps:
                unread.difference_update(step.outputs)
            places.append(place)
            large = self._large_dead(steps)
            if large:
                program.append((FREE, 0, 0, 0, large))
                places.append(place)
            place = end
        self._assumed = tuple(orders.assumed)
        return tuple(program), tuple(kernels.found), places

    def _captured_by(self, captures: Captures) -> ProgramCapture | None:
        """Return the program as one that is captured, or ``None`` if no part of it can be."""
        # No cycle of references: a plan's memory on the device must be free as soon as the plan is.
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
            lambda: all(optimization.is_settled for optimization in optimizations),
        )
        capture = ProgramCapture(program, captures)
        return capture if capture.is_useful else None

    def _large_dead(self, steps: Sequence[Step]) -> tuple[int, ...]:
        """Return the registers whose values, at least as large as ``FREED_BYTES``, die here."""
        dead: dict[int, int] = {}
        for step in steps:
            sizes = self._sizes(step)
            dead |= {register: sizes[register] for register in step.released}
            for register in step.outputs:
                dead.pop(register, None)
            dead |= {register: sizes[register] for register in step.unused}
        return tuple(register for register, size in dead.items() if size >= FREED_BYTES)

    def _fused(self, steps: Sequence[Step], place: int, block: Block) -> tuple[Any, ...]:
        """Return the form, kernel and operands for steps that one optimization executes."""
        register: dict[int, int] = {}
        targets: dict[int, int] = {}
        operations = block.execution.operations
        for offset, (step, operation) in enumerate(zip(steps, operations, strict=True)):
            for slot, place_of_slot in zip(operation.inputs, step.inputs, strict=True):
                register.setdefault(slot, place_of_slot)
            targets |= zip(operation.outputs, step.outputs, strict=True)
            for number in operation.numbers:
                register[number] = self._number_register(place + offset, operation.calls[0])
        optimization = block.execution.optimization
        execute = block.execution.execute_optimization
        run = self._limited(execute, [step.plan for step in steps])
        inputs = tuple(register[slot] for slot in optimization.inputs)
        outputs = tuple(targets[slot] for slot in optimization.outputs)
        # A register is first released by the last step that uses its value from before the block.
        released = {register for step in steps for register in step.released}
        dying = tuple(sorted(released.intersection(inputs)))
        # With limits, an execution may fail after everything was written.
        if not dying or run != execute:
            return (MANY_OUTPUTS, run, inputs, 0, outputs)
        return (FUSED, run, inputs, dying, outputs)

    def _number_register(self, place: int, call: ElementwiseCall) -> int:
        """Return a register for the constant of a call.

        Steps with the same plan and numbers share one: an update of 100 parameters binds each
        number once for each shape, not once for each parameter, which took longer than the kernels.
        """
        step = self.steps[place]
        register = self.input_count + len(self._registers)
        if step.numbers:
            known = self._shared_registers.setdefault((id(step.plan), step.numbers), register)
            if known != register:
                return known
            self._number_registers.append((register, place))
        self._registers.append(call.constants[0])
        return register

    def _elementwise(
        self,
        place: int,
        step: Step,
        private: set[int],
        orders: _MemoryOrders,
        bound: dict[Plan, tuple[ElementwiseCall, ...]],
    ) -> tuple[Any, ...] | None:
        """Return form, kernel and operands of a step that is one elementwise call of two operands.

        A call from the loop without a function of Python between them takes half the time. If an
        operand in ``private`` dies, the result takes its memory: 0.87 times the time for small
        arrays, and half of it at 64 KiB. One that is not in C order keeps its memory if there are
        two operands: the result may have another order. Updates ``private``, ``orders`` and
        ``bound``.
        """
        plan = step.plan
        if plan.error is not None or not plan.is_bare:
            return None
        if step.numbers:
            fields, arguments = plan.signature.row.fields, plan.signature.arguments
            values = {fields[field].name: arguments[field].value for field, _ in step.numbers}
            calls = self._session.bind_elementwise(plan.signature, values)
        else:
            if plan not in bound:
                bound[plan] = self._session.bind_elementwise(plan.signature)
            calls = bound[plan]
        if len(calls) != 1 or len(step.inputs) + len(calls[0].constants) not in (1, 2):
            return None
        function, constants, into = calls[0]
        if step.numbers and not constants:
            return None
        is_ufunc = into is function
        dying = private.intersection(step.released, _inputs_like_output(step)) if is_ufunc else ()
        if not dying and _reusable_inputs(step):
            return None
        operands = [*step.inputs]
        if constants:
            operands.append(self._number_register(place, calls[0]))
        form = ONE_INPUT if len(operands) == 1 else TWO_INPUTS
        if dying:
            self.overwriting.add(place)
            form = _overwriting_form(operands, dying, orders)
        orders.note(step, is_ufunc=is_ufunc)
        if is_ufunc:
            private.difference_update(step.released)
            private.update(step.outputs)
        else:
            private.difference_update(step.inputs, step.outputs)
        return (form, function, *[*operands, 0][:2], step.outputs[0])

    def _sizes(self, step: Step) -> dict[int, int]:
        uses = step.plan.signature.input_uses
        sizes = {
            register: memory_bytes(use.spec)
            for register, use in zip(step.inputs, uses, strict=True)
        }
        specs = step.plan.signature.outputs
        return sizes | {
            register: memory_bytes(spec) for register, spec in zip(step.outputs, specs, strict=True)
        }


class _MemoryOrders:
    """The registers whose arrays are in C order if the inputs in ``assumed`` are.

    A ufunc's result is in C order if an operand of its shape is: NumPy prefers C order where the
    orders of operands differ. Other kernels may return arrays in any order.
    """

    def __init__(self, input_count: int) -> None:
        self.assumed: set[int] = set()
        self._inputs = {*range(input_count)}
        self._known = {*self._inputs}

    def __contains__(self, register: int) -> bool:
        return register in self._known

    def note(self, step: Step, *, is_ufunc: bool) -> None:
        """Note the order of a step's results."""
        sources = self._known.intersection(_inputs_like_output(step)) if is_ufunc else set()
        if sources and sources <= self._inputs:
            self.assumed.add(min(sources))
        self._inputs.difference_update(step.outputs)
        self._known.difference_update(step.outputs)
        if sources:
            self._known.update(step.outputs)


class _Kernels:
    """The kernels of a program; each occurs once in ``found``, at its ``place``."""

    def __init__(self) -> None:
        self.found: list[Any] = []
        # By identity: a kernel may define its own equality. ``found`` keeps them alive.
        self._places: dict[int, int] = {}

    def place(self, kernel: Any) -> int:
        """Return the place of a kernel, which is added if it is new."""
        place = self._places.setdefault(id(kernel), len(self.found))
        if place == len(self.found):
            self.found.append(kernel)
        return place


def _overwriting_form(
    operands: Sequence[int], dying: Collection[int], orders: _MemoryOrders
) -> int:
    """Return the form of a step whose result takes the memory of an operand in ``dying``."""
    if len(operands) == 1:
        return INTO_ONLY
    form = INTO_FIRST if operands[0] in dying else INTO_SECOND
    into = operands[form == INTO_SECOND]
    return form if into in orders else _CHECKED[form]


def _instruction(place: int, step: Step) -> tuple[Any, ...]:
    """Return form, kernel and operands of a step."""
    plan, inputs = step.plan, step.inputs
    target: Any = step.outputs[0] if plan.gives_one else step.outputs
    if step.numbers:
        return (NUMBERED, None, inputs, _reusable_inputs(step), target)
    if plan.error is not None:
        return (FAILED, plan, 0, 0, 0)
    run = plan.run
    if not plan.gives_one:
        return (MANY_OUTPUTS, run, inputs, 0, target)
    candidates = _reusable_inputs(step)
    if candidates:
        return (REUSING, plan, inputs, candidates, target)
    if len(inputs) == 2:
        return (TWO_INPUTS, run, *inputs, target)
    if len(inputs) == 1:
        return (ONE_INPUT, run, inputs[0], 0, target)
    return (MANY_INPUTS if inputs else NO_INPUT, run, inputs, 0, target)


def _cost(step: Step) -> int:
    return step.plan.cost + CALL_COST + PREPARE_COST * len(step.numbers)


def _reusable_inputs(step: Step) -> tuple[int, ...]:
    """Return the registers of the inputs whose memory the result of a step may take."""
    return tuple(
        step.inputs[position]
        for position in step.plan.reusable
        if step.inputs[position] in step.released and step.inputs.count(step.inputs[position]) == 1
    )


def _inputs_like_output(step: Step) -> list[int]:
    """Return the registers of the inputs that have the shape and dtype of the only output."""
    (out,) = step.plan.signature.outputs
    uses = step.plan.signature.input_uses
    return [register for register, use in zip(step.inputs, uses, strict=True) if use.spec == out]
