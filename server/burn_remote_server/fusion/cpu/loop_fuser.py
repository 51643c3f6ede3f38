"""The fuser for small arrays: exact operations on them become one ufunc.

A graph calls the ufunc as it calls NumPy's own ufuncs, so a run of operations takes the time of one
call. Examples are the updates of many small parameters (Burn's "foreach"), and the operations on a
product, whose result takes the memory of the product. The elements of arrays below
``MAX_LOOP_ELEMENTS`` stay in the cache, so most of the time of their operations is that of calls.

The results have the same bits as those of single operations in every layout, because each function
is exact. They are in C order if the results of the single operations are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, Final, Self

import numpy as np

from burn_remote_protocol.tensors import Shape
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.backends.interface import ElementwiseCall, Run
from burn_remote_server.fusion.cpu.block_optimization import (
    bytes_saved,
    exact_steps_of,
    gives,
    is_exact,
)
from burn_remote_server.fusion.cpu.exact_operations import returns_new_array
from burn_remote_server.fusion.cpu.kernel_compiler import KernelCompiler
from burn_remote_server.fusion.cpu.kernel_source import KernelArray, KernelStep
from burn_remote_server.fusion.cpu.loop_source import LOOP_NAME, loop_source
from burn_remote_server.fusion.cpu.ufuncs import (
    MAX_UFUNC_ARRAYS,
    CompiledUfunc,
    compiled_ufunc,
)
from burn_remote_server.fusion.fuser import (
    DirectCall,
    FuserProperties,
    Optimization,
    OptimizationState,
    StreamOperation,
)
from burn_remote_server.fusion.optimization_state import state_of
from burn_remote_server.fusion.run_fuser import RunFuser

__all__ = ["LoopFuser", "LoopOptimization"]

# From here on, ``ElementwiseFuser`` takes the same operations.
MAX_LOOP_ELEMENTS: Final = 256 * 1024


class LoopOptimization(Optimization):
    """Exact operations with results of one shape, which run as one ufunc once it is compiled."""

    name: ClassVar[str] = "loop"

    def __init__(
        self,
        shape: Shape,
        operations: Sequence[StreamOperation],
        compiler: KernelCompiler | None = None,
    ) -> None:
        super().__init__(shape, operations)
        self._compiler = compiler
        self._ufunc: CompiledUfunc | None = None
        made = [each.outputs[0] for each in operations]
        arrays: dict[int, KernelArray] = {}
        constants: list[Any] = []
        for each in operations:
            for tensor, use in zip(each.inputs, each.signature.input_uses, strict=True):
                if tensor not in made:
                    spec = use.spec
                    is_row = spec.shape[-1] == shape[-1]
                    arrays[tensor] = KernelArray(array_dtype(spec.dtype), is_row)
            for number in each.numbers:
                arrays[number] = KernelArray(each.calls[0].constants[0].dtype, is_row=False)
            if not each.numbers:
                constants += each.calls[0].constants
        self._arrays = arrays
        self._constants = tuple(constants)
        self._first = len(arrays) + len(constants)
        value = {tensor: place for place, tensor in enumerate(arrays)}
        value |= {tensor: self._first + place for place, tensor in enumerate(made)}
        self._results = [value[tensor] for tensor in self._outputs]
        self._calls: list[tuple[ElementwiseCall, list[int]]] = []
        constant = len(arrays)
        for each in operations:
            operands = [value[tensor] for tensor in (*each.inputs, *each.numbers)]
            if not each.numbers:
                operands += range(constant, constant + len(each.calls[0].constants))
                constant += len(each.calls[0].constants)
            self._calls.append((each.calls[0], operands))

    @property
    def program_inputs(self) -> tuple[KernelArray, ...]:
        """The dtypes of the inputs, and whether they have the length of the last axis."""
        return tuple(self._arrays.values())

    def execute(self, inputs: Sequence[Any], reusable: Sequence[int] = ()) -> list[Any] | None:
        results = self._computed(inputs)
        return [results[value] for value in self._results]

    def to_state(self) -> OptimizationState:
        return state_of(self.name, self._shape, self._operations)

    # -- direct calls -------------------------------------------------------------------------

    @property
    def direct_call(self) -> DirectCall | None:
        are_new = all(map(returns_new_array, self._operations))
        return DirectCall(self._call_operations, self._compiled, are_new)

    def _call_operations(self, *arrays: Any) -> Any:
        """Call the functions of the single operations; take the arguments of the ufunc."""
        count = len(self._arrays)
        values = self._computed(arrays[:count])
        if len(self._results) > 1:
            return tuple([values[value] for value in self._results])
        result = values[self._results[0]]
        if len(arrays) > count:
            np.copyto(arrays[count], result, "no")
            return arrays[count]
        return result

    def _computed(self, inputs: Sequence[Any]) -> list[Any]:
        values = [*inputs, *self._constants]
        for call, operands in self._calls:
            values.append(call.function(*[values[operand] for operand in operands]))
        return values

    def _compiled(self) -> tuple[Run | None, bool]:
        """Return the ufunc if it is compiled, and whether that will not change."""
        if self._compiler is None:
            return None, True
        dtypes = [each.dtype for each in self._arrays.values()]
        dtypes += [self._dtype(value) for value in self._results]
        found, is_final = compiled_ufunc(
            self._compiler, self.source, LOOP_NAME, dtypes, len(self._arrays)
        )
        if found is None:
            return None, is_final
        self._ufunc = found
        return found.function, True

    def _dtype(self, value: int) -> Any:
        out = self._operations[value - self._first].signature.outputs[0]
        return array_dtype(out.dtype)

    @cached_property
    def source(self) -> str:
        """The assembly of the loop."""
        steps: list[KernelStep] = []
        number: dict[int, int] = {value: value for value in range(self._first)}
        for place, (each, (_, operands)) in enumerate(
            zip(self._operations, self._calls, strict=True)
        ):
            values = [number[operand] for operand in operands]
            for step in exact_steps_of(each) or ():
                chosen = tuple(values[operand] for operand in step.operands)
                values.append(self._first + len(steps))
                steps.append(KernelStep(step.name, chosen, step.dtype))
            number[self._first + place] = values[-1]
        return loop_source(
            [*self._arrays.values()],
            self._constants,
            steps,
            [number[value] for value in self._results],
        )


class LoopFuser(RunFuser):
    """Collects exact operations with small results of one shape."""

    least_bytes: ClassVar[int] = 0

    def __init__(self, compiler: KernelCompiler) -> None:
        self._compiler: Final = compiler
        # The results of trials, by the identity of signatures, which the plans of the stream keep
        # alive. A program often repeats few signatures, and a trial takes longer than all other
        # checks.
        self._tried: dict[int, bool] = {}
        self._tensors: set[int] = set()
        super().__init__()

    def _accepted_shape(self, operation: StreamOperation) -> Shape | None:
        if len(operation.calls) != 1 or len(operation.outputs) != 1:
            return None
        (out,) = operation.signature.outputs
        if self._shape not in (None, out.shape) or not out.shape:
            return None
        tensors = {*operation.inputs, *operation.numbers, *operation.outputs}
        if len(self._tensors | tensors) > MAX_UFUNC_ARRAYS or not self._is_taken(operation):
            return None
        self._tensors |= tensors
        return out.shape

    def _is_taken(self, operation: StreamOperation) -> bool:
        key = id(operation.signature)
        known = self._tried.get(key)
        if known is None:
            (out,) = operation.signature.outputs
            shapes = [use.spec.shape for use in operation.signature.input_uses]
            known = self._tried[key] = (
                0 < math.prod(out.shape) < MAX_LOOP_ELEMENTS
                # Results are then in C order if operands of their shape are.
                and out.shape in shapes
                and self._is_exact(operation)
                and gives(operation, out)
            )
        return known

    def _is_exact(self, operation: StreamOperation) -> bool:
        return is_exact(operation)

    def reset(self) -> None:
        super().reset()
        self._tensors = set()

    def finish(self) -> Optimization:
        assert self._shape is not None
        return LoopOptimization(self._shape, self._operations, self._compiler)

    def properties(self) -> FuserProperties:
        _, saved = bytes_saved(self._operations)
        # A loop of one of NumPy's own ufuncs would be no faster, unless that ufunc is slow.
        calls = sum(
            not isinstance(call.function, np.ufunc) or call.is_slower
            for call in [each.calls[0] for each in self._operations]
        )
        return FuserProperties(saved, ready=len(self._operations) > 1 or calls > 0)

    def _empty(self) -> Self:
        clone = type(self)(self._compiler)
        clone._tensors = {*self._tensors}
        return clone
