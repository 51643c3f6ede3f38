"""The fuser of element-wise operations: they run together, block by block.

A block of each intermediate result stays in the processor's cache, and results that die inside are
never written to memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np

from burn_remote_protocol.tensors import Shape, TensorSpec
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.fusion.array.block_program import BlockProgram, Instruction
from burn_remote_server.fusion.fuser import (
    FuserProperties,
    FuserStatus,
    OperationFuser,
    Optimization,
    StreamOperation,
)

__all__ = ["ElementwiseFuser", "ElementwiseOptimization"]

# Smallest results for which blocks pay: smaller ones stay in the cache anyway. With 256 Ki
# elements, blocks take between 0.9 and 1.1 of the time (`benchmarks/fusion.py --sizes`).
MIN_ELEMENTS: Final = 512 * 1024

# Blocks write new arrays, where single operations take the memory of an input that dies. For each
# such input, so many results must die inside, each of at least so many elements (measured:
# 5 results of 1 Mi elements give 1.05 times the speed, 3 of 4 Mi 1.03).
RESULTS_PER_INPUT: Final = 5
MIN_REUSING_ELEMENTS: Final = 2**20


class ElementwiseOptimization(Optimization):
    """Element-wise operations with results of one shape, in blocks."""

    name: ClassVar[str] = "elementwise"

    def __init__(self, shape: Shape, operations: Sequence[StreamOperation]) -> None:
        self._operations = tuple(operations)
        made = {each.outputs[0]: place for place, each in enumerate(operations)}
        dying = frozenset[int]().union(*[each.dying for each in operations])
        shapes: dict[int, Shape] = {}
        constants: list[Any] = []
        for each in operations:
            for tensor, use in zip(each.inputs, each.signature.input_uses, strict=True):
                if tensor not in made:
                    shapes[tensor] = use.spec.shape
            shapes |= dict.fromkeys(each.numbers, ())
            if not each.numbers:
                constants += each.calls[0].constants
        self._inputs = tuple(shapes)
        self._outputs = tuple(tensor for tensor in made if tensor not in dying)
        value = {tensor: place for place, tensor in enumerate(shapes)}
        constant, first = len(shapes), len(shapes) + len(constants)
        value |= {tensor: first + place for tensor, place in made.items()}
        instructions: list[Instruction] = []
        for each in operations:
            (call,) = each.calls
            operands = [value[tensor] for tensor in (*each.inputs, *each.numbers)]
            if not each.numbers:
                operands += range(constant, constant + len(call.constants))
                constant += len(call.constants)
            dtype = array_dtype(each.signature.outputs[0].dtype)
            instructions.append(Instruction(call.function, call.into, tuple(operands), dtype))
        self._program = BlockProgram(
            shape,
            [*shapes.values()],
            constants,
            instructions,
            [value[tensor] for tensor in self._outputs],
        )

    def __len__(self) -> int:
        return len(self._operations)

    @property
    def inputs(self) -> tuple[int, ...]:
        return self._inputs

    @property
    def outputs(self) -> tuple[int, ...]:
        return self._outputs

    def execute(self, inputs: Sequence[Any]) -> list[Any] | None:
        return self._program.run(inputs)


class ElementwiseFuser(OperationFuser):
    """Collects element-wise operations with results of one shape."""

    def __init__(self) -> None:
        self._operations: list[StreamOperation] = []
        self._shape: Shape | None = None
        self._status = FuserStatus.OPEN

    def fuse(self, operation: StreamOperation) -> None:
        if self._accepts(operation):
            self._shape = operation.signature.outputs[0].shape
            self._operations.append(operation)
        else:
            self._status = FuserStatus.CLOSED

    def _accepts(self, operation: StreamOperation) -> bool:
        if len(operation.calls) != 1 or len(operation.outputs) != 1:
            return False
        (out,) = operation.signature.outputs
        if math.prod(out.shape) < MIN_ELEMENTS or self._shape not in (None, out.shape):
            return False
        return _gives(operation, out)

    def finish(self) -> Optimization:
        assert self._shape is not None
        return ElementwiseOptimization(self._shape, self._operations)

    def reset(self) -> None:
        self._operations = []
        self._shape = None
        self._status = FuserStatus.OPEN

    def status(self) -> FuserStatus:
        return self._status

    def properties(self) -> FuserProperties:
        if self._shape is None:
            return FuserProperties(0, ready=False)
        dying = frozenset[int]().union(*[each.dying for each in self._operations])
        inside = [each for each in self._operations if each.outputs[0] in dying]
        # Each result that dies inside is neither written to memory nor read from it.
        saved = 2 * sum(each.signature.outputs[0].nbytes for each in inside)
        reused = self._reused_inputs(dying)
        is_large = not reused or math.prod(self._shape) >= MIN_REUSING_ELEMENTS
        pays = len(inside) >= max(1, RESULTS_PER_INPUT * reused)
        return FuserProperties(saved, ready=is_large and pays)

    def _reused_inputs(self, dying: frozenset[int]) -> int:
        """Count the inputs that die, whose memory single operations would take for the outputs."""
        made = {each.outputs[0] for each in self._operations}
        reused = {
            tensor
            for each in self._operations
            for tensor, use in zip(each.inputs, each.signature.input_uses, strict=True)
            if tensor in dying and tensor not in made and use.spec == each.signature.outputs[0]
        }
        return min(len(reused), len(made - dying))

    def __len__(self) -> int:
        return len(self._operations)

    def clone_dyn(self) -> OperationFuser:
        clone = ElementwiseFuser()
        clone._operations = [*self._operations]
        clone._shape, clone._status = self._shape, self._status
        return clone


def _gives(operation: StreamOperation, out: TensorSpec) -> bool:
    """Whether the function gives the declared shape and dtype, tried on single elements."""
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
    except Exception:
        return False
    return bool(result.dtype == wanted)
