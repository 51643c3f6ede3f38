"""Optimizations that execute their operations as a program over blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler
from burn_remote_protocol.tensors import Shape, TensorSpec
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.fusion.cpu.block_program import BlockProgram, Operand
from burn_remote_server.fusion.cpu.block_schedules import Instruction, Width
from burn_remote_server.fusion.cpu.exact_operations import ExactStep, exact_steps
from burn_remote_server.fusion.cpu.kernel_compiler import KernelCompiler
from burn_remote_server.fusion.fuser import Optimization, OptimizationState, StreamOperation
from burn_remote_server.fusion.optimization_state import state_of

__all__ = [
    "BlockOptimization",
    "bytes_saved",
    "exact_steps_of",
    "gives",
    "is_exact",
    "reused_inputs",
]


class BlockOptimization(Optimization):
    """Operations that are executed block by block.

    Each result has one common shape, or one element for each row of this shape. ``program_inputs``
    has the shapes and dtypes of the inputs.
    """

    reuses_inputs: ClassVar[bool] = True

    def __init__(
        self,
        shape: Shape,
        operations: Sequence[StreamOperation],
        compiler: KernelCompiler | None = None,
    ) -> None:
        super().__init__(shape, operations)
        made = {each.outputs[0]: place for place, each in enumerate(operations)}
        inputs: dict[int, Operand] = {}
        constants: list[Any] = []
        for each in operations:
            for tensor, use in zip(each.inputs, each.signature.input_uses, strict=True):
                if tensor not in made:
                    inputs[tensor] = Operand(use.spec.shape, array_dtype(use.spec.dtype))
            for number in each.numbers:
                inputs[number] = Operand((), each.calls[0].constants[0].dtype)
            if each.calls and not each.numbers:
                constants += each.calls[0].constants
        self.program_inputs = tuple(inputs.values())
        value = {tensor: place for place, tensor in enumerate(inputs)}
        constant, first = len(inputs), len(inputs) + len(constants)
        value |= {tensor: first + place for tensor, place in made.items()}
        instructions: list[Instruction] = []
        for each in operations:
            (out,) = each.signature.outputs
            width = Width(array_dtype(out.dtype), out.shape != shape)
            operands = [value[tensor] for tensor in (*each.inputs, *each.numbers)]
            if each.reduction is not None:
                function = each.reduction.function
                instructions.append(Instruction(function, None, tuple(operands), width, True))
                continue
            (call,) = each.calls
            if not each.numbers:
                operands += range(constant, constant + len(call.constants))
                constant += len(call.constants)
            exact = exact_steps_of(each)
            instructions.append(
                Instruction(call.function, call.into, tuple(operands), width, False, exact)
            )
        self._program = BlockProgram(
            shape,
            [*inputs.values()],
            constants,
            instructions,
            [value[tensor] for tensor in self._outputs],
            compiler,
        )

    @property
    def runs_compiled(self) -> bool:
        """Whether the last execution used compiled kernels."""
        return self._program.runs_compiled

    def execute(self, inputs: Sequence[Any], reusable: Sequence[int] = ()) -> list[Any] | None:
        return self._program.run(inputs, reusable)

    def to_state(self) -> OptimizationState:
        return state_of(self.name, self._shape, self._operations)


def exact_steps_of(operation: StreamOperation) -> tuple[ExactStep, ...] | None:
    """Return an operation as exact functions, or ``None`` if it is not exact."""
    if not operation.calls:
        return None
    dtypes = [array_dtype(use.spec.dtype) for use in operation.signature.input_uses]
    dtypes += [number.dtype for number in operation.calls[0].constants]
    return exact_steps(operation, dtypes, array_dtype(operation.signature.outputs[0].dtype))


def is_exact(operation: StreamOperation) -> bool:
    """Whether a kernel can compute an operation."""
    return exact_steps_of(operation) is not None


def _dying(operations: Sequence[StreamOperation]) -> frozenset[int]:
    return frozenset[int]().union(*[each.dying for each in operations])


def bytes_saved(operations: Sequence[StreamOperation]) -> tuple[int, int]:
    """Return how many results only the run itself uses, and the saved bytes of memory traffic.

    Such a result is neither written to memory nor read from it.
    """
    dying = _dying(operations)
    inside = [each.signature.outputs[0].nbytes for each in operations if each.outputs[0] in dying]
    return len(inside), 2 * sum(inside)


def reused_inputs(operations: Sequence[StreamOperation]) -> int:
    """Count the dying inputs whose memory single operations would reuse for the outputs."""
    dying = _dying(operations)
    made = {each.outputs[0] for each in operations}
    reused = {
        tensor
        for each in operations
        for tensor, use in zip(each.inputs, each.signature.input_uses, strict=True)
        if tensor in dying and tensor not in made and use.spec == each.signature.outputs[0]
    }
    return min(len(reused), len(made - dying))


def gives(operation: StreamOperation, out: TensorSpec) -> bool:
    """Whether an element-wise function returns the declared shape and dtype; calls it with ones."""
    (call,) = operation.calls
    uses = operation.signature.input_uses
    wanted = array_dtype(out.dtype)
    constants = call.constants
    try:
        shapes = [use.spec.shape for use in uses]
        if np.broadcast_shapes(*shapes) != out.shape:
            return False
        ones = [np.ones((1,) * len(out.shape), array_dtype(use.spec.dtype)) for use in uses]
        with np.errstate(all="ignore"):
            result = call.function(*ones, *constants)
    except Exception as error:  # the single operation will raise this error too, and report it
        pass_on_of_signal_handler(error)
        return False
    return bool(result.dtype == wanted)
