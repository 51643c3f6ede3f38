"""The interfaces of fusers and of the optimizations that they build.

A stream of operations is offered to several fusers, one operation after the other, until each of
them is closed. The fuser with the best score then builds an optimization, which replaces the run of
operations that the fuser accepted (``search``).
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from burn_remote_protocol.operations.row import Signature
from burn_remote_server.backends.interface import ElementwiseCall, Run

__all__ = [
    "FuserProperties",
    "FuserStatus",
    "NumOperations",
    "OperationFuser",
    "Optimization",
    "StreamOperation",
]


class StreamOperation(NamedTuple):
    """An operation of a stream, bound to its kernel.

    Tensors have numbers that are never reused within the stream. ``numbers`` are zero-dimensional
    arrays that the call takes in place of the constants of ``calls``, because they change from one
    execution to the next. ``dying`` are the inputs and outputs that nothing uses afterwards.
    """

    signature: Signature
    run: Run
    calls: tuple[ElementwiseCall, ...]
    inputs: tuple[int, ...]
    numbers: tuple[int, ...]
    outputs: tuple[int, ...]
    dying: frozenset[int]


class FuserStatus(enum.Enum):
    """Whether a fuser can accept more operations."""

    OPEN = enum.auto()
    CLOSED = enum.auto()


class FuserProperties(NamedTuple):
    """What a fuser could build now.

    ``score`` compares fusers: the bytes that the optimization does not move through memory.
    ``ready``: an optimization of the accepted operations would pay.
    """

    score: int
    ready: bool


class NumOperations(ABC):
    """A thing that consists of operations; its length is their number."""

    @abstractmethod
    def __len__(self) -> int: ...


class Optimization(NumOperations):
    """One execution in place of several operations, with the same results."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def inputs(self) -> tuple[int, ...]:
        """The tensors that it takes."""

    @property
    @abstractmethod
    def outputs(self) -> tuple[int, ...]:
        """The tensors that it makes; those that die inside are never made."""

    @abstractmethod
    def execute(self, inputs: Sequence[Any]) -> list[Any] | None:
        """Return the outputs for arrays of the inputs; ``None`` if it does not apply to them.

        No input is overwritten, so after any exception the operations can still be executed.
        """


class OperationFuser(NumOperations):
    """Collects operations and builds an optimization of them."""

    @abstractmethod
    def fuse(self, operation: StreamOperation) -> None:
        """Accept an operation, or close."""

    @abstractmethod
    def finish(self) -> Optimization:
        """Return an optimization of the accepted operations."""

    @abstractmethod
    def reset(self) -> None:
        """Forget all operations and open again."""

    @abstractmethod
    def status(self) -> FuserStatus:
        """Return whether further operations can be accepted."""

    @abstractmethod
    def properties(self) -> FuserProperties:
        """Return what could be built of the accepted operations."""

    @abstractmethod
    def clone_dyn(self) -> OperationFuser:
        """Return a fuser of the same kind with the same operations."""
