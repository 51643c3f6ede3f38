"""The fuser of element-wise operations on a GPU: they run as one kernel.

A small operation on a GPU costs the launch of its kernel, some 10 µs of the server's time; a large
one costs the memory traffic of its operands. A fused run pays both once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Self

import cupy
import numpy as np

from burn_remote_protocol.tensors import Shape
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.fusion.background_compiler import BackgroundCompiler
from burn_remote_server.fusion.cuda.expressions import expression_of
from burn_remote_server.fusion.cuda.kernel_source import FUNCTION, KernelStep, kernel_source
from burn_remote_server.fusion.fuser import (
    FuserProperties,
    Optimization,
    OptimizationState,
    StreamOperation,
)
from burn_remote_server.fusion.optimization_state import state_of
from burn_remote_server.fusion.run_fuser import RunFuser

__all__ = ["CudaElementwiseFuser", "CudaElementwiseOptimization"]

# Threads of a block, and the most blocks: enough to fill the largest GPUs several times.
THREADS: Final = 256
MAX_BLOCKS: Final = 4096

Compiler = BackgroundCompiler[Callable[..., None]]


class CudaElementwiseOptimization(Optimization):
    """Element-wise operations with results of one shape, as one kernel."""

    name: ClassVar[str] = "cuda_elementwise"

    def __init__(
        self, shape: Shape, operations: Sequence[StreamOperation], compiler: Compiler
    ) -> None:
        self._shape: Final = shape
        self._operations: Final = tuple(operations)
        self._compiler: Final = compiler
        made = {each.outputs[0]: place for place, each in enumerate(operations)}
        dying = frozenset[int]().union(*[each.dying for each in operations])
        inputs: dict[int, tuple[Shape, Any]] = {}
        for each in operations:
            for tensor, use in zip(each.inputs, each.signature.input_uses, strict=True):
                if tensor not in made:
                    inputs[tensor] = use.spec.shape, array_dtype(use.spec.dtype)
            for tensor in each.numbers:
                inputs[tensor] = (), array_dtype(each.signature.input_uses[0].spec.dtype)
        self._inputs: Final = tuple(inputs)
        self._expected: Final = tuple(inputs.values())
        self._outputs: Final = tuple(tensor for tensor in made if tensor not in dying)
        value = {tensor: place for place, tensor in enumerate(inputs)}
        value |= {tensor: len(inputs) + place for tensor, place in made.items()}
        steps = []
        for each in operations:
            expression = expression_of(each.signature)
            assert expression is not None  # the fuser accepted it
            if each.numbers:  # arrays take the place of the constants
                expression = expression._replace(numbers=())
            operands = tuple(value[tensor] for tensor in (*each.inputs, *each.numbers))
            steps.append(KernelStep(expression, operands))
        self._numbers: Final = _structure(
            [number for step in steps for number in step.expression.numbers]
        )
        kept = [value[tensor] for tensor in self._outputs]
        self._dtypes: Final = [steps[place - len(inputs)].expression.dtype for place in kept]
        self._source: Final = kernel_source(shape, self._expected, steps, kept)
        blocks = -(-math.prod(shape) // THREADS)
        self._grid: Final = (min(blocks, MAX_BLOCKS),)
        # Kept here, because a captured graph must not outlive its kernels.
        self._kernel: Callable[..., None] | None = None

    def __len__(self) -> int:
        return len(self._operations)

    @property
    def inputs(self) -> tuple[int, ...]:
        return self._inputs

    @property
    def outputs(self) -> tuple[int, ...]:
        return self._outputs

    @property
    def is_settled(self) -> bool:
        return self._kernel is not None or self._compiler.is_settled(self._source)

    def execute(self, inputs: Sequence[Any], reusable: Sequence[int] = ()) -> list[Any] | None:
        # Inputs are never overwritten: CuPy's pool reuses freed memory without a system call.
        kernel = self._kernel
        if kernel is None:
            kernel = self._kernel = self._compiler.found(self._source, (FUNCTION,))
            if kernel is None:
                return None
        for array, (shape, dtype) in zip(inputs, self._expected, strict=True):
            if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
                return None
        outputs = [cupy.empty(self._shape, dtype) for dtype in self._dtypes]
        kernel(self._grid, (THREADS,), (*inputs, *self._numbers, *outputs))
        return outputs

    def to_state(self) -> OptimizationState:
        return state_of(self.name, self._shape, self._operations)


def _structure(numbers: Sequence[Any]) -> tuple[Any, ...]:
    """Return the kernel's argument for all numbers: CuPy takes 1 µs for each argument."""
    if not numbers:
        return ()
    fields = [(f"n{place}", number.dtype) for place, number in enumerate(numbers)]
    # CuPy passes an array of one element by value.
    return (np.array([tuple(numbers)], np.dtype(fields, align=True)),)


class CudaElementwiseFuser(RunFuser):
    """Collects element-wise operations with results of one shape."""

    least_bytes: ClassVar[int] = 1

    def __init__(self, compiler: Compiler) -> None:
        self._compiler: Final = compiler
        super().__init__()

    def _accepted_shape(self, operation: StreamOperation) -> Shape | None:
        if not operation.calls or len(operation.outputs) != 1:
            return None
        (out,) = operation.signature.outputs
        if self._shape not in (None, out.shape) or not math.prod(out.shape):
            return None
        expression = expression_of(operation.signature)
        if expression is None or len(operation.numbers) not in (0, len(expression.numbers)):
            return None
        return out.shape

    def finish(self) -> Optimization:
        assert self._shape is not None
        return CudaElementwiseOptimization(self._shape, self._operations, self._compiler)

    def properties(self) -> FuserProperties:
        # Each operation but the first saves a launch, which costs more than anything else here.
        return FuserProperties(len(self._operations), ready=len(self._operations) > 1)

    def _empty(self) -> Self:
        return type(self)(self._compiler)
