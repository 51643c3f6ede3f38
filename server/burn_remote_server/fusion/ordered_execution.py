"""Execution of an optimization, or of its operations in their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from burn_remote_server.fusion.fuser import Optimization, StreamOperation

__all__ = ["OrderedExecution"]


class OrderedExecution:
    """Operations of a stream, and the optimization that replaces them."""

    def __init__(self, operations: Sequence[StreamOperation], optimization: Optimization) -> None:
        self.operations: Final = tuple(operations)
        self.optimization: Final = optimization

    def execute_optimization(self, *inputs: Any, reusable: Sequence[int] = ()) -> list[Any]:
        """Return the outputs of the optimization for the arrays of its inputs.

        Outputs may be written into the inputs at the places ``reusable``. After such a write has
        begun, an error raises ``OverwrittenInputs``. Otherwise, the inputs are unchanged and the
        error of the operation is raised.
        """
        outputs = self.optimization.execute(inputs, reusable)
        return self.execute_operations(inputs) if outputs is None else outputs

    def execute_operations(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the same outputs from the operations one by one."""
        optimization = self.optimization
        tensors = dict(zip(optimization.inputs, inputs, strict=True))
        kept = {*optimization.inputs, *optimization.outputs}
        for operation in self.operations:
            arrays = [tensors[tensor] for tensor in operation.inputs]
            if operation.numbers:
                (call,) = operation.calls
                numbers = [tensors[number] for number in operation.numbers]
                result = call.function(*arrays, *numbers)
            else:
                result = operation.run(*arrays)
            (tensors[operation.outputs[0]],) = (result,)
            for tensor in operation.dying:
                if tensor not in kept:
                    tensors.pop(tensor, None)
        return [tensors[tensor] for tensor in optimization.outputs]
