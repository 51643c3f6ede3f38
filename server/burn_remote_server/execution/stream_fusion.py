"""Fusion of the operations of a stream: those that have arrived and wait for their execution.

A window is a run of tasks that has already arrived: large element-wise operations, and drops. Any
other task ends it, so nothing waits for a window. The same window is recognized by its plans, but
for their numbers, by its tensor ids relative to each other, and by which of its tensors it drops.
Where a block of the window cannot run as one, because of a tensor, the quota or any error, its
tasks run as usual.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from burn_remote_protocol.errors import QuotaExceeded
from burn_remote_server.access.quota import Quota
from burn_remote_server.backends.interface import BackendSession, Run
from burn_remote_server.execution.plans import Plan
from burn_remote_server.execution.tensors import TensorTable
from burn_remote_server.fusion.backend import FusionBackend
from burn_remote_server.fusion.counts import FusionCounts
from burn_remote_server.fusion.fuser import StreamOperation
from burn_remote_server.fusion.plan_store import ExecutionPlanStore
from burn_remote_server.fusion.search import Block, optimized

__all__ = ["MAX_WINDOW_TASKS", "Entry", "Progress", "StreamFusion"]

# Most tasks of a window. Exploring takes about 50 µs for each.
MAX_WINDOW_TASKS: Final = 256


class Progress(Protocol):
    """The place, in a batch, of the task that is being executed."""

    place: int


class Entry(NamedTuple):
    """A task of a window: an operation, or without a plan the drop of tensors."""

    plan: Plan | None
    tensors: tuple[int, ...]


class _Window(NamedTuple):
    """Operations on relative tensor ids; the operations by the ``fusion_key`` of their plans."""

    keys: tuple[Hashable, ...]
    tensors: tuple[tuple[int, ...], ...]
    dropped: frozenset[int]


class _Block(NamedTuple):
    """Operations that one optimization executes; tensors are relative ids.

    A negative id ``-1 - place`` is the constant of the window's operation at this place.

    ``start`` and ``end`` are places among the window's operations, ``peak`` the most bytes and
    tensors that they take together.
    """

    start: int
    end: int
    run: Run
    inputs: tuple[int, ...]
    expected: tuple[tuple[Any, Any], ...]
    outputs: tuple[int, ...]
    output_bytes: int
    peak: tuple[int, int]
    last_uses: tuple[int, ...]


class StreamFusion:
    """The windows of one session's stream.

    ``run`` is offered each task whose plan is fusible. At the start of a batch of tasks, the caller
    sets ``known_until`` to 0.
    """

    def __init__(
        self,
        backend: FusionBackend,
        session: BackendSession,
        tensors: TensorTable,
        quota: Quota,
        limited: Callable[[Run, Sequence[Plan]], Run],
        counts: FusionCounts,
    ) -> None:
        self._session: Final = session
        self._tensors: Final = tensors
        self._quota: Final = quota
        self._limited: Final = limited
        self._counts: Final = counts
        self._fusers: Final = backend.fusers()
        self._store: Final = ExecutionPlanStore[tuple[_Block, ...]](counts)
        # Tasks of the batch before this place belong to a window that was looked up.
        self.known_until = 0
        # By the place of their first task: the blocks, the place after their last task, and the
        # drops between.
        self._blocks: dict[int, tuple[_Block, int, tuple[int, ...]]] = {}
        self._ids: list[int] = []
        self._plans: list[Plan] = []
        # Tensors whose drop an interrupt of a local device has left to do.
        self._drops: tuple[int, ...] = ()

    def run(self, entries: Callable[[], Iterable[Entry]], progress: Progress) -> int:
        """Execute a block that begins at the current task; return the number of its tasks.

        ``entries`` are the window's tasks from this one on. 0: the task must run as usual.
        """
        if self._drops:
            self._drop()
        place = progress.place
        if place >= self.known_until:
            self._look_up(place, [*entries()])
        found = self._blocks.get(place)
        if found is None:
            return 0
        block, end, drops = found
        if not self._execute(block):
            self._counts.fallbacks += 1
            return 0
        self._counts.operations_fused += block.end - block.start
        # Without a call between: an interrupt leaves either all tasks to do, or only the drops.
        self._drops, progress.place = drops, end
        if drops:
            self._drop()
        return end - place

    def clear(self) -> None:
        """Forget all windows."""
        self._store.clear()

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
            for found in optimized(_operations(window, plans), self._fusers)
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
        return _Block(
            start,
            end,
            self._limited(optimization.execute, plans),
            optimization.inputs,
            tuple(expected[tensor] for tensor in optimization.inputs if tensor >= 0),
            optimization.outputs,
            sum(sizes[tensor] for tensor in optimization.outputs),
            # As if nothing died before the end: more than single operations take, and if that does
            # not fit, single operations decide.
            (sum(sizes.values()), len(sizes)),
            tuple(last_uses),
        )

    # -- execution ----------------------------------------------------------------------------

    def _execute(self, block: _Block) -> bool:
        """Execute a block and store its outputs; return whether that succeeded."""
        arrays, ids = self._tensors.arrays, self._ids
        try:
            inputs = [arrays[ids[tensor]] for tensor in block.inputs if tensor >= 0]
        except KeyError:
            return False
        for array, (shape, dtype) in zip(inputs, block.expected, strict=True):
            if array.shape != shape or array.dtype != dtype:
                return False
        try:
            self._quota.take(*block.peak)
        except QuotaExceeded:
            return False
        if len(inputs) < len(block.inputs):
            given = iter(inputs)
            inputs = [
                next(given) if tensor >= 0 else self._plans[-1 - tensor].calls[0].constants[0]
                for tensor in block.inputs
            ]
        outputs = None
        try:
            # An exception occurs again in the operation that raises it.
            with contextlib.suppress(Exception):
                outputs = block.run(inputs)
        finally:
            kept = (0, 0) if outputs is None else (block.output_bytes, len(outputs))
            self._quota.give_back(block.peak[0] - kept[0], block.peak[1] - kept[1])
        if outputs is None:
            return False
        for tensor, array in zip(block.outputs, outputs, strict=True):
            self._tensors.forget(ids[tensor])
            arrays[ids[tensor]] = array
        return True


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
        )
        for place, (plan, tensors) in enumerate(zip(plans, window.tensors, strict=True))
    ]


def _window(entries: Sequence[Entry]) -> tuple[_Window, list[Plan], list[int], list[int]]:
    """Return the window that the first entries form; its plans, their places, and its ids.

    An operation ends it that uses a dropped tensor, or makes a tensor that the window knows.
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
