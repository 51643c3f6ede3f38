"""Execution of a session's part of collectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from burn_remote_protocol.errors import (
    OperationFailed,
    ProtocolViolation,
    UnknownTensor,
    UsageError,
)
from burn_remote_protocol.messages import Collective, JoinGroup, LeaveGroup
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.execution.engine_interfaces import Groups
from burn_remote_server.execution.interpreter import Interpreter
from burn_remote_server.tensors.slots import InFlight, Lent

__all__ = ["CollectiveTasks"]


class CollectiveTasks:
    """The handlers of collectives and of tasks on groups in one session.

    ``groups`` is ``None`` if the server supports no collectives.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        groups: Groups | None,
        fail: Callable[[int, OperationFailed, str, str], None],
        follows: Callable[[], bool],
    ) -> None:
        """Prepare the handlers of a session.

        ``fail(tensor, error, operation, shapes)`` stores a failure as a tensor. ``follows()`` says
        whether the current task comes directly after another collective.
        """
        self._session: Final = interpreter.session
        self._tensors: Final = interpreter.tensors
        self._optional: Final = groups
        self._fail_tensor: Final = fail
        self._follows: Final = follows
        self._has_shared = False  # the last collective has shared its inputs
        self.handlers: Final[Mapping[type[Any], Callable[[Any], None]]] = {
            JoinGroup: lambda task: self._groups.join(task),
            Collective: self._begin,
            LeaveGroup: lambda task: self._groups.leave(task),
        }

    @property
    def _groups(self) -> Groups:
        if self._optional is None:
            raise ProtocolViolation("this server does not support collectives")
        return self._optional

    def leave_groups(self) -> None:
        """Leave all groups, so that their other members need not wait for this session."""
        if self._optional is not None:
            self._optional.end()

    def _begin(self, task: Collective) -> None:
        groups = self._groups
        slots: list[InFlight] = []
        try:
            spec = groups.spec(task.group)
            outputs = task.call.output_specs(len(spec.addresses), spec.rank)
            expected = task.call.input_specs(spec.rank)
            if (len(outputs), len(expected)) != (len(task.outputs), len(task.inputs)):
                raise OperationFailed(
                    f"it has {len(task.inputs)} inputs and {len(task.outputs)} outputs; expected "
                    f"{len(expected)} inputs and {len(outputs)} outputs"
                )
            inputs = self._lent(task.inputs, expected)
            for tensor, each in zip(task.outputs, outputs, strict=True):
                slot = InFlight(each)
                self._tensors.begin_fetch(tensor, slot)
                slots.append(slot)
            groups.submit(task, inputs, slots)
        except (OperationFailed, UsageError) as error:
            failure = OperationFailed(str(error)) if isinstance(error, UsageError) else error
            self.fail(task, failure, slots)

    def fail(
        self, task: Collective, error: OperationFailed, slots: Sequence[InFlight] = ()
    ) -> None:
        """Fail a collective for all members; ``slots`` are its outputs that were stored already."""
        self._has_shared = False
        reason = f"it could not begin {task.call.describe()}: {error}"
        self._groups.reject(task, reason)
        for slot in slots:
            slot.fail(OperationFailed(reason))
        for tensor in task.outputs:
            self._fail_tensor(tensor, error, "Collective", task.call.describe())

    def _lent(
        self, tensors: Sequence[int], specs: Sequence[TensorSpec]
    ) -> Sequence[InFlight | Lent]:
        """Return the inputs of a collective: each one's array in a ``Lent``, or its slot."""
        session = self._session
        found = [self._lendable(tensor, spec) for tensor, spec in zip(tensors, specs, strict=True)]
        arrays = [one for one in found if not isinstance(one, InFlight)]
        has_worked = not (self._has_shared and self._follows())
        shared = iter(session.share_all(arrays, has_worked=has_worked))
        self._has_shared = True
        lent: list[InFlight | Lent] = []
        for tensor, one in zip(tensors, found, strict=True):
            if isinstance(one, InFlight):
                lent.append(one)
                continue
            borrower = Lent(next(shared))
            self._tensors.expose(tensor, borrower)
            lent.append(borrower)
        return lent

    def _lendable(self, tensor: int, spec: TensorSpec) -> Any:
        """Return an array, or the slot of a tensor that has not arrived yet."""
        slot = self._tensors.slot(tensor)
        if isinstance(slot, InFlight):
            slot.lend()
            return slot
        array = self._tensors.read(tensor, spec)
        if array.dtype != self._session.array_dtype(spec.dtype):
            raise UnknownTensor(f"tensor {tensor} has the dtype {array.dtype}, not {spec.dtype}")
        return array
