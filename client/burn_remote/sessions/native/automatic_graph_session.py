"""Sessions that recognize repeated sequences of operations and send each as one task.

While a program repeats a known sequence (a *pattern*), each operation is only compared with the
expected one: its signature, its inputs and the line that issued it. Nothing is encoded. When the
sequence is complete, one task with the number of its graph takes the place of its operations.

Correctness rests on one rule: **operations that were followed are handed over before anything else
is queued**. Everything that a session sends passes through ``execute``, ``_append``,
``_append_drops`` or ``_flush``, and these call ``_hand_over`` first. It queues one graph if the
pattern is complete and the program has dropped every tensor that the graph does not return. In all
other cases it queues one task for each operation, as a session without patterns does. So a pattern
is never trusted: it only decides which operations are compared.

Tensor ids are assigned as without patterns. All state is guarded by the session's lock, except how
far a pattern was followed: threads follow without the lock (``runner/following.py``). A thread that
takes the lock closes the ``Follower`` before it reads or changes anything (``_close``), so no other
thread follows meanwhile. Operations of several threads are one sequence.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from burn_remote.runner.following import Follower, is_traced
from burn_remote.runner.interface import TensorHandle
from burn_remote.runner.pending import Pending
from burn_remote.sessions.lifetime import (
    BATCH_TASKS,
    DROP_BYTES,
    DROP_TENSORS,
    nested_use,
)
from burn_remote.sessions.native.native_session import NativeSession
from burn_remote.sessions.native.nested_calls import NestedCalls
from burn_remote.sessions.native.patterns import (
    LOOP_STEPS,
    MAX_ALIVE,
    MAX_STEPS,
    MIN_STEPS,
    Issued,
    Pattern,
    PatternStep,
    PatternStore,
    are_consecutive,
    pattern_of,
)
from burn_remote.sessions.native.task_queue import ENCODED_BYTES, MOST_BYTES
from burn_remote.sessions.source_locations import RING_LENGTH, caller_and_depth
from burn_remote.sessions.traffic import Traffic
from burn_remote_protocol.dialects.native import EncodedTask
from burn_remote_protocol.errors import BurnRemoteError
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler

__all__ = ["AutomaticGraphSession"]

_frame: Final = sys._getframe
_NONE: Final[frozenset[int]] = frozenset()

# Learning makes operations slower, and following makes them faster. A session keeps a balance of
# both, in units of about 0.2 µs. When it is below 0, the session stops learning for a while.
START_BALANCE: Final = 50_000
LEARNING_COST: Final = 1
DEFINING_COST: Final = 8  # for each step
MISSING_COST: Final = 6  # for each operation that was followed in vain
FOLLOWING_GAIN: Final = 5

# How many operations such a pause lasts: the first pause, and the longest one. Each pause is twice
# as long as the one before.
FIRST_PAUSE: Final = 50_000
LONGEST_PAUSE: Final = 5_000_000
# The balance after a pause.
NEXT_BALANCE: Final = 5_000

# The results of a sequence take at most this many bytes, because the server frees none of them
# before the whole sequence has been sent.
MAX_SEGMENT_BYTES: Final = 4 * 1024 * 1024

# How many of the last drops are remembered, to learn which results of a sequence the program has
# dropped. A sequence has at most 64 operations, but the program drops other tensors between them.
REMEMBERED_DROPS: Final = 512


def _never() -> bool:
    return False


class AutomaticGraphSession(NativeSession):
    """A ``NativeSession`` that follows repeated operations. See the module's docstring."""

    # CPython 3.11 looks up attributes faster while an object has at most 30 outside of slots; with
    # those of ``NativeSession``, there would be more. With slots, following takes 0.96 of the time
    # that it takes without.
    __slots__ = (
        "_balance", "_base", "_counted", "_cut_at", "_earlier_count", "_expected", "_is_paused",
        "_last", "_pattern", "_pause", "_paused_until", "_recent_drops", "_segment",
        "_segment_bytes", "_segment_end", "_store", "follower",
    )  # fmt: skip

    follower: Follower

    def _renew_lock(self) -> None:
        super()._renew_lock()
        # ``execute`` below calls that of ``NativeSession`` while it holds the lock.
        self._checked_calls = NestedCalls(_never)

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        """Open a session like ``NativeSession``."""
        self.follower = Follower()
        # The expected operation while a pattern is followed: every step before it was followed.
        # While the follower is open, its step is the expected one, and this one is out of date,
        # but not ``None``. The same holds for ``_next_tensor``.
        self._expected: PatternStep | None = None
        self._pattern: Pattern | None = None
        self._base = 0  # the id of the pattern's first output
        # The number of drops at the front of the queue that are not outputs of the present pattern.
        # If an interrupt leaves it wrong, the next pattern's operations are sent one by one.
        self._earlier_count = 0
        self._counted = 0  # followed operations that ``traffic`` counts already
        # The step that would be next if the flush timer had not sent those before it.
        self._cut_at: PatternStep | None = None
        # The operations since the last pattern, wait or upload, which were sent one by one.
        self._segment: list[tuple[Signature, Sequence[int], int]] = []
        self._segment_end = 0  # the id that its next operation gets
        self._segment_bytes = 0
        self._recent_drops: deque[int] = deque(maxlen=REMEMBERED_DROPS)
        self._store: Final = PatternStore()
        self._last: Pattern | None = None  # the pattern that was followed last
        self._balance = START_BALANCE
        self._pause = FIRST_PAUSE
        self._is_paused = False
        self._paused_until = 0  # in operations of ``traffic``
        super().__init__(*arguments, **settings)
        if self.graph_steps < MAX_STEPS:
            self._is_paused, self._paused_until = True, sys.maxsize

    @property
    def traffic(self) -> Traffic:
        """The session's traffic so far, including the operations that were followed."""
        with self._lock:
            step = self._close()
            if step is not None:
                self._count(step.place)
                self.follower.step = step
        return super().traffic

    # -- operations ---------------------------------------------------------------------------

    def execute(
        self, signature: Signature, inputs: list[int], outputs: Sequence[TensorHandle]
    ) -> None:
        """Issue one operation, or only note that it was the expected one."""
        follower = self.follower
        step = follower.step
        if step is not None and step.signature is signature and step.is_short:
            # As in the operators, for operations that other functions issue, and also for inputs
            # that are not known yet.
            try:
                frame = _frame(step.depth)
            except ValueError as error:  # there are fewer frames than the last time
                pass_on_of_signal_handler(error)
            else:
                ids, left, right = follower.ids, step.left, step.right
                first, last = inputs[0], inputs[-1]
                # Nothing is called from here on.
                if (
                    frame.f_lasti == step.instruction
                    and frame.f_code is step.code
                    and follower.step is step
                ):
                    if ids[left] is None and first < self._base:
                        ids[left] = first
                    if ids[right] is None and last < self._base:
                        ids[right] = last
                    if ids[left] == first and ids[right] == last:
                        follower.step, outputs[0].id = step.next, ids[step.output]
                        return
        self._execute_in_turn(signature, inputs, outputs)

    def _execute_in_turn(
        self, signature: Signature, inputs: list[int], outputs: Sequence[TensorHandle]
    ) -> None:
        """Issue or follow one operation under the lock."""
        if self._nested.check():
            raise nested_use(self._connection.address)
        first = end = 0
        try:
            with self._lock:
                step = self._close()
                if step is not None and step.signature is signature:
                    if not (self._fill(step, inputs) and self._is_at(step, 3)):
                        step = self._take_unexpected(signature, inputs)
                elif step is not None or not self._is_paused:
                    begun = step and self._begin_successor(step, signature, inputs)
                    step = begun or self._take_unexpected(signature, inputs)
                if step is not None:
                    if self._connection.error is not None:
                        self.check_open()
                    ids, output, count, following = (
                        self.follower.ids, step.output, step.count, step.next
                    )  # fmt: skip
                    first, out = ids[output], outputs[0]
                    after = first + count
                    # A single statement without a call: an interrupt cannot come in the middle.
                    self._expected, self._next_tensor, out.id, end = following, after, first, after
                    if count != 1:
                        for tensor, out in zip(ids[output : output + count], outputs, strict=True):
                            out.id = tensor
                    self.follower.step = following
                else:
                    super().execute(signature, inputs, outputs)
        except BaseException:
            # Ctrl-C may have come before all handles of several outputs had ids.
            self._dropped.extend(range(first, end))
            raise

    def _close(self) -> PatternStep | None:
        """Have no thread follow without the lock; return the expected operation."""
        follower = self.follower
        step = follower.step
        if step is not None:
            # A single statement without a call, so no thread follows in the middle.
            follower.step, self._expected, self._next_tensor = None, step, self._base + step.output
        return self._expected

    def _when_lost(self) -> Callable[[BurnRemoteError], None]:
        fail, follower = super()._when_lost(), self.follower

        def lost(error: BurnRemoteError) -> None:
            follower.step = None  # later operations raise the error
            fail(error)

        return lost

    def abandon_after_fork(self) -> None:
        """Make every use in a forked child raise an error; see ``NativeSession``."""
        self.follower.step = None
        super().abandon_after_fork()

    def _fill(self, step: PatternStep, inputs: list[int]) -> bool:
        """Compare an operation's inputs with the expected ones; fill slots without an id."""
        ids, base = self.follower.ids, self._base
        for slot, tensor in zip(step.slots, inputs, strict=True):
            known = ids[slot]
            if known is None and tensor < base:
                ids[slot] = tensor
            elif known != tensor:
                return False
        return True

    def _is_at(self, step: PatternStep, depth: int) -> bool:
        """Return whether the program's line that issues an operation is the expected one.

        ``depth`` is the number of frames from ``caller_and_depth`` to ``execute``.
        """
        code, instruction, found = caller_and_depth(depth + 1)
        if code is not step.code or instruction != step.instruction:
            return False
        step.depth = found - depth
        return True

    def _take_unexpected(self, signature: Signature, inputs: list[int]) -> PatternStep | None:
        """Learn an operation that was not expected, or begin a pattern with it.

        Returns the first step of the pattern, if it begins one.
        """
        self.check_open()
        if self._expected is not None:
            step = self._alternative(self._expected.place, signature, inputs)
            if step is not None:
                return step
            self._hand_over(is_left=True)
            if self._is_paused:
                return None
        cut_at = self._cut_at
        if cut_at is not None:
            if cut_at.signature is signature:
                self._cut_at = cut_at.next
                return None
            self._cut_at = None
        segment, first = self._segment, self._next_tensor
        if segment and (
            (signature is segment[0][0] and len(segment) >= LOOP_STEPS)
            or len(segment) >= MAX_STEPS
            or self._segment_bytes >= MAX_SEGMENT_BYTES
            or first != self._segment_end
        ):
            self._end_sequence()
            segment = self._segment
        if not segment:
            pattern = self._chosen(signature)
            if pattern is not None and self._begin(pattern, inputs):
                return pattern.first
        self._learn(signature, inputs, first)
        return None

    def _begin_successor(
        self, end: PatternStep, signature: Signature, inputs: list[int]
    ) -> PatternStep | None:
        """Hand a complete pattern over, and begin the one that usually comes next.

        ``end`` is the expected step. If everything is as it was the last time, this does the same
        as ``_hand_over`` and ``_begin``, and returns the first step of the next pattern. Otherwise,
        it changes nothing and returns ``None``. It is one long function, because it exists to save
        instructions, and each call takes some.
        """
        pattern = self._pattern
        if end.signature is not None or pattern is None:
            return None
        following, usual = pattern.successor, pattern.usual_drops
        if following is None or usual is None:
            return None
        step, start = following.first, self._earlier_count
        before, base = self._base, self._next_tensor  # ids of the first outputs of both
        ids, dropped, tasks = self.follower.ids, self._dropped, self._tasks
        if (
            step.signature is not signature
            or not step.is_short
            or not following.is_known
            or following.checked_at != self._signature_table.defined
            or following.graph_key not in self._graphs.known
            or self._flusher.armed is None
            or self._connection.error is not None
            or self._cut_at is not None
            or self._segment
            or self._is_paused
            or is_traced()
            # Ids that are the same objects are compared in less time.
            or dropped[start:] != [*usual.taken_of([*range(before + usual.lowest, before), *ids])]
        ):
            return None
        try:
            frame = _frame(step.depth + 2)
        except ValueError as error:  # there are fewer frames than the last time
            pass_on_of_signal_handler(error)
            return None
        known = following.ids(base)
        left, right, first, last = step.left, step.right, inputs[0], inputs[-1]
        if known[left] is None and first < base:
            known[left] = first
        if known[right] is None and last < base:
            known[right] = last
        remaining = [*map(before.__add__, usual.remaining)]
        kept = [*map(ids.__getitem__, pattern.kept)]
        task = (pattern.number, *ids[: pattern.output_count - 1 : -1], *kept)
        place, stop, waiting = len(pattern.steps), start + usual.length, start + len(remaining)
        undropped = self._undropped_bytes + pattern.graph.nbytes
        task_bytes = self._task_bytes + MOST_BYTES * len(task)
        balance = self._balance + FOLLOWING_GAIN * place
        if (
            frame.f_lasti != step.instruction
            or frame.f_code is not step.code
            or known[left] != first
            or known[right] != last
            or len(tasks) + 1 >= BATCH_TASKS
            or task_bytes >= ENCODED_BYTES
            or (
                waiting
                and (
                    undropped + following.nbytes >= DROP_BYTES
                    or waiting + len(following.steps) > DROP_TENSORS
                )
            )
        ):
            return None
        place_in_ring, traffic = kept[0] % RING_LENGTH, self._connection.traffic
        # Nothing is called from here on: an interrupt cannot come in the middle.
        self._positions[place_in_ring] = (kept[0], pattern.graph)
        self._tasks, self._expected = [*tasks, task], None
        dropped[start:stop] = remaining
        self._earlier_count, self._undropped_bytes, self._task_bytes = (
            waiting,
            undropped,
            task_bytes,
        )
        traffic.operations += place - self._counted
        traffic.followed += place
        self._balance = balance if balance < START_BALANCE else START_BALANCE
        pattern.misses = pattern.alive_count = 0
        pattern.is_recent = True  # takes less time than ``note_completed``
        self._last, self._pattern, self._counted, self._base = following, following, 0, base
        self.follower.ids = known
        return step

    def _learn(self, signature: Signature, inputs: list[int], first: int) -> None:
        """Add an operation to the present sequence, unless its results are large."""
        numbered = self._numbered.get(signature.identity)
        size = numbered[2] if numbered else sum(spec.nbytes for spec in signature.outputs)
        if self._segment_bytes + size > MAX_SEGMENT_BYTES:
            self._end_sequence()
        if size < MAX_SEGMENT_BYTES:
            # A plain tuple: making an ``Issued`` takes ten times as long.
            self._segment.append((signature, inputs, first))
            self._segment_end = first + signature.output_count
            self._segment_bytes += size
            self._balance -= LEARNING_COST
            if self._balance < 0:
                self._pay(0)

    def _chosen(self, signature: Signature) -> Pattern | None:
        """Return the pattern that an operation begins, preferably the usual next one."""
        usual = None if self._last is None else self._last.successor
        if (
            usual is not None
            and usual.is_known
            and usual.first.signature is signature
            and self._is_at(usual.first, 5)
        ):
            return usual
        for pattern in self._store.starting_with(signature):
            if self._is_at(pattern.first, 5):
                return pattern
        return None

    def _alternative(
        self, place: int, signature: Signature, inputs: list[int]
    ) -> PatternStep | None:
        """Find another pattern that begins like the present one and continues with an operation.

        Returns its step for the operation, or ``None``.
        """
        present = self._pattern
        if present is None or place == len(present.steps):
            return None
        for pattern in self._store.starting_with(present.graph.steps[0].signature):
            if (
                pattern is not present
                and pattern.begins_like(present, place)
                and pattern.steps[place].signature is signature
                # Defining it now would send the operations that were followed.
                and pattern.checked_at == self._signature_table.defined
                and pattern.graph_key in self._graphs.known
                and self._is_at(pattern.steps[place], 5)
            ):
                before, ids = self.follower.ids, pattern.ids(self._base)
                known = min(present.input_count, pattern.input_count)
                ids[len(ids) - known :] = before[len(before) - known :]
                self.follower.ids = ids
                if self._fill(pattern.steps[place], inputs):
                    self._pattern = self._last = pattern
                    return pattern.steps[place]
                self.follower.ids = before
        return None

    def _begin(self, pattern: Pattern, inputs: list[int]) -> bool:
        """Prepare to follow a pattern, whose first operation has these inputs."""
        if is_traced() or not self._is_defined(pattern):
            return False
        # Drops wait while operations are followed. Send them first if the pattern could bring the
        # session to the limits at which drops are sent.
        waiting = len(self._dropped)
        if waiting and (
            self._undropped_bytes + pattern.nbytes >= DROP_BYTES
            or waiting + len(pattern.steps) > DROP_TENSORS
        ):
            self._append_drops()
        if self._flusher.armed is None:
            self._flusher.schedule(self)
        step, base = pattern.first, self._next_tensor
        self._base = base
        self.follower.ids = pattern.ids(base)
        if not self._fill(step, inputs):
            return False
        if self._last is not None:
            self._last.successor = pattern
        self._last, self._pattern, self._counted = pattern, pattern, 0
        return True

    def _is_defined(self, pattern: Pattern) -> bool:
        """Return whether the server knows a pattern's signatures and graph; define missing ones.

        Returns ``False`` after signatures got new numbers, which the graph does not have.
        """
        graph, table = pattern.graph, self._signature_table
        number = self._graphs.known.get(pattern.graph_key)
        if number is not None and pattern.checked_at == table.defined:
            return True
        if number is None:
            number = self._define_graph(graph)
        missing = [
            step.signature
            for step in pattern.steps
            if step.signature is not None and step.signature.identity not in self._numbered
        ]
        if missing:  # their numbers were given to other signatures
            for signature in missing:
                self._number(signature, even_if_long=True)
            return False
        for step in pattern.steps:
            if step.signature is not None:
                step.number = self._numbered[step.signature.identity][0]
        pattern.number, pattern.checked_at = number, table.defined
        return True

    # -- handing over, under the lock ---------------------------------------------------------

    def _hand_over(self, *, is_left: bool = False) -> None:
        """Queue the operations that were followed: as a graph if complete, else one by one.

        ``is_left``: the program has issued another operation than the expected one.
        """
        end, pattern = self._close(), self._pattern
        if end is None or pattern is None:
            return
        place = end.place
        alive = _NONE
        if place == len(pattern.steps):
            # Other threads append to the queue of drops meanwhile.
            base, dropped = self._base, self._dropped[self._earlier_count :]
            ids = self.follower.ids
            kept = [ids[output] for output in pattern.kept]
            # Programs mostly drop tensors in the same order each time.
            usual = pattern.drops
            is_call = usual is not None and dropped == [*map(base.__add__, usual)]
            if is_call:
                earlier = pattern.earlier_drops
            else:
                found = {tensor - base for tensor in dropped}
                alive = pattern.dead - found
                is_call = not alive
                earlier = tuple([tensor for tensor in found if tensor not in pattern.dead])
                if is_call:
                    pattern.note_drops([tensor - base for tensor in dropped], earlier)
        else:
            is_call = False
        if is_call:
            tasks = [self._call(pattern, kept)]
            self._undropped_bytes += pattern.graph.nbytes
        else:
            tasks = self._single_tasks(pattern, place)
        self._count(place)
        self._task_bytes += MOST_BYTES * sum(map(len, tasks))
        # A single statement without a call: an interrupt cannot come in the middle.
        self._tasks, self._expected = [*self._tasks, *tasks], None
        if is_call:
            self._connection.traffic.followed += place
            # The server never had those outputs that the graph does not return, so their drops are
            # removed from the queue.
            start = self._earlier_count
            self._dropped[start : start + len(dropped)] = [base + tensor for tensor in earlier]
            self._earlier_count = start + len(earlier)
            self._balance = min(START_BALANCE, self._balance + FOLLOWING_GAIN * place)
            pattern.alive_count = 0
            self._store.note_completed(pattern)
        else:
            self._note_miss(pattern, place, alive, is_left=is_left)
        if len(self._tasks) >= BATCH_TASKS or self._task_bytes >= ENCODED_BYTES:
            self._flush()

    def _call(self, pattern: Pattern, outputs: list[int]) -> tuple[int, ...]:
        self._locations.note_graph(outputs[0], pattern.graph)
        inputs = self.follower.ids[: pattern.output_count - 1 : -1]
        return (pattern.number, *inputs, *outputs)

    def _single_tasks(self, pattern: Pattern, place: int) -> list[tuple[int, ...]]:
        note_at = self._locations.note_at
        tasks: list[tuple[int, ...]] = []
        for step, issued in zip(pattern.steps[:place], self._issued(pattern, place), strict=True):
            outputs = range(issued.first, issued.first + step.count)
            tasks.append((step.number, *issued.inputs, *outputs))
            note_at(issued.first, step.code, step.instruction)
            self._undropped_bytes += self._numbered[issued.signature.identity][2]
        return tasks

    def _issued(self, pattern: Pattern, place: int) -> list[Issued]:
        """Return the operations that were followed."""
        ids, first = self.follower.ids, self._base
        issued = []
        for step, (signature, _, _, _) in zip(
            pattern.steps[:place], pattern.graph.steps, strict=False
        ):
            issued.append(Issued(signature, [ids[slot] for slot in step.slots], first))
            first += step.count
        return issued

    def _count(self, place: int) -> None:
        self._connection.traffic.operations += place - self._counted
        self._counted = place

    def _append(self, task: EncodedTask) -> None:
        if self._expected is not None:
            self._hand_over()
        NativeSession._append(self, task)  # faster than by ``super()``, for each operation

    def _append_drops(self) -> None:
        if self._expected is not None:
            self._hand_over()
        self._recent_drops.extend(self._dropped)
        self._earlier_count = 0
        super()._append_drops()

    def _flush(self, most_kept_drops: int = 0) -> bool:
        if self._expected is not None:
            self._hand_over()
        if self._is_paused and self._connection.traffic.operations >= self._paused_until:
            self._balance, self._is_paused = NEXT_BALANCE, False
        # None are kept: the drops since the last batch are those of the present pattern.
        return super()._flush()

    # -- learning, under the lock -------------------------------------------------------------

    def _note_miss(
        self, pattern: Pattern, place: int, alive: frozenset[int], *, is_left: bool
    ) -> None:
        """Learn from a pattern that was not sent as a graph."""
        if place == len(pattern.steps):
            # The program still has tensors that it had dropped when the pattern was learned. After
            # the flush timer, it may just not have returned from the function that made them.
            self._segment = []
            if is_left:
                pattern.alive_count += 1
            if pattern.alive_count < MAX_ALIVE:
                return
            self._store.discard(pattern)
            self._pay(DEFINING_COST * place)
            self._store.add(pattern.keeping(alive))
            return
        if not is_left:
            self._cut_at = pattern.steps[place - 1].next
            return
        self._segment = [*self._issued(pattern, place)]
        self._segment_end = self._next_tensor
        self._segment_bytes = sum(
            self._numbered[step.signature.identity][2] for step in pattern.graph.steps[:place]
        )
        self._pay(MISSING_COST * place)
        self._store.note_missed(pattern)

    def _end_sequence(self) -> None:
        """End a sequence; make it a pattern if it was seen before."""
        if self._expected is not None:
            self._hand_over(is_left=True)
        learned, self._segment = self._segment, []
        self._cut_at = None
        self._segment_bytes = 0
        if len(learned) < MIN_STEPS:
            return
        segment = [Issued(*one) for one in learned]
        if (
            not are_consecutive(segment)
            or not self._store.is_repeated(segment)
            # Only long signatures have no number. A graph would have to define them.
            or any(issued.signature.identity not in self._numbered for issued in segment)
        ):
            return
        positions = [self._locations.position(issued.first) for issued in segment]
        known = [position for position in positions if position is not None]
        if len(known) < len(positions):
            return
        pattern = pattern_of(segment, known, {*self._recent_drops, *self._dropped})
        if any(
            other.graph.steps == pattern.graph.steps
            for other in self._store.starting_with(segment[0].signature)
        ):
            return
        if self._store.add(pattern):
            self._pay(DEFINING_COST * len(segment))

    def _pay(self, cost: int) -> None:
        self._balance -= cost
        if self._balance < 0 and not self._is_paused:
            self._paused_until = self._connection.traffic.operations + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            self._segment, self._cut_at = [], None
            self._is_paused = True

    # -- waiting ------------------------------------------------------------------------------

    def wait(self, pending: Pending[Any], timeout_seconds: float | None) -> None:
        """Wait for a reply; see ``Source``."""
        if self._expected is not None:
            self.flush()
        super().wait(pending, timeout_seconds)

    def send(self) -> None:
        """Send queued tasks without a wait; see ``Source``."""
        if self._expected is not None:
            self.flush()
        super().send()

    def attend(self) -> None:
        """Receive replies although no thread waits for them; see ``Source``."""
        if self._expected is not None:
            self.flush()
        super().attend()
