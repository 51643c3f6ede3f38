"""The fuser of small arrays for single operations around an exponential.

The gradient of GELU and the logistic function consist of exact operations before and after one
exponential. One compiled ufunc computes the part before it, another one the part after it, and
NumPy computes the exponential. So the results have the bits of the single operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np

from burn_remote_protocol.tensors import Shape
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.backends.interface import Run
from burn_remote_server.fusion.cpu.exact_operations import (
    AroundExponential,
    ExactStep,
    around_exponential,
)
from burn_remote_server.fusion.cpu.kernel_source import KernelArray, KernelStep
from burn_remote_server.fusion.cpu.loop_fuser import LoopFuser, LoopOptimization
from burn_remote_server.fusion.cpu.loop_source import LOOP_NAME, loop_source
from burn_remote_server.fusion.cpu.ufuncs import CompiledUfunc, compiled_ufunc
from burn_remote_server.fusion.fuser import FuserProperties, Optimization, StreamOperation

__all__ = ["ExponentialFuser", "ExponentialOptimization"]


class ExponentialOptimization(LoopOptimization):
    """One operation as two ufuncs with an exponential between them, once both are compiled."""

    name: ClassVar[str] = "exponential"

    def _compiled(self) -> tuple[Run | None, bool]:
        """Return a function of the two ufuncs if they are compiled, and whether that is final."""
        if self._compiler is None:
            return None, True
        (operation,) = self._operations
        parts = parts_of(operation)
        assert parts is not None
        arrays = [*self._arrays.values()]
        power = KernelArray(self._dtype(self._first))
        before, is_before_final = self._part(arrays, parts.constants, parts.before)
        after, is_after_final = self._part([*arrays, power], parts.constants, parts.after)
        if before is None or after is None:
            return None, is_before_final and is_after_final
        count, exp = len(arrays), np.exp

        # The closure refers to ``before`` and ``after``, because they own the code of their ufuncs.
        def run(*given: Any) -> Any:
            operands = given[:count]
            power = before.function(*operands)
            exp(power, out=power)
            return after.function(*operands, power, *given[count:])

        return run, True

    def _part(
        self, arrays: list[KernelArray], constants: Sequence[Any], exact: Sequence[ExactStep]
    ) -> tuple[CompiledUfunc | None, bool]:
        assert self._compiler is not None
        steps = [KernelStep(*each) for each in exact]
        last = len(arrays) + len(constants) + len(steps) - 1
        source = loop_source(arrays, constants, steps, [last])
        dtypes = [*[each.dtype for each in arrays], steps[-1].dtype]
        return compiled_ufunc(self._compiler, source, LOOP_NAME, dtypes, len(arrays))


class ExponentialFuser(LoopFuser):
    """Accepts a single operation."""

    def _accepted_shape(self, operation: StreamOperation) -> Shape | None:
        return None if len(self) else super()._accepted_shape(operation)

    def _is_exact(self, operation: StreamOperation) -> bool:
        return parts_of(operation) is not None

    def finish(self) -> Optimization:
        assert self._shape is not None
        return ExponentialOptimization(self._shape, self._operations, self._compiler)

    def properties(self) -> FuserProperties:
        return FuserProperties(0, ready=len(self) > 0)

    def _empty(self) -> Self:
        return type(self)(self._compiler)


def parts_of(operation: StreamOperation) -> AroundExponential | None:
    """Return the exact parts of an operation around an exponential, if it has them."""
    if not operation.calls:
        return None
    dtypes = [array_dtype(use.spec.dtype) for use in operation.signature.input_uses]
    (out,) = operation.signature.outputs
    return around_exponential(operation, dtypes, array_dtype(out.dtype))
