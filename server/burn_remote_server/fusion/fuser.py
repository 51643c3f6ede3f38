"""The interfaces of fusers and of the optimizations that they build.

A stream of operations is offered to several fusers, one operation after the other, until each of
them is closed, that is, accepts no more. The fuser with the best score then builds an optimization,
which replaces the run of operations that the fuser accepted (``optimization_search``).
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import Shape
from burn_remote_server.backends.interface import ElementwiseCall, RowReduction, Run

__all__ = [
    "DirectCall",
    "FuserProperties",
    "FuserStatus",
    "NumOperations",
    "OperationFuser",
    "Optimization",
    "OptimizationState",
    "OverwrittenInputs",
    "StreamOperation",
]


class OverwrittenInputs(Exception):
    """An optimization failed after it had begun to overwrite the inputs at ``places``.

    Its single operations cannot be executed instead, because inputs are lost. ``__cause__`` is the
    error that occurred.
    """

    def __init__(self, places: tuple[int, ...]) -> None:
        super().__init__(places)
        self.places = places

    def __str__(self) -> str:
        cause = self.__cause__
        return f"operations that ran as one failed: {type(cause).__name__}: {cause}"


class StreamOperation(NamedTuple):
    """An operation of a stream, bound to its kernel.

    Tensors have numbers that are never reused within the stream. ``numbers`` are zero-dimensional
    arrays that the call takes in place of the constants of ``calls``, because they change from one
    execution to the next. ``dying`` are the inputs and outputs that nothing uses afterwards.
    An operation has either ``calls`` or a ``reduction``.
    """

    signature: Signature
    run: Run
    calls: tuple[ElementwiseCall, ...]
    inputs: tuple[int, ...]
    numbers: tuple[int, ...]
    outputs: tuple[int, ...]
    dying: frozenset[int]
    reduction: RowReduction | None = None


class FuserStatus(enum.Enum):
    """Whether a fuser can accept more operations."""

    OPEN = enum.auto()
    CLOSED = enum.auto()


class FuserProperties(NamedTuple):
    """Properties of the optimization that a fuser could build now.

    ``score`` compares the fusers of a device: the fuser with the largest score is chosen.
    ``ready``: the optimization would be faster than its operations one by one.
    """

    score: int
    ready: bool


class NumOperations(ABC):
    """Base class of objects that consist of operations; their length is the number of these."""

    @abstractmethod
    def __len__(self) -> int: ...


# Plain data: what ``Optimization.to_state`` returns and ``FusionRuntime.from_state`` takes.
OptimizationState = dict[str, Any]


class DirectCall(NamedTuple):
    """An optimization as one function that a program calls in place of its operations.

    ``run`` takes the inputs in any layout. If there is one output, it also takes the array of an
    input, as an optional last argument, into which it writes the output. It returns the output, or
    a tuple of several. ``compiled`` returns a faster ``run`` or ``None``, and whether this result
    is final. The faster ``run`` returns outputs in C order if those of the operations are in C
    order. It can raise only ``MemoryError``, and only before it has written anything.
    ``makes_new_arrays``: nothing else references the outputs of either function.
    """

    run: Run
    compiled: Callable[[], tuple[Run | None, bool]]
    makes_new_arrays: bool


class Optimization(NumOperations):
    """One execution in place of several operations of one output each, with the same results.

    ``shape`` is the shape of the fuser that accepted the operations. ``reuses_inputs`` says whether
    ``execute`` may write an output into an input.
    """

    name: ClassVar[str]
    reuses_inputs: ClassVar[bool] = False

    def __init__(self, shape: Shape, operations: Sequence[StreamOperation]) -> None:
        self._shape: Final = shape
        self._operations: Final = tuple(operations)
        made = dict.fromkeys(each.outputs[0] for each in operations)
        taken = [tensor for each in operations for tensor in (*each.inputs, *each.numbers)]
        dying = frozenset[int]().union(*[each.dying for each in operations])
        self._inputs: Final = tuple(dict.fromkeys(one for one in taken if one not in made))
        self._outputs: Final = tuple(one for one in made if one not in dying)

    def __len__(self) -> int:
        return len(self._operations)

    @property
    def inputs(self) -> tuple[int, ...]:
        """The tensors that it takes, in the order of their first use."""
        return self._inputs

    @property
    def outputs(self) -> tuple[int, ...]:
        """The tensors that it makes, except those that only its own operations use."""
        return self._outputs

    @property
    def direct_call(self) -> DirectCall | None:
        """The optimization as one function; ``None`` if only ``execute`` can execute it."""
        return None

    @property
    def is_final(self) -> bool:
        """Whether executions use the same kernels from now on, because none is being compiled."""
        return True

    @abstractmethod
    def execute(self, inputs: Sequence[Any], reusable: Sequence[int] = ()) -> list[Any] | None:
        """Return the outputs for arrays of the inputs; ``None`` if it does not apply to them.

        An output may be written into the array of an input at one of the places ``reusable``, and
        is then that array. The caller ensures that nothing else references these arrays.
        Raises ``OverwrittenInputs`` for an error after the first write into an input; after any
        other exception the inputs are unchanged, and the operations can still be executed.
        """

    @abstractmethod
    def to_state(self) -> OptimizationState:
        """Return plain data from which ``FusionRuntime.from_state`` builds an equal one."""


class OperationFuser(NumOperations):
    """Collects operations and builds an optimization of them.

    ``least_bytes``: no run begins with an operation whose result is smaller, nor with a reduction
    of a smaller tensor.
    """

    least_bytes: ClassVar[int]

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
