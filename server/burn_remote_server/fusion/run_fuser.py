"""The base class of fusers that collect operations on arrays of one shape."""

from __future__ import annotations

from abc import abstractmethod
from typing import Self

from burn_remote_protocol.tensors import Shape
from burn_remote_server.fusion.fuser import FuserStatus, OperationFuser, StreamOperation

__all__ = ["RunFuser"]


class RunFuser(OperationFuser):
    """Collects operations on arrays of one shape, up to the first one that is not accepted."""

    def __init__(self) -> None:
        self._operations: list[StreamOperation] = []
        self._shape: Shape | None = None
        self._status = FuserStatus.OPEN

    @abstractmethod
    def _accepted_shape(self, operation: StreamOperation) -> Shape | None:
        """Return the shape of the run once this operation joins, or ``None`` to refuse it."""

    @abstractmethod
    def _empty(self) -> Self:
        """Return a new fuser of the same kind."""

    def fuse(self, operation: StreamOperation) -> None:
        shape = self._accepted_shape(operation)
        if shape is None:
            self._status = FuserStatus.CLOSED
        else:
            self._shape = shape
            self._operations.append(operation)

    def reset(self) -> None:
        self._operations = []
        self._shape = None
        self._status = FuserStatus.OPEN

    def status(self) -> FuserStatus:
        return self._status

    def __len__(self) -> int:
        return len(self._operations)

    def clone_dyn(self) -> OperationFuser:
        clone = self._empty()
        clone._operations = [*self._operations]
        clone._shape, clone._status = self._shape, self._status
        return clone
