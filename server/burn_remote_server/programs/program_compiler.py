"""The compilation of a graph's steps to a program.

``ProgramCompiler`` goes through the steps once. It chooses the forms of their instructions and the
operands whose memory results may take, and it replaces each block of fused steps by one
instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from burn_remote_protocol.tensors import Shape, TensorSpec
from burn_remote_server.backends.interface import BackendSession, ElementwiseCall, Run
from burn_remote_server.fusion.fuser import DirectCall
from burn_remote_server.fusion.optimization_search import Block
from burn_remote_server.programs.graph_definitions import FREED_BYTES, Step
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
    MANY_OUTPUTS,
    MAY_REUSE,
    NO_INPUT,
    NUMBERED,
    ONE_INPUT,
    REUSING,
    TWO_INPUTS,
    UNPACKED,
    Instruction,
)
from burn_remote_server.programs.plans import Plan
from burn_remote_server.tensors.allocations import memory_bytes

__all__ = ["STOP_COST", "CompiledProgram", "ProgramCompiler", "step_cost"]

# Estimated time, in nanoseconds, between two checks of whether the session has ended.
STOP_COST: Final = 10_000_000

# Calling a kernel from the loop, in nanoseconds, and preparing a step again for new numbers.
CALL_COST: Final = 300
PREPARE_COST: Final = 30_000

# The forms that overwrite one of two operands, and the forms that first check its order.
_CHECKED: Final = {INTO_FIRST: CHECKED_FIRST, INTO_SECOND: CHECKED_SECOND}


class CompiledProgram(NamedTuple):
    """A program, and what is known about it.

    ``instructions`` are valid if the inputs in ``assumed`` are in C order; ``checked`` are valid
    for any order. Both refer to ``kernels`` by place. ``direct_calls`` has, by place, the calls of
    kernels that may be replaced by compiled ones; ``distinct_calls`` of them differ. ``places`` has
    the step of each instruction. ``blocks`` are the runs of steps that one instruction executes, by
    the place of their first step.

    ``registers`` are the initial values of the registers after those of the inputs.
    ``number_registers`` are the registers whose values follow from the numbers of a call, with the
    place of the step that reads them. Results may take the memory of ``reusable_inputs`` if these
    die. The instructions of the steps in ``overwriting`` overwrite an operand, so they cannot be
    repeated.
    """

    instructions: tuple[Instruction, ...]
    checked: tuple[Instruction, ...]
    kernels: list[Any]
    direct_calls: dict[int, DirectCall]
    distinct_calls: int
    places: list[int]
    assumed: tuple[int, ...]
    blocks: dict[int, Block]
    registers: list[Any]
    number_registers: list[tuple[int, int]]
    reusable_inputs: set[int]
    overwriting: set[int]


class ProgramCompiler:
    """Compiles the steps of one graph."""

    def __init__(
        self,
        steps: Sequence[Step],
        input_count: int,
        registers: Sequence[Any],
        blocks: Sequence[Block],
        session: BackendSession,
        limited: Callable[[Run, Sequence[Plan]], Run],
        check: Callable[[], None],
    ) -> None:
        """``limited`` and ``check`` are the arguments of ``GraphPlan``."""
        self._steps: Final = steps
        self._input_count: Final = input_count
        self._session: Final = session
        self._limited: Final = limited
        self._check: Final = check
        self.blocks: Final = {block.start: block for block in blocks}
        self.registers: Final = [*registers]
        self.number_registers: Final[list[tuple[int, int]]] = []
        # Registers of constants, by the identity of the plan, which the steps keep alive, and by
        # the numbers.
        self._shared_registers: dict[tuple[int, Any], int] = {}
        self.reusable_inputs: Final[set[int]] = set()
        self.overwriting: Final[set[int]] = set()
        self._instructions: list[Instruction] = []
        self._checked: list[Instruction] = []
        self._places: list[int] = []
        self._kernels = _Kernels()
        self._direct_calls: dict[int, DirectCall] = {}
        self._called_plans: set[tuple[Plan, ...]] = set()
        # Registers of results that nothing else can reference: ufuncs and products return new
        # arrays and keep no reference. Any other kernel may return a view of an input.
        self._private: set[int] = set()
        self._orders = _MemoryOrders(input_count)
        # The calls of plans, bound once: each binding may make new functions. By the plan and the
        # arguments that are numbers of the graph.
        self._bound: dict[tuple[Plan, tuple[int, ...]], tuple[ElementwiseCall, ...]] = {}
        self._large: dict[Plan, bool] = {}  # the plans with large tensors

    def compiled(self) -> CompiledProgram:
        """Return the program."""
        unread = {*range(self._input_count)}  # registers that still have inputs
        place = cost = 0
        while place < len(self._steps):
            block = self.blocks.get(place)
            joined = self._steps[place : place + 1 if block is None else block.end]
            cost += sum(map(step_cost, joined))
            if cost > STOP_COST and place:
                self._add((CHECK, self._kernels.place(self._check), 0, 0, 0), place)
                cost = 0
            end = self._compile(place)
            _, _, _, j, _ = instruction = self._instructions[-1]
            if instruction[0] in MAY_REUSE:
                self.reusable_inputs.update(unread.intersection(j))
            steps = self._steps[place:end]
            for step in steps:
                unread.difference_update(step.outputs)
            large = self._large_dead(steps)
            if large:
                self._add((FREE, 0, 0, 0, large), place)
            place = end
        return CompiledProgram(
            tuple(self._instructions),
            tuple(self._checked),
            self._kernels.found,
            self._direct_calls,
            len(self._called_plans),
            self._places,
            tuple(self._orders.assumed),
            self.blocks,
            self.registers,
            self.number_registers,
            self.reusable_inputs,
            self.overwriting,
        )

    def _add(
        self, instruction: Instruction, place: int, checked: Instruction | None = None
    ) -> None:
        """Append an instruction for the step at a place, and the one for inputs of any order."""
        form, *rest = instruction
        self._instructions.append(instruction)
        self._checked.append(checked or (_CHECKED.get(form, form), *rest))
        self._places.append(place)

    def _compile(self, place: int) -> int:
        """Append the instruction of a step, or of a block; return the place after it."""
        block = self.blocks.get(place)
        step = self._steps[place]
        if block is not None:
            steps = self._steps[place : block.end]
            direct = block.execution.optimization.direct_call
            if direct is None:
                form, kernel, *rest = self._fused(steps, place, block)
                self._note_results(steps, is_block=True)
                self._add((form, self._kernels.place(kernel), *rest), place)
                return block.end
            if self._called(steps, place, block, direct):
                return block.end
            del self.blocks[place]
        found = self._elementwise(place, step)
        if found is None:
            found = _instruction(place, step)
            self._note_results([step], is_block=False)
        form, kernel, *rest = found
        k = place if form == NUMBERED else self._kernels.place(kernel)
        self._add((form, k, *rest), place)
        return place + 1

    def _called(self, steps: Sequence[Step], place: int, block: Block, direct: DirectCall) -> bool:
        """Append the instruction of a block that is one function.

        Returns ``False`` if the single steps must run instead, because they have no output, or an
        output that may be in another order than C.
        """
        plans = [step.plan for step in steps]

        def limit(run: Run) -> Run:
            return self._limited(run, plans)

        has_limit = limit(direct.run) is not direct.run
        if has_limit:
            direct = _limited_call(direct, limit)
        inputs, targets = self._operands(steps, place, block)
        unknown = self._unknown_orders(steps, inputs)
        orders = self._orders.assuming(unknown)
        for step in steps:
            orders.note_strictly(step)
        is_ordered = bool(targets) and all(target in orders for target in targets)
        if not is_ordered or (unknown and len(targets) > 1):
            return False
        # With a limit, the call may fail after it has written its results, so overwrite nothing.
        dying = () if has_limit else self._overwritten(steps, inputs, targets, unknown)
        # A separate entry among the kernels, because a compiled function replaces it later.
        k = len(self._kernels.found)
        self._kernels.found += [partial(direct.run), direct.run]
        self._direct_calls[k] = direct
        self._called_plans.add(tuple(plans))
        if len(targets) > 1:
            instruction: Instruction = (UNPACKED, k, inputs, 0, targets)
            checked: Instruction = (UNPACKED, k + 1, inputs, 0, targets)
        else:
            (target,) = targets
            instruction = _call(k, inputs, dying, target)
            if unknown:
                operands = (*inputs, *dying)
                instruction = (CHECKED_MANY, k, operands, (unknown, len(inputs)), target)
                orders.forget((*unknown, target))
            checked = (MANY_INPUTS, k + 1, inputs, 0, target)
        self._add(instruction, place, checked)
        self._orders = orders
        for step in steps:
            if direct.makes_new_arrays:
                self._private.difference_update(step.released, step.outputs)
            else:
                self._private.difference_update(step.inputs, step.outputs)
        if direct.makes_new_arrays:
            self._private.update(targets)
        return True

    def _unknown_orders(self, steps: Sequence[Step], inputs: Sequence[int]) -> tuple[int, ...]:
        """Return the registers of the inputs of a block that each call must check for C order."""
        (out,) = steps[0].plan.signature.outputs
        specs = _specs_at_first_use(steps)
        return tuple(
            register
            for register in inputs
            if register in specs
            and specs[register].shape == out.shape
            and register not in self._orders
            and not _has_one_order(out.shape)
        )

    def _overwritten(
        self,
        steps: Sequence[Step],
        inputs: Sequence[int],
        targets: tuple[int, ...],
        checked: Sequence[int],
    ) -> tuple[int, ...]:
        """Return the register of the input whose memory the only output of a block takes, if any.

        Nothing else references that input, and it has the output's shape and dtype. Its order is
        known, or each call checks it because it is in ``checked``.
        """
        if len(targets) != 1:
            return ()
        (out,) = [step.plan.signature.outputs[0] for step in steps if step.outputs == targets][-1:]
        released = {register for step in steps for register in step.released}
        specs = _specs_at_first_use(steps)
        candidates = self._private & released
        return tuple(
            register
            for register in inputs
            if register in candidates
            and (register in self._orders or register in checked)
            and specs[register] == out
        )[:1]

    def _operands(
        self, steps: Sequence[Step], place: int, block: Block
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the registers of a block's inputs and outputs."""
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
        inputs = tuple(register[slot] for slot in optimization.inputs)
        return inputs, tuple(targets[slot] for slot in optimization.outputs)

    def _fused(self, steps: Sequence[Step], place: int, block: Block) -> tuple[Any, ...]:
        """Return the form, kernel and operands for steps that one optimization executes."""
        inputs, outputs = self._operands(steps, place, block)
        execute = block.execution.execute_optimization
        run = self._limited(execute, [step.plan for step in steps])
        # A register is first released by the last step that uses its value from before the block.
        released = {register for step in steps for register in step.released}
        dying = tuple(sorted(released.intersection(inputs)))
        # With limits, an execution may fail after it has written everything.
        if not dying or run != execute or not block.execution.optimization.reuses_inputs:
            return (MANY_OUTPUTS, run, inputs, 0, outputs)
        return (FUSED, run, inputs, dying, outputs)

    def _note_results(
        self,
        steps: Sequence[Step],
        *,
        is_block: bool,
    ) -> None:
        """Record the results of steps that are not a single ufunc."""
        for step in steps:
            is_new = not is_block and self._session.returns_new_array(step.plan.signature)
            self._private.difference_update(step.released if is_new else step.inputs, step.outputs)
            self._orders.note(step, is_ufunc=False)
            if is_new:
                self._private.update(step.outputs)
                self._orders.note_new(step)

    def _number_register(self, place: int, call: ElementwiseCall) -> int:
        """Return a register for the constant of a call.

        Steps with the same plan and numbers share one register. So an update of 100 parameters
        binds each number once for each shape. Binding it for each parameter took longer than the
        kernels.
        """
        step = self._steps[place]
        register = self._input_count + len(self.registers)
        if step.numbers:
            known = self._shared_registers.setdefault((id(step.plan), step.numbers), register)
            if known != register:
                return known
            self.number_registers.append((register, place))
        self.registers.append(call.constants[0])
        return register

    def _elementwise(
        self,
        place: int,
        step: Step,
    ) -> tuple[Any, ...] | None:
        """Return form, kernel and operands of a step that is one elementwise call of two operands.

        The loop then calls NumPy without a Python function in between, which takes half the time.
        If an operand in ``_private`` dies, the result takes its memory. That takes 0.87 times the
        time for small arrays, and half of it at 64 KiB. If there are two operands, only one in C
        order gives its memory, because otherwise the result could have another order.
        """
        plan = step.plan
        if plan.error is not None or not plan.is_bare:
            return None
        own = tuple([field for field, _ in step.numbers])
        if (plan, own) not in self._bound:
            fields, arguments = plan.signature.row.fields, plan.signature.arguments
            values = {fields[field].name: arguments[field].value for field in own}
            self._bound[plan, own] = self._session.bind_elementwise(plan.signature, values or None)
        calls = self._bound[plan, own]
        if len(calls) != 1 or len(step.inputs) + len(calls[0].constants) not in (1, 2):
            return None
        function, constants, into, is_slower = calls[0]
        if (step.numbers and not constants) or (is_slower and not step.numbers):
            return None
        is_ufunc = into is function
        dying = (
            self._private.intersection(step.released, _inputs_like_output(step))
            if is_ufunc and not plan.signature.outputs[0].dtype.is_complex
            else ()
        )
        if not dying and _reusable_inputs(step):
            return None
        operands = [*step.inputs]
        if constants:
            operands.append(self._number_register(place, calls[0]))
        form = ONE_INPUT if len(operands) == 1 else TWO_INPUTS
        if dying:
            self.overwriting.add(place)
            form = _overwriting_form(operands, dying, self._orders)
        self._orders.note(step, is_ufunc=is_ufunc)
        if is_ufunc:
            self._private.difference_update(step.released)
            self._private.update(step.outputs)
        else:
            self._private.difference_update(step.inputs, step.outputs)
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

    def _is_large(self, step: Step) -> bool:
        """Whether an input or output of a step has at least ``FREED_BYTES``."""
        found = self._large.get(step.plan)
        if found is None:
            signature = step.plan.signature
            specs = [use.spec for use in signature.input_uses] + [*signature.outputs]
            found = any(memory_bytes(spec) >= FREED_BYTES for spec in specs)
            self._large[step.plan] = found
        return found

    def _large_dead(self, steps: Sequence[Step]) -> tuple[int, ...]:
        """Return the registers whose values die here and have at least ``FREED_BYTES``."""
        if not any(map(self._is_large, steps)):
            return ()
        dead: dict[int, int] = {}
        for step in steps:
            sizes = self._sizes(step)
            dead |= {register: sizes[register] for register in step.released}
            for register in step.outputs:
                dead.pop(register, None)
            dead |= {register: sizes[register] for register in step.unused}
        return tuple(register for register, size in dead.items() if size >= FREED_BYTES)


class _MemoryOrders:
    """The registers whose arrays are in C order, provided that the inputs in ``assumed`` are.

    A ufunc's result is in C order if an operand of its shape is: NumPy prefers C order where the
    orders of operands differ. Other kernels may return arrays in any order.
    """

    def __init__(self, input_count: int) -> None:
        self.assumed: set[int] = set()
        self._inputs = {*range(input_count)}
        self._known = {*self._inputs}

    def assuming(self, registers: Collection[int]) -> _MemoryOrders:
        """Return a copy that assumes C order for these registers."""
        copied = _MemoryOrders(0)
        copied.assumed = {*self.assumed}
        copied._inputs, copied._known = {*self._inputs}, {*self._known, *registers}
        return copied

    def forget(self, registers: Collection[int]) -> None:
        """Note that the order of these registers is not known."""
        self._known.difference_update(registers)

    def __contains__(self, register: int) -> bool:
        return register in self._known

    def note(self, step: Step, *, is_ufunc: bool) -> None:
        """Note the order of a step's results."""
        sources = self._known.intersection(_inputs_of_shape(step)) if is_ufunc else set()
        if sources and sources <= self._inputs:
            self.assumed.add(min(sources))
        self._set(step, is_known=bool(sources))

    def note_strictly(self, step: Step) -> None:
        """Note a result that is in C order if all inputs of its shape are."""
        if _has_one_order(step.plan.signature.outputs[0].shape):
            self._set(step, is_known=True)
            return
        sources = {*_inputs_of_shape(step)}
        is_known = sources <= self._known
        if is_known:
            self.assumed |= sources & self._inputs
        self._set(step, is_known=is_known)

    def _set(self, step: Step, *, is_known: bool) -> None:
        self._inputs.difference_update(step.outputs)
        if is_known:
            self._known.update(step.outputs)
        else:
            self._known.difference_update(step.outputs)

    def note_new(self, step: Step) -> None:
        """Note that a step returns a new array."""
        (out,) = step.plan.signature.outputs
        if len(out.shape) <= 2:
            self._known.update(step.outputs)


class _Kernels:
    """The kernels of a program; ``place`` adds a kernel to ``found`` once."""

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


def _call(k: int, inputs: tuple[int, ...], dying: tuple[int, ...], target: int) -> Instruction:
    """Return the instruction that calls a block's function; the result takes ``dying``'s memory."""
    if len(inputs) == 1:
        return (INTO_ONLY if dying else ONE_INPUT, k, *inputs, 0, target)
    if len(inputs) == 2:
        form = TWO_INPUTS
        if dying:
            form = INTO_FIRST if dying[0] == inputs[0] else INTO_SECOND
        return (form, k, *inputs, target)
    return (MANY_INPUTS, k, (*inputs, *dying), 0, target)


def _limited_call(direct: DirectCall, limit: Callable[[Run], Run]) -> DirectCall:
    """Return a call whose functions have a limit."""

    def compiled() -> tuple[Run | None, bool]:
        run, is_final = direct.compiled()
        return (None if run is None else limit(run)), is_final

    return DirectCall(limit(direct.run), compiled, direct.makes_new_arrays)


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


def step_cost(step: Step) -> int:
    """Return the estimated time of a step, in nanoseconds."""
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


def _inputs_of_shape(step: Step) -> list[int]:
    """Return the registers of the inputs that have the shape of the only output."""
    (out,) = step.plan.signature.outputs
    uses = step.plan.signature.input_uses
    return [
        register
        for register, use in zip(step.inputs, uses, strict=True)
        if use.spec.shape == out.shape
    ]


def _specs_at_first_use(steps: Sequence[Step]) -> dict[int, TensorSpec]:
    """Return the spec of each register that the steps read, before any of them runs.

    A register may get another value in these steps.
    """
    specs: dict[int, TensorSpec] = {}
    for step in steps:
        for register, use in zip(step.inputs, step.plan.signature.input_uses, strict=True):
            specs.setdefault(register, use.spec)
    return specs


def _has_one_order(shape: Shape) -> bool:
    """Whether arrays of a shape have only one order: at most one axis is longer than 1."""
    return sum(length > 1 for length in shape) <= 1
