"""Fusion of the operations of a stream: those that have arrived and wait for their execution.

A window is a run of tasks that have already arrived: operations that the fusers take, element-wise
operations on the results of reductions, and drops. Any other task ends the window, so no task waits
for one to fill. Two windows are equal if their operations have the same plans (apart from numbers),
are connected in the same way, and drop the same tensors. A *block* is a part of a window that one
optimization executes. If a block cannot run as one, because of a tensor, the quota or any error,
its tasks run as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

from burn_remote_protocol.errors import OperationFailed, QuotaExceeded
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler
from burn_remote_server.access.quota import Quota
from burn_remote_server.backends.interface import BackendSession, Run
from burn_remote_server.fusion.counts import FusionCounts
from burn_remote_server.fusion.fuser import OverwrittenInputs, StreamOperation
from burn_remote_server.fusion.fusing_backend import FusionBackend
from burn_remote_server.fusion.optimization_search import Block, optimized
from burn_remote_server.fusion.plan_store import ExecutionPlanStore
from burn_remote_server.programs.plans import Plan
from burn_remote_server.tensors.ownership import held_once
from burn_remote_server.tensors.tensor_table import TensorTable

__all__ = ["MAX_WINDOW_TASKS", "Entry", "Progress", "StreamFusion"]

# Most tasks of a window. Exploring takes about 50 µs for each.
MAX_WINDOW_TASKS: Final = 256
# Operations on the results of reductions are small, so examining them takes a significant part of
# their own time. A longer run of them is not part of a normalization.
MAX_SMALL_OPERATIONS: Final = 16


class Progress(Protocol):
    """The place, in a batch, of the task that is being executed."""

    place: int


class Entry(NamedTuple):
    """A task of a window: an operation; if ``plan`` is ``None``, the drop of tensors."""

    plan: Plan | None
    tensors: tuple[int, ...]


class _Window(NamedTuple):
    """The key of a window: operations by the ``fusion_key`` of their plans, with relative ids."""

    keys: tuple[Hashable, ...]
    tensors: tuple[tuple[int, ...], ...]
    dropped: frozenset[int]


class _Block(NamedTuple):
    """Operations that one optimization executes; tensors are relative ids.

    A negative id ``-1 - place`` is the constant of the window's operation at this place.

    ``start`` and ``end`` are places among the window's operations. ``peak`` has upper bounds for
    the bytes and the number of the tensors that these operations hold at any time. ``dying`` are
    the places of the inputs that the window drops before it uses them again. It is empty if the
    operations have limits.
    """

    start: int
    end: int
    run: Run
    inputs: tuple[int, ...]
    expected: tuple[tuple[int, tuple[Any, Any]], ...]
    outputs: tuple[int, ...]
    output_bytes: int
    peak: tuple[int, int]
    last_uses: tuple[int, ...]
    dying: tuple[int, ...]


class StreamFusion:
    """The windows of one session's stream.

    ``run`` is offered each task whose plan is fusible. At the start of a batch of tasks, the caller
    sets ``known_until`` to 0.
    """

    def __init__(
        self,
        backend: FusionBackend,
        owns_memory: Callable[[Any], bool],
        session: BackendSession,
        tensors: TensorTable,
        quota: Quota,
        limited: Callable[[Run, Sequence[Plan]], Run],
        counts: FusionCounts,
    ) -> None:
        self._session: Final = session
        self._owns_memory: Final = owns_memory
        self._tensors: Final = tensors
        self._quota: Final = quota
        self._limited: Final = limited
        self._counts: Final = counts
        self.fusers: Final = backend.fusers()
        self._store: Final = ExecutionPlanStore[tuple[_Block, ...]](counts)
        # Tasks of the batch before this place belong to a window that was looked up.
        self.known_until = 0
        # Keyed by the place of a block's first task: the block, the place after its last task, and
        # the tensors that tasks in between drop.
        self._blocks: dict[int, tuple[_Block, int, tuple[int, ...]]] = {}
        self._ids: list[int] = []
        self._plans: list[Plan] = []
        # Tensors that still have to be dropped after an interrupt (Ctrl-C) of a local device.
        self._drops: tuple[int, ...] = ()
        # Tensors that a block may have overwritten, until its results are stored.
        self._overwritten: tuple[int, ...] = ()

    def run(self, entries: Callable[[], Iterable[Entry]], progress: Progress) -> int:
        """Execute a block that begins at the current task; return the number of its tasks.

        ``entries`` are the window's tasks from this one on. Returns 0 if the task must run as
        usual.
        """
        if self._drops:
            self._drop()
        if self._overwritten:
            self._lose("it was interrupted")
        place = progress.place
        if place >= self.known_until:
            self._look_up(place, [*_without_small_rest(entries())])
        found = self._blocks.get(place)
        if found is None:
            return 0
        block, end, drops = found
        try:
            if not self._execute(block):
                self._counts.fallbacks += 1
                return 0
            self._counts.operations_fused += block.end - block.start
            # These assignments contain no function call, so no interrupt can come between them.
            # After an interrupt, only the drops remain to be done.
            self._drops, progress.place, self._overwritten = drops, end, ()
        except BaseException:  # an interrupt: later operations must not use overwritten inputs
            self._lose("it was interrupted")
            raise
        if drops:
            self._drop()
        return end - place

    def clear(self) -> None:
        """Forget all windows."""
        self._store.clear()

    def _lose(self, reason: str) -> None:
        """Store failures in place of the tensors that may have been overwritten."""
        failure = OperationFailed(reason)
        self._tensors.store_failure(self._overwritten, failure)
        self._overwritten = ()

    def _drop(self) -> None:
        self._tensors.drop(self._drops)
        self._drops = ()

    # -- windows ------------------------------------------------------------------------------

    def _look_up(self, place: int, entries: list[Entry]) -> None:
        """Find the blocks of a window."""
        window, plans, places, ids = _window(entries)
        self._blocks = {}
        end = places[-1] + 1 if places else 1
        self.known_until = place + end
        if len(plans) < 2:
            return
        blocks = self._store.found(window, lambda: self._explored(window, plans))
        if not blocks:
            return
        self._ids, self._plans = ids, plans
        for block in blocks:
            first, last = places[block.start], places[block.end - 1]
            drops = [ids[tensor] for tensor in block.last_uses]
            for entry in entries[first : last + 1]:
                if entry.plan is None:
                    drops += entry.tensors
            self._blocks[place + first] = (block, place + last + 1, tuple(drops))

    def _explored(self, window: _Window, plans: list[Plan]) -> tuple[_Block, ...]:
        return tuple(
            self._block(window, plans, found)
            for found in optimized(_operations(window, plans), self.fusers)
        )

    def _block(self, window: _Window, all_plans: list[Plan], found: Block) -> _Block:
        start, end, optimization = found.start, found.end, found.execution.optimization
        plans, tensors = all_plans[start:end], window.tensors[start:end]
        expected: dict[int, tuple[Any, Any]] = {}
        last_uses: list[int] = []
        for plan, ids in zip(plans, tensors, strict=True):
            expected |= zip(ids, plan.expected, strict=False)
            last_uses += [ids[position] for position in plan.last_uses]
        sizes = {ids[-1]: plan.output_bytes for plan, ids in zip(plans, tensors, strict=True)}
        run = self._limited(optimization.execute, plans)
        dying = {tensor for each in found.execution.operations for tensor in each.dying}
        return _Block(
            start,
            end,
            run,
            optimization.inputs,
            tuple(
                (place, expected[tensor])
                for place, tensor in enumerate(optimization.inputs)
                if tensor >= 0
            ),
            optimization.outputs,
            sum(sizes[tensor] for tensor in optimization.outputs),
            # An upper bound: the sum of all results. If it does not fit into the quota, the single
            # operations run instead. They need less, and each of them fits or fails by itself.
            (sum(sizes.values()), len(sizes)),
            tuple(last_uses),
            # With limits, an execution may fail after it has written everything.
            tuple(place for place, tensor in enumerate(optimization.inputs) if tensor in dying)
            if run == optimization.execute
            else (),
        )

    # -- execution ----------------------------------------------------------------------------

    def _execute(self, block: _Block) -> bool:
        """Execute a block and store its outputs; return whether that succeeded."""
        arrays, ids = self._tensors.arrays, self._ids
        try:
            inputs = [
                arrays[ids[tensor]]
                if tensor >= 0
                else self._plans[-1 - tensor].calls[0].constants[0]
                for tensor in block.inputs
            ]
        except KeyError as error:
            pass_on_of_signal_handler(error)
            return False
        for place, (shape, dtype) in block.expected:
            if inputs[place].shape != shape or inputs[place].dtype != dtype:
                return False
        try:
            self._quota.take(*block.peak)
        except QuotaExceeded:
            return False
        reusable = [
            place
            for place in block.dying
            if held_once(inputs, place) and self._owns_memory(inputs[place])
        ]
        outputs = None
        try:
            self._overwritten = tuple([ids[block.inputs[place]] for place in reusable])
            try:
                outputs = self._outputs(block, inputs, reusable)
            except Exception as error:
                # Any other exception occurs again in the operation that raises it.
                pass_on_of_signal_handler(error)
        finally:
            kept = (0, 0) if outputs is None else (block.output_bytes, len(outputs))
            self._quota.give_back(block.peak[0] - kept[0], block.peak[1] - kept[1])
        if outputs is None:
            self._overwritten = ()
            return False
        for tensor, array in zip(block.outputs, outputs, strict=True):
            self._tensors.forget(ids[tensor])
            arrays[ids[tensor]] = self._tensors.record(array, inputs) if reusable else array
        return True

    def _outputs(self, block: _Block, inputs: list[Any], reusable: list[int]) -> list[Any] | None:
        """Run a block; tensors that it has overwritten before it fails become failures."""
        if not reusable:
            found: list[Any] | None = block.run(inputs)
            return found
        try:
            found = block.run(inputs, reusable)
            return found
        except OverwrittenInputs as error:
            ids = [self._ids[block.inputs[place]] for place in error.places]
            self._tensors.store_failure(ids, OperationFailed(str(error)))
            raise


def _without_small_rest(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yield entries, up to a long run of small operations."""
    small = 0
    for entry in entries:
        if entry.plan is not None:
            small = 0 if entry.plan.is_fusible else small + 1
        if small > MAX_SMALL_OPERATIONS:
            return
        yield entry


def _operations(window: _Window, plans: Sequence[Plan]) -> list[StreamOperation]:
    last_use = {tensor: place for place, tensors in enumerate(window.tensors) for tensor in tensors}
    return [
        StreamOperation(
            plan.signature,
            plan.run,
            plan.calls,
            tensors[:-1],
            () if plan.fusion_key is None else (-1 - place,),
            tensors[-1:],
            frozenset(
                tensor
                for tensor in tensors
                if tensor in window.dropped and last_use[tensor] == place
            ),
            plan.reduction,
        )
        for place, (plan, tensors) in enumerate(zip(plans, window.tensors, strict=True))
    ]


def _window(entries: Sequence[Entry]) -> tuple[_Window, list[Plan], list[int], list[int]]:
    """Return the window that the first entries form, its plans, their places, and its tensor ids.

    An operation ends the window if it uses a dropped tensor, or if its output's id already occurs
    in the window.
    """
    relative: dict[int, int] = {}
    dropped: set[int] = set()
    plans: list[Plan] = []
    tensors: list[tuple[int, ...]] = []
    places: list[int] = []
    for place, (plan, used) in enumerate(entries):
        if plan is None:
            dropped.update(used)
            continue
        is_known = used[-1] in relative or used[-1] in used[:-1]
        if is_known or not dropped.isdisjoint(used):
            break
        for tensor in used:
            relative.setdefault(tensor, len(relative))
        plans.append(plan)
        tensors.append(tuple([relative[tensor] for tensor in used]))
        places.append(place)
        dropped.update([used[position] for position in plan.last_uses])
    known = frozenset(relative[tensor] for tensor in dropped if tensor in relative)
    keys = tuple([plan.fusion_key or plan for plan in plans])
    return _Window(keys, tuple(tensors), known), plans, places, [*relative]
