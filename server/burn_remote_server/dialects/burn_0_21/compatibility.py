"""Dtypes of the results of a real Burn 0.21 server that differ from the declared dtypes.

Recorded traffic shows that Burn's CPU backend gathers and selects booleans as bytes, and returns
indices as 64-bit integers. Burn's clients convert the data that they read, so this server returns
the same dtypes as Burn's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from burn_remote_protocol.dtypes import I64, U8, DType
from burn_remote_protocol.messages import Drop, Read
from burn_remote_protocol.operations.row import Operation
from burn_remote_protocol.tensors import TensorSpec, TensorStatus

__all__ = ["ReplyDTypes"]

# For each kind and variant: the position of a tensor among the operation's tensors, and the dtype
# in which a read returns it.
_ANSWERED: Final[dict[tuple[str, str], tuple[int, DType]]] = {
    ("BaseBool", "Gather"): (-1, U8),
    ("BaseBool", "Select"): (-1, U8),
    ("BaseBool", "SelectAssign"): (-1, U8),
    ("NumericInt", "ArgMax"): (-1, I64),
    ("NumericInt", "ArgMin"): (-1, I64),
    ("Module", "MaxPool1dWithIndices"): (-1, I64),
    ("Module", "MaxPool2dWithIndices"): (-1, I64),
}

# Variants that only move elements, so their output has the dtype of their input.
_MOVING: Final = frozenset({"Reshape", "SwapDims", "Permute", "Flip", "Expand", "Slice"})


class ReplyDTypes:
    """The tensors of one session that a read returns in another dtype than declared."""

    def __init__(self) -> None:
        self._dtypes: dict[int, DType] = {}

    def applied(self, tasks: Iterable[Any]) -> Iterator[Any]:
        """Yield the tasks, with the dtype of reads replaced by that of a real server."""
        for task in tasks:
            if type(task) is Operation:
                self._note(task)
            elif type(task) is Drop:
                for tensor in task.tensors:
                    self._dtypes.pop(tensor, None)
            elif type(task) is Read and task.tensor in self._dtypes:
                spec = TensorSpec(task.spec.shape, self._dtypes[task.tensor])
                yield Read(task.request, task.tensor, spec)
                continue
            yield task

    def _note(self, operation: Operation) -> None:
        signature = operation.signature
        found = _ANSWERED.get((signature.kind, signature.row.name))
        handed_on = None
        if self._dtypes and operation.tensors:  # a custom operation may have none
            handed_on = self._dtypes.get(operation.tensors[0])
            self._forget(operation)
        if found is not None:
            position, dtype = found
            self._dtypes[operation.tensors[position]] = dtype
        elif handed_on is not None and signature.row.name in _MOVING:
            self._dtypes[operation.tensors[-1]] = handed_on

    def _forget(self, operation: Operation) -> None:
        """Forget tensors that are overwritten, dropped, or used for the last time."""
        uses = operation.signature.input_uses
        dying = [use.status is TensorStatus.READ_WRITE for use in uses]
        is_drop = operation.signature.kind == "Drop"
        for position, tensor in enumerate(operation.tensors):
            if is_drop or position >= len(uses) or dying[position]:
                self._dtypes.pop(tensor, None)
