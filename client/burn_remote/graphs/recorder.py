"""The runner that records the operations of one call of a compiled function."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

from burn_remote.arguments.traced_numbers import NumberProgram, TracedScalar
from burn_remote.runner.forwarding import ForwardingRunner
from burn_remote.runner.interface import (
    DerivedData,
    RunnerClient,
    StorageTask,
    TensorHandle,
    distinction,
)
from burn_remote.runner.operation_graph import Graph, GraphStep
from burn_remote.runner.pending import Pending
from burn_remote.sessions.source_locations import caller, line_of
from burn_remote_protocol.collectives import CollectiveCall, GroupSpec
from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.operations.families import floats, numeric
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import TensorData, TensorSpec

if TYPE_CHECKING:
    from burn_remote_protocol.dtypes import DType, DTypeUsage

__all__ = ["Argument", "Recorder", "draws_random_numbers"]

_RANDOM: Final = frozenset({floats.RANDOM, numeric.INT_RANDOM})


@final
class Argument(TensorHandle):
    """A tensor argument of the function that is recorded; ``slot`` is its slot in the graph."""

    __slots__ = ("original", "slot")

    def __init__(self, original: TensorHandle, slot: int) -> None:
        super().__init__(original.client, original.id, original.spec)
        self.original = original  # the tensor lives as long as this
        self.slot = slot


class Recorder(ForwardingRunner):
    """Records the operations of one thread while it runs a function, and forwards them.

    Everything that a graph cannot repeat raises ``UsageError`` with the line of the program.
    ``name_of`` returns the name of a captured tensor for the error message.
    """

    def __init__(
        self,
        inner: RunnerClient,
        arguments: Sequence[Argument],
        numbers: NumberProgram,
        name_of: Callable[[TensorHandle], str],
    ) -> None:
        super().__init__(inner)
        self._thread = threading.get_ident()
        self._arguments: Final = tuple(arguments)
        self._numbers = numbers
        self._name_of = name_of
        # Tensor id -> number of the result, counted over the outputs of all steps.
        self._made: dict[int, int] = {}
        self._alive: set[int] = set()
        self._recorded: list[GraphStep] = []
        # Elements that the function derived from its arguments; they are inputs of the graph.
        self.constants: list[TensorHandle] = []
        self._constant_ids: dict[int, int] = {}
        # Register of the number program -> position among the numbers of a call.
        self.number_places: dict[int, int] = {}

    @property
    def _is_recording(self) -> bool:
        return threading.get_ident() == self._thread

    # -- what is recorded ---------------------------------------------------------------------

    def register_op(
        self, signature: Signature, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        """Issue one operation and record it."""
        if not self._is_recording:
            return super().register_op(signature, inputs)
        sources = tuple([self._source(handle) for handle in inputs])
        numbers = tuple(
            [
                (field, self._number(argument))
                for field, argument in enumerate(signature.arguments)
                if isinstance(argument, TracedScalar)
            ]
        )
        outputs = self._issued(signature, inputs)
        self._recorded.append(GraphStep(signature, sources, numbers, caller(2)))
        for handle in outputs:
            self._made[handle.id] = len(self._made)
            self._alive.add(handle.id)
        return outputs

    def _issued(
        self, signature: Signature, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        return self.inner.register_op(signature, inputs)

    def drop_handle(self, identifier: int) -> None:
        """Note that the program has dropped a tensor, and free it. Called by any thread."""
        self._alive.discard(identifier)
        super().drop_handle(identifier)

    def register_tensor_data(self, data: TensorData) -> TensorHandle:
        """Send elements that follow from the arguments; the graph keeps them as a constant."""
        if self._is_recording and not isinstance(data, DerivedData):
            self._refuse(
                "uploads a tensor, and every later call would use the same elements",
                "create it before the call and pass it as an argument, or use full() or arange()",
            )
        handle = super().register_tensor_data(data)
        if self._is_recording:
            self._constant_ids[handle.id] = len(self.constants)
            self.constants.append(handle)
        return handle

    def dtype_usage(self, dtype: DType) -> Pending[DTypeUsage]:
        """Ask what the device supports; the answer never changes."""
        return super().dtype_usage(dtype)

    # -- what a graph cannot repeat -----------------------------------------------------------

    def read_tensor_async(self, handle: TensorHandle) -> Pending[TensorData]:
        """Refuse to read: the result would be that of the first call."""
        if self._is_recording:
            self._refuse(
                f"reads the elements of a tensor ({handle.spec})",
                "return the tensor and read it after the call, or use where() in place of if",
            )
        return super().read_tensor_async(handle)

    def move(self, handle: TensorHandle, target: RunnerClient) -> TensorHandle:
        """Refuse to move a tensor to another device."""
        if self._is_recording and target.session is not self.session:
            self._refuse(
                f"moves a tensor ({handle.spec}) to {target.device}",
                "compile a function for each device, and move tensors between their calls",
            )
        return super().move(handle, target)

    def fetch(self, transfer: bytes | int, address: str, spec: TensorSpec) -> TensorHandle:
        """Refuse to move a tensor from another device."""
        if self._is_recording:
            self._refuse(
                f"moves a tensor ({spec}) to {self.device}",
                "move it before the call and pass it as an argument",
            )
        return super().fetch(transfer, address, spec)

    def join_group(self, spec: GroupSpec) -> int:
        """Refuse to join a group."""
        if self._is_recording:
            self._refuse("joins a group of devices", "join it before the call")
        return super().join_group(spec)

    def collective(
        self, group: int, call: CollectiveCall, inputs: Sequence[TensorHandle]
    ) -> tuple[TensorHandle, ...]:
        """Refuse to exchange tensors with other devices."""
        if self._is_recording:
            self._refuse(
                f"issues a collective ({call.kind})",
                "compile the parts before and after it, and issue it between their calls",
            )
        return super().collective(group, call, inputs)

    def leave_group(self, group: int) -> None:
        """Refuse to leave a group."""
        if self._is_recording:
            self._refuse("leaves a group of devices", "leave it after the call")
        super().leave_group(group)

    def storage_task(self, task: StorageTask, handles: Sequence[TensorHandle]) -> Any:
        """Refuse to use what the server stores: it may be different in later calls."""
        if self._is_recording:
            self._refuse(
                task.describe(), "do it outside of the function, and pass tensors as arguments"
            )
        return super().storage_task(task, handles)

    def sync(self) -> Pending[None]:
        """Refuse to wait for the device."""
        if self._is_recording:
            self._refuse("waits for the device", "call sync() after the function")
        return super().sync()

    def seed(self, seed: int) -> None:
        """Refuse to set the seed: later calls would not."""
        if self._is_recording:
            self._refuse("sets the seed", "call device.seed() before the function")
        super().seed(seed)

    def memory_cleanup(self) -> None:
        """Refuse to clean up: later calls would not."""
        if self._is_recording:
            self._refuse("frees cached memory", "call memory_cleanup() after the function")
        super().memory_cleanup()

    # -- the result ---------------------------------------------------------------------------

    def has_argument(self, handle: TensorHandle) -> bool:
        """Return whether this is an argument of the call, not of an earlier one."""
        return type(handle) is Argument and any(one is handle for one in self._arguments)

    def line_of_kept(self, returned: Collection[int]) -> str | None:
        """Return the line that made a tensor which is alive although the function has ended."""
        kept = min((one for one in [*self._alive] if one not in returned), default=None)
        if kept is None:
            return None
        places = (
            place for place, step in enumerate(self._recorded) for _ in step.signature.outputs
        )
        position = self._recorded[[*places][self._made[kept]]].issued_at
        return "" if position is None else line_of(*position)

    def check_result(self, handle: TensorHandle) -> None:
        """Raise ``UsageError`` unless an operation of the function made this tensor."""
        if handle.client.session is not self.session:
            raise UsageError(
                f"the compiled function returns {self._name_of(handle)} on {handle.client.device}, "
                f"but it runs on {self.device}{distinction(handle.client.device, self.device)}; "
                "pass it a tensor or the device as an argument"
            )
        if handle.id not in self._made:
            raise UsageError(
                f"the compiled function returns {self._name_of(handle)}, which is neither an "
                "argument nor the result of an operation; use it outside the function instead"
            )

    def graph(
        self, results: Sequence[TensorHandle]
    ) -> tuple[Graph, tuple[int, ...], tuple[TensorHandle, ...]]:
        """Return the graph with these tensors as outputs, and its inputs.

        The inputs are the arguments at the returned positions and, after them, the returned
        constants.
        """
        sources = {source for step in self._recorded for source in step.inputs}
        inputs = sorted(source for source in sources if source < 0)[::-1]
        slots = {source: slot for slot, source in enumerate(inputs)}
        steps = [
            step._replace(inputs=tuple([slots.get(one, len(inputs) + one) for one in step.inputs]))
            for step in self._recorded
        ]
        graph = Graph(len(inputs), steps, [len(inputs) + self._made[one.id] for one in results])
        places = [-1 - source for source in inputs]
        count = len(self._arguments)
        return (
            graph,
            tuple([place for place in places if place < count]),
            tuple([self.constants[place - count] for place in places if place >= count]),
        )

    def _source(self, handle: TensorHandle) -> int:
        """Return a result's number; for an argument or a constant, ``-1 - place``.

        The places of constants follow those of the arguments.
        """
        if type(handle) is Argument and self._arguments[handle.slot] is handle:
            return -1 - handle.slot
        constant = self._constant_ids.get(handle.id)
        if constant is not None:
            return -1 - len(self._arguments) - constant
        made = self._made.get(handle.id)
        if made is None:
            self._refuse(
                f"uses {self._name_of(handle)}, a tensor that is not an argument",
                "pass it as an argument, because later calls would use the same tensor",
            )
        return made

    def _number(self, scalar: TracedScalar) -> int:
        if scalar.number.program is not self._numbers:
            self._refuse(
                "uses a number of another compiled function", "return it from that function"
            )
        register = scalar.number.place
        return self.number_places.setdefault(register, len(self.number_places))

    def _refuse(self, what: str, advice: str) -> NoReturn:
        raise UsageError(f"{line_of(*caller(3))}: the compiled function {what}; {advice}")


def draws_random_numbers(graph: Graph) -> bool:
    """Return whether an operation of a graph draws random numbers."""
    return any(step.signature.row in _RANDOM for step in graph.steps)
