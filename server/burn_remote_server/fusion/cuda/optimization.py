"""Optimizations that execute their operations as one CUDA kernel, and their fusers.

The cost of a small operation on a GPU is the launch of its kernel, about 10 µs of the server's
time. The cost of a large one is the memory traffic of its operands. Operations that run as one
kernel pay both only once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final, Self

import cupy
import numpy as np

from burn_remote_protocol.tensors import Shape
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.backends.cupy.cuda_expressions import expression_of
from burn_remote_server.backends.cupy.launches import PreparedLaunch, is_c_ordered, number_structure
from burn_remote_server.backends.cupy.new_arrays import new_array
from burn_remote_server.fusion.background_compiler import BackgroundCompiler
from burn_remote_server.fusion.cuda.kernel_source import KernelStep
from burn_remote_server.fusion.fuser import Optimization, OptimizationState, StreamOperation
from burn_remote_server.fusion.optimization_state import state_of
from burn_remote_server.fusion.run_fuser import RunFuser

__all__ = ["Compiler", "CudaFuser", "CudaOptimization", "Inputs"]

Compiler = BackgroundCompiler[Any]

# The shape and dtype of each input.
Inputs = Sequence[tuple[Shape, "np.dtype[Any]"]]


class CudaOptimization(Optimization):
    """Operations as one kernel, for inputs in C order.

    ``function`` is the kernel's name in its source. ``grid`` and ``block`` are the sizes with which
    it is launched.
    """

    function: str
    grid: Sequence[int]
    block: Sequence[int]

    def __init__(
        self, shape: Shape, operations: Sequence[StreamOperation], compiler: Compiler
    ) -> None:
        super().__init__(shape, operations)
        self._compiler: Final = compiler
        made = {each.outputs[0]: each.signature.outputs[0].shape for each in operations}
        inputs: dict[int, tuple[Shape, Any]] = {}
        for each in operations:
            for tensor, use in zip(each.inputs, each.signature.input_uses, strict=True):
                if tensor not in made:
                    inputs[tensor] = use.spec.shape, array_dtype(use.spec.dtype)
            for tensor in each.numbers:
                inputs[tensor] = (), array_dtype(each.signature.input_uses[0].spec.dtype)
        self._expected: Final = tuple(inputs.values())
        value = {tensor: place for place, tensor in enumerate(inputs)}
        steps: list[KernelStep] = []
        for each in operations:
            operands = tuple(value[tensor] for tensor in (*each.inputs, *each.numbers))
            steps += self._steps(each, operands, len(inputs) + len(steps))
            value[each.outputs[0]] = len(inputs) + len(steps) - 1
        kept = [value[tensor] for tensor in self._outputs]
        self._results: Final = [
            (made[tensor], steps[place - len(inputs)].expression.dtype)
            for tensor, place in zip(self._outputs, kept, strict=True)
        ]
        self._source: Final = self._kernel_source(self._expected, steps, kept)
        self._values: Final = (
            *number_structure([number for step in steps for number in step.expression.numbers]),
            *self._last_values(),
        )
        # Kept here, because a captured graph must not outlive its kernels.
        self._kernel: PreparedLaunch | None = None

    def _steps(
        self, operation: StreamOperation, operands: tuple[int, ...], first: int
    ) -> list[KernelStep]:
        """Return the steps of an operation, whose results are the values from ``first`` on."""
        expression = expression_of(operation.signature)
        assert expression is not None  # the fuser accepted it
        if operation.numbers:  # arrays take the place of the constants
            expression = expression._replace(numbers=())
        return [KernelStep(expression, operands)]

    @abstractmethod
    def _kernel_source(
        self, inputs: Inputs, steps: Sequence[KernelStep], kept: Sequence[int]
    ) -> str:
        """Return the source of the kernel ``(inputs…, outputs…, numbers, last values…)``."""

    def _last_values(self) -> Sequence[Any]:
        """Return the last arguments of the kernel, arrays that are passed by value."""
        return ()

    def _pointers(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the arrays that are passed to the kernel for the inputs."""
        return inputs

    @property
    def is_final(self) -> bool:
        return self._kernel is not None or self._compiler.is_final(self._source)

    def execute(self, inputs: Sequence[Any], reusable: Sequence[int] = ()) -> list[Any] | None:
        # Inputs are never overwritten: CuPy's pool reuses freed memory without a system call.
        kernel = self._kernel
        if kernel is None:
            found = self._compiler.found(self._source, (self.function,))
            if found is None:
                return None
            count = len(self._inputs) + len(self._outputs)
            kernel = PreparedLaunch(found.kernel, self.grid, self.block, count, self._values)
            self._kernel = kernel
        for array, (shape, dtype) in zip(inputs, self._expected, strict=True):
            if array.shape != shape or array.dtype != dtype or not is_c_ordered(array):
                return None
        read = self._pointers(inputs)  # these arrays live until the kernel is queued
        outputs = [new_array(shape, dtype) for shape, dtype in self._results]
        pointers = kernel.pointers
        for place, array in enumerate((*read, *outputs)):
            pointers[place] = array.data.ptr
        kernel.run(cupy.cuda.get_current_stream().ptr)
        return outputs

    def to_state(self) -> OptimizationState:
        return state_of(self.name, self._shape, self._operations)


class CudaFuser(RunFuser):
    """Collects operations of one shape for an optimization on a GPU."""

    # Each operation after the first saves a launch, whatever the size of its result.
    least_bytes: ClassVar[int] = 1
    optimization: ClassVar[type[CudaOptimization]]

    def __init__(self, compiler: Compiler) -> None:
        self._compiler: Final = compiler
        super().__init__()

    def finish(self) -> Optimization:
        assert self._shape is not None
        return self.optimization(self._shape, self._operations, self._compiler)

    def _empty(self) -> Self:
        return type(self)(self._compiler)
