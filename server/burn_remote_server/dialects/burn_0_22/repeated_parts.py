"""Parts of a program that come again in batches of frames, wherever the client cuts its frames.

A part begins and ends at a *cut*: a read or another message that is no operation, or one of some
operations that this module chooses, so that there is one in every few messages. So a program that
repeats its operations has the same cuts each time. A part that came several times is compiled, and
later runs in place of its messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from burn_remote_protocol.dialects.burn_0_22_recognition import (
    FrameLayout,
    FrameParts,
    KnownFrame,
)
from burn_remote_server.dialects.burn_0_22.repeated_frames import FrameProgram
from burn_remote_server.execution.joined_operations import JoinedOperations, JoinedPart
from burn_remote_server.programs.operation_parts import PartStep, can_join
from burn_remote_server.programs.plans import Plan

__all__ = ["FoundPart", "RepeatedParts"]

# Messages in a part. Longer parts save more for each message, but are complete in fewer batches.
LEAST_MESSAGES: Final = 12
ENOUGH_MESSAGES: Final = 32
MOST_MESSAGES: Final = 64
# An operation becomes a cut if there is none in so many messages before it.
MESSAGES_BETWEEN_CUTS: Final = 16
# At this number, all are forgotten.
CUTS_KEPT: Final = 256

# A part is compiled when it comes again after so many times. Compiling takes 35 µs for each
# operation, and saves 1 to 1.5 µs for each in a call. Batches may begin at different cuts, so the
# parts of a program may overlap: some programs have ten.
CALLS_ONE_BY_ONE: Final = 12

# Parts that are known, by their operations. Each takes up to 8 KB. At this number, all but the
# compiled ones are forgotten, of which there are fewer.
PARTS_KNOWN: Final = 128
# Parts by their frames, and the sum of the lengths of these frames. A part has several forms,
# because frames are cut at several places, and a frame takes up to six times its length, unless the
# recognizer still has it. At either limit, all forms are forgotten.
FORMS_KEPT: Final = 512
FRAME_BYTES_KEPT: Final = 512 * 1024


class _Cut(NamedTuple):
    """A place in a frame at which a part may end, and the next one may begin.

    The first part ends before step ``end`` and its number ``end_number``. The next one begins with
    step ``begin`` and ``begin_number``.
    """

    end: int
    end_number: int
    begin: int
    begin_number: int
    is_forced: bool  # no part can continue


_START: Final = _Cut(0, 0, 0, 0, True)


class FoundPart(NamedTuple):
    """A compiled part in a batch: frames and steps at which it begins and ends, and its numbers."""

    part: JoinedPart
    begin: tuple[int, int]
    end: tuple[int, int]
    numbers: tuple[int, ...]


class _Known:
    """A part that came before."""

    __slots__ = ("calls", "is_refused", "part", "steps")

    def __init__(self, steps: tuple[PartStep, ...]) -> None:
        self.steps: Final = steps
        self.calls = 0
        self.part: JoinedPart | None = None
        self.is_refused = False  # it cannot be compiled


class RepeatedParts:
    """Finds the parts of one session's program."""

    def __init__(self, joined: JoinedOperations) -> None:
        self._joined: Final = joined
        self._chosen: Final[set[Plan]] = set()
        self._cuts: Final[dict[FrameLayout | FrameParts, tuple[tuple[_Cut, ...], int]]] = {}
        self._known: dict[tuple[PartStep, ...], _Known] = {}  # by their steps
        # By the frames of a part, which are in ``_cuts``, and the places in the first and last one.
        self._forms: Final[dict[tuple[Any, ...], _Known]] = {}
        self._frame_bytes = 0
        self._is_at_cut = False  # the last batch ended with a forced cut

    def skip(self, program: FrameProgram) -> None:
        """Note a frame in which no part is searched."""
        steps = program.steps
        self._is_at_cut = bool(steps) and steps[-1][1].make is not None

    def found(
        self, frames: Sequence[KnownFrame], programs: Sequence[FrameProgram]
    ) -> Iterator[FoundPart]:
        """Yield the compiled parts in consecutive frames, in their order.

        A part begins at a cut. The search for its end stops at a forced cut, at the first cut after
        ``ENOUGH_MESSAGES``, or with the batch, and the next part begins there. It ends at the last
        cut that was found with at most ``MOST_MESSAGES``, and needs ``LEAST_MESSAGES``.
        """
        layouts = [frame.layout for frame in frames]
        # One call in C for all frames, most of which have no cut.
        known: list[Any] = [*map(self._cuts.get, layouts)]
        if None in known:
            known = [*map(self._noted, layouts, programs)]
        begin: tuple[int, _Cut] | None = (0, _START) if self._is_at_cut else None
        end: tuple[int, _Cut] | None = None
        # Numbers of steps, counted from the first frame; ``end_at`` is the length of the part up to
        # ``end``, the last cut at which it may end.
        begin_at = end_at = cut_at = count = 0
        uncut: FrameProgram | None = None
        for place, (cuts, length) in enumerate(known):
            for cut in cuts:
                cut_at = count + cut.end
                size = cut_at - begin_at
                if begin and size <= MOST_MESSAGES:
                    end, end_at = (place, cut), size
                if not begin or cut.is_forced or size >= ENOUGH_MESSAGES:
                    if begin and end and end_at >= LEAST_MESSAGES:
                        yield from self._part(frames, programs, layouts, begin, end)
                    begin, begin_at, end = (place, cut), count + cut.begin, None
            count += length
            if count - cut_at > MESSAGES_BETWEEN_CUTS:
                uncut = programs[place]
                cut_at = count
        if begin and end and end_at >= LEAST_MESSAGES:
            yield from self._part(frames, programs, layouts, begin, end)
        self.skip(programs[-1])
        self._end_batch(uncut)

    def _noted(
        self, layout: FrameLayout | FrameParts, program: FrameProgram
    ) -> tuple[tuple[_Cut, ...], int]:
        """Return the cuts of a frame and the number of its steps, and remember them."""
        known = self._cuts.get(layout)
        if known is not None:
            return known
        cuts = []
        for place, (_, (plan, _, make, start, stop)) in enumerate(program.steps):
            if make is not None or (plan is not None and not can_join(plan)):
                cuts.append(_Cut(place, start, place + 1, stop, True))
            elif plan in self._chosen:
                cuts.append(_Cut(place, start, place, start, False))
        self._frame_bytes += layout.length
        self._cuts[layout] = known = tuple(cuts), len(program.steps)
        return known

    def _end_batch(self, uncut: FrameProgram | None) -> None:
        """Make the first operation of ``uncut`` a cut, if given, and forget frames if necessary.

        Frames must not be forgotten within a batch, because its parts may use any of them.
        """
        if uncut is not None:
            plan = next((step.plan for _, step in uncut.steps if step.plan is not None), None)
            if plan is not None:
                if len(self._chosen) >= CUTS_KEPT:
                    self._chosen.clear()
                self._chosen.add(plan)
                self._forget_frames()
        if self._frame_bytes > FRAME_BYTES_KEPT:
            self._forget_frames()

    def _forget_frames(self) -> None:
        self._cuts.clear()
        self._forms.clear()
        self._frame_bytes = 0

    def _part(
        self,
        frames: Sequence[KnownFrame],
        programs: Sequence[FrameProgram],
        layouts: Sequence[FrameLayout | FrameParts],
        begin: tuple[int, _Cut],
        end: tuple[int, _Cut],
    ) -> Iterable[FoundPart]:
        """Return a part if it is compiled; compile it if it came often enough."""
        (first, opening), (last, closing) = begin, end
        key = (opening.begin, closing.end, *layouts[first : last + 1])
        known = self._forms.get(key)
        if known is None:
            known = self._new(key, _joined_steps(frames, programs, begin, end))
        if known.part is None:
            known.calls += 1
            # On the event loop, compiling would delay other sessions.
            if known.calls <= CALLS_ONE_BY_ONE or known.is_refused or _is_on_event_loop():
                return ()
        numbers = _joined_numbers(frames, begin, end)
        if known.part is None:
            known.part = self._joined.compiled(known.steps, numbers)
            if known.part is None:
                known.is_refused = True
                return ()
        begins_at = (first, opening.begin)
        if opening.begin == len(programs[first].steps):
            begins_at = (first + 1, 0)
        return (FoundPart(known.part, begins_at, (last, closing.end), numbers),)

    def _new(self, key: tuple[Any, ...], steps: tuple[PartStep, ...]) -> _Known:
        """Return what is known of a part whose frames are new; its steps may be known."""
        if len(self._forms) >= FORMS_KEPT:
            self._forms.clear()
        known = self._known.get(steps)
        if known is None:
            if len(self._known) >= PARTS_KNOWN:
                self._forms.clear()
                self._known = {each.steps: each for each in self._known.values() if each.part}
            known = self._known[steps] = _Known(steps)
        self._forms[key] = known
        return known


def _is_on_event_loop() -> bool:
    return asyncio._get_running_loop() is not None


def _joined_numbers(
    frames: Sequence[KnownFrame], begin: tuple[int, _Cut], end: tuple[int, _Cut]
) -> tuple[int, ...]:
    """Return the numbers of a part."""
    (first, opening), (last, closing) = begin, end
    if first == last:
        return frames[first].numbers[opening.begin_number : closing.end_number]
    return (
        *frames[first].numbers[opening.begin_number :],
        *chain.from_iterable([frame.numbers for frame in frames[first + 1 : last]]),
        *frames[last].numbers[: closing.end_number],
    )


def _joined_steps(
    frames: Sequence[KnownFrame],
    programs: Sequence[FrameProgram],
    begin: tuple[int, _Cut],
    end: tuple[int, _Cut],
) -> tuple[PartStep, ...]:
    """Return the steps of a part, with the places of their numbers in it."""
    (first, opening), (last, closing) = begin, end
    steps: list[PartStep] = []
    offset = -opening.begin_number
    for place in range(first, last + 1):
        from_step = opening.begin if place == first else 0
        to_step = closing.end if place == last else len(programs[place].steps)
        for _, (plan, _, _, start, stop) in programs[place].steps[from_step:to_step]:
            steps.append((plan, offset + start, offset + stop))
        offset += len(frames[place].numbers)
    return tuple(steps)
