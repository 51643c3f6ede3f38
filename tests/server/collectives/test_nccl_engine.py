"""The engine ``nccl`` with a fake communicator: starts, failures in flight, aborts and the end.

The fake does what NCCL documents: it waits for all members to join, a collective waits for all of
them forever, and an abort ends what is in flight and leaves anything in its outputs.
"""

from __future__ import annotations

import contextlib
import queue
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pytest

from burn_remote_protocol.collectives import CollectiveCall, CollectiveKind, Reduction
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import CollectiveFailed, OperationFailed
from burn_remote_protocol.messages import GroupBroken
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.collectives import nccl_engine
from burn_remote_server.collectives.nccl_engine import (
    MAX_IN_FLIGHT,
    MAX_TOGETHER,
    RESUME_IN_FLIGHT,
    NcclEngine,
)
from burn_remote_server.tensors.slots import InFlight
from support.members import Members
from support.waiting import PATIENCE_SECONDS, wait_until

VECTOR = TensorSpec((8,), F32)
SUM = CollectiveCall(CollectiveKind.ALL_REDUCE, (VECTOR,))
GARBAGE = np.full(8, -7, np.float32)


class Fabric:
    """What the communicators of one test share."""

    def __init__(self, members: int) -> None:
        self.members = members
        self.joined = threading.Barrier(members)
        self.lock = threading.Lock()
        self.given: list[list[Any]] = []  # the inputs of each collective
        self.outputs: dict[int, Any] = {}  # of the collectives that are done
        self.communicators: list[FakeCommunicator] = []
        self.error: Exception | None = None
        self.is_stuck = False  # collectives go on until ``finish``
        self.hurried: list[tuple[int, range]] = []  # the rank, and the numbers of collectives
        self.may_start = threading.Event()
        self.may_start.set()

    def finish(self, number: int, output: Any) -> None:
        """Let a collective end, and deliver it with those that share its event."""
        with self.lock:
            self.outputs[number] = output
        self.deliver()

    def deliver(self) -> None:
        """Have threads of their own deliver what is done."""
        with self.lock:
            outputs = dict(self.outputs)
            watches = [watch for one in self.communicators for watch in one.watches]
        for watch in watches:
            if all(number in outputs for number in watch.numbers):
                found = [[outputs[number]] for number in watch.numbers]
                threading.Thread(target=watch.passes, args=(found,)).start()


Done: TypeAlias = Callable[[Sequence[Sequence[Any]] | None], None]


class Watch:
    """An event that passes once, when the collectives before it are done."""

    def __init__(self, numbers: range, done: Done) -> None:
        self.numbers = numbers
        self._done = [done]

    def passes(self, outputs: Sequence[Sequence[Any]]) -> None:
        with contextlib.suppress(IndexError):
            self._done.pop()(outputs)


class FakeCommunicator:
    """One member of a communicator; all-reduces by sum."""

    def __init__(self, fabric: Fabric, rank: int) -> None:
        self._fabric = fabric
        self._rank = rank
        self._started = 0
        self.watches: list[Watch] = []
        self.ended = ""
        fabric.joined.wait(PATIENCE_SECONDS)
        fabric.communicators.append(self)

    def start(
        self, call: CollectiveCall, inputs: Sequence[Any], specs: Sequence[TensorSpec]
    ) -> None:
        fabric = self._fabric
        with fabric.lock:
            number, self._started = self._started, self._started + 1
            if len(fabric.given) == number:
                fabric.given.append([])
            fabric.given[number].append(inputs[0])
            if len(fabric.given[number]) == fabric.members and not fabric.is_stuck:
                fabric.outputs[number] = sum(fabric.given[number])
        assert fabric.may_start.wait(PATIENCE_SECONDS)
        fabric.deliver()

    def watch(self, done: Done) -> Callable[[], None]:
        first = self.watches[-1].numbers.stop if self.watches else 0
        numbers = range(first, self._started)
        self.watches.append(Watch(numbers, done))
        self._fabric.deliver()
        return lambda: self._fabric.hurried.append((self._rank, numbers))

    def examine(self) -> None:
        if self._fabric.error is not None:
            raise self._fabric.error

    def abort(self) -> None:
        self.ended = "aborted"
        for watch in self.watches:
            watch.passes([[GARBAGE] for _ in watch.numbers])  # the GPU's events pass

    def close(self) -> None:
        self.ended = "closed"


class FakeBackend(NumpyBackend):
    """A NumPy backend with communicators."""

    def __init__(self, fabric: Fabric) -> None:
        super().__init__()
        self._fabric = fabric

    def new_communicator_identifier(self) -> bytes:
        return bytes(range(128))

    def open_communicator(self, identifier: bytes, members: int, rank: int) -> FakeCommunicator:
        assert (identifier, members) == (bytes(range(128)), self._fabric.members)
        return FakeCommunicator(self._fabric, rank)


def members_of(fabric: Fabric, **options: Any) -> Members:
    return Members(
        fabric.members, open_engine=NcclEngine, backend=lambda: FakeBackend(fabric), **options
    )


def vector(rank: int) -> Any:
    return np.arange(8, dtype=np.float32) + rank


def failure_of(slot: Any) -> CollectiveFailed:
    with pytest.raises(CollectiveFailed) as failed:
        slot.array()
    return failed.value


@pytest.mark.parametrize("count", [2, 3, 5])
def test_members_start_a_communicator_use_it_and_free_it(count: int) -> None:
    fabric = Fabric(count)
    members = members_of(fabric)
    for _ in range(3):
        slots = [members.issue(rank, SUM, vector(rank))[0] for rank in range(count)]
        for slot in slots:
            np.testing.assert_array_equal(slot.array(), sum(map(vector, range(count))))
    members.leave()
    # The first one that leaves closes it; the others may hear of that before they leave themselves.
    endings = [one.ended for one in fabric.communicators]
    assert "closed" in endings
    assert all(endings)


def test_the_next_collective_starts_while_one_is_in_flight() -> None:
    fabric = Fabric(2)
    fabric.is_stuck = True
    members = members_of(fabric)
    for _ in range(3):
        for rank in range(2):
            members.issue(rank, SUM, vector(rank))
    wait_until(lambda: [len(given) for given in fabric.given] == [2, 2, 2])
    members.rings[0].abandon("the test is over")
    members.leave()


def test_a_failed_input_leaves_earlier_collectives_in_flight() -> None:
    fabric = Fabric(2)
    fabric.is_stuck = True
    members = members_of(fabric)
    slots = [members.issue(rank, SUM, vector(rank))[0] for rank in range(2)]
    wait_until(lambda: [len(given) for given in fabric.given] == [2])
    failed = InFlight(VECTOR, PATIENCE_SECONDS)
    failed.fail(OperationFailed("no such thing"))
    later = [members.issue(rank, SUM, [failed, vector(1)][rank])[0] for rank in range(2)]
    for slot in later:
        assert "no such thing" in str(failure_of(slot))
    assert not any(slot.arrived() for slot in slots)
    fabric.finish(0, vector(5))
    for slot in slots:
        np.testing.assert_array_equal(slot.array(), vector(5))
    members.leave()


def test_a_collective_that_shares_an_event_with_a_failed_one_fails_with_the_same_reason() -> None:
    fabric = Fabric(2)
    members = members_of(fabric)
    first, late = InFlight(VECTOR, PATIENCE_SECONDS), InFlight(VECTOR, PATIENCE_SECONDS)
    slots = [members.issue(rank, SUM, [vector(0), first][rank])[0] for rank in range(2)]
    later = [members.issue(rank, SUM, [late, vector(1)][rank])[0] for rank in range(2)]
    wait_until(lambda: len(members.rings[1]._begun) == 2)
    first.complete(vector(1))
    wait_until(lambda: [len(given) for given in fabric.given] == [2, 1])
    late.fail(OperationFailed("no such thing"))
    np.testing.assert_array_equal(slots[0].array(), vector(0) + vector(1))
    for slot in [slots[1], *later]:
        error = failure_of(slot)
        assert error.member == 0
        assert "no such thing" in str(error)
    members.leave()


def test_an_output_that_another_collective_takes_is_delivered_before_the_next_one_ends() -> None:
    fabric = Fabric(2)
    members = members_of(fabric)
    first, late = InFlight(VECTOR, PATIENCE_SECONDS), InFlight(VECTOR, PATIENCE_SECONDS)
    slots = [members.issue(rank, SUM, [vector(0), first][rank])[0] for rank in range(2)]
    slots[1].lend()  # to a collective of another group, on whose result ``late`` depends
    later = [members.issue(rank, SUM, [late, vector(1)][rank])[0] for rank in range(2)]
    wait_until(lambda: len(members.rings[1]._begun) == 2)
    first.complete(vector(1))
    late.complete(slots[1].array() + 1)
    for slot in later:
        np.testing.assert_array_equal(slot.array(), vector(0) + 2 * vector(1) + 1)
    members.leave()


def test_a_reader_hurries_the_collective_that_it_waits_for() -> None:
    fabric = Fabric(2)
    fabric.is_stuck = True
    members = members_of(fabric)
    slots = []
    for number in range(3):  # each is watched by an event of its own, because the next comes later
        slots.append([members.issue(rank, SUM, vector(rank))[0] for rank in range(2)])
        wait_until(lambda: [len(one.watches) for one in fabric.communicators] == 2 * [number + 1])  # noqa: B023
    assert not fabric.hurried
    assert not slots[1][0].wait(0.0)
    assert fabric.hurried == [(0, range(1, 2))]
    members.rings[0].abandon("the test is over")
    members.leave()


def test_collectives_that_can_start_one_after_the_other_are_delivered_together() -> None:
    fabric = Fabric(2)
    members = members_of(fabric)
    count = MAX_TOGETHER + 3
    first = [InFlight(VECTOR, PATIENCE_SECONDS) for _ in range(2)]
    slots = [
        [members.issue(rank, SUM, vector(rank) if number else first[rank])[0] for rank in range(2)]
        for number in range(count)
    ]
    wait_until(lambda: all(len(ring._begun) == count for ring in members.rings.values()))
    for rank, one in enumerate(first):
        one.complete(vector(rank))
    for made in slots:
        for slot in made:
            np.testing.assert_array_equal(slot.array(), vector(0) + vector(1))
    together = [range(MAX_TOGETHER), range(MAX_TOGETHER, count)]
    assert [[watch.numbers for watch in one.watches] for one in fabric.communicators] == [
        together, together,
    ]  # fmt: skip
    members.leave()


def test_collectives_submitted_while_a_member_begins_others_are_announced_afterwards() -> None:
    fabric = Fabric(2)
    members = members_of(fabric)
    slots = [members.issue(rank, SUM, vector(rank))[0] for rank in range(2)]
    for slot in slots:
        np.testing.assert_array_equal(slot.array(), vector(0) + vector(1))
    fabric.may_start.clear()
    slots = [members.issue(rank, SUM, vector(rank))[0] for rank in range(2)]
    wait_until(lambda: [len(given) for given in fabric.given] == [2, 2])  # both begin it
    slots += [members.issue(0, SUM, vector(5))[0] for _ in range(3)]
    assert not members.rings[1]._begun
    fabric.may_start.set()
    slots += [members.issue(1, SUM, vector(6))[0] for _ in range(3)]
    for slot in slots[2:]:
        np.testing.assert_array_equal(slot.array(), vector(5) + vector(6))
    members.leave()


def test_a_member_that_cannot_begin_the_next_collective_has_announced_it() -> None:
    fabric = Fabric(2)
    members = members_of(fabric)
    fabric.may_start.clear()
    slots = [members.issue(rank, SUM, vector(rank))[0] for rank in range(2)]
    wait_until(lambda: [len(given) for given in fabric.given] == [2])
    missing = InFlight(VECTOR, PATIENCE_SECONDS)
    members.issue(0, SUM, missing)
    members.issue(0, SUM, vector(0))
    fabric.may_start.set()
    for slot in slots:
        np.testing.assert_array_equal(slot.array(), vector(0) + vector(1))
    # Member 0 waits for the input; the other one knows both collectives.
    wait_until(lambda: len(members.rings[1]._begun) == 2)
    missing.complete(vector(0))
    members.issue(1, SUM, vector(1))
    (last,) = members.issue(1, SUM, vector(1))
    np.testing.assert_array_equal(last.array(), vector(0) + vector(1))
    members.leave()


def test_a_member_with_many_collectives_in_flight_goes_on_when_half_of_them_are_done() -> None:
    fabric = Fabric(2)
    fabric.is_stuck = True
    members = members_of(fabric)
    slots = [
        [members.issue(rank, SUM, vector(rank))[0] for rank in range(2)]
        for _ in range(MAX_IN_FLIGHT + 2)
    ]
    # Both wait, and hurry those after which they go on.
    last = MAX_IN_FLIGHT - RESUME_IN_FLIGHT - 1
    wait_until(lambda: {rank for rank, _ in fabric.hurried} == {0, 1})
    assert all(last in numbers for _, numbers in fabric.hurried)
    assert [len(given) for given in fabric.given] == MAX_IN_FLIGHT * [2]
    for number in range(last):
        fabric.finish(number, vector(0))
    assert len(fabric.given) == MAX_IN_FLIGHT
    for number in range(last, last + MAX_TOGETHER):  # those that may share its event
        fabric.finish(number, vector(0))
    wait_until(lambda: [len(given) for given in fabric.given] == (MAX_IN_FLIGHT + 2) * [2])
    for number in range(last + MAX_TOGETHER, MAX_IN_FLIGHT + 2):
        fabric.finish(number, vector(1))
    for made in slots:
        for slot in made:
            assert slot.array().shape == (8,)
    members.leave()


def test_a_lost_member_aborts_what_is_in_flight_and_nobody_sees_its_outputs() -> None:
    fabric = Fabric(3)
    fabric.is_stuck = True
    members = members_of(fabric)
    slots = [members.issue(rank, SUM, vector(rank))[0] for rank in range(3)]
    wait_until(lambda: [len(given) for given in fabric.given] == [3])
    members.rings[1].report(GroupBroken(0, 2, "it was killed"))
    for slot in slots:
        error = failure_of(slot)
        assert (error.member, error.address) == (2, members.addresses[2])
    members.leave()
    assert [one.ended for one in fabric.communicators] == 3 * ["aborted"]


def test_an_error_of_nccl_fails_the_group_with_its_text() -> None:
    fabric = Fabric(2)
    fabric.is_stuck = True
    members = members_of(fabric)
    slots = [members.issue(rank, SUM, vector(rank))[0] for rank in range(2)]
    wait_until(lambda: [len(given) for given in fabric.given] == [2])
    fabric.error = RuntimeError("NCCL_ERROR_SYSTEM_ERROR")
    for slot in slots:
        assert "NCCL failed: NCCL_ERROR_SYSTEM_ERROR" in str(failure_of(slot))
    members.leave()


def test_a_collective_that_nccl_does_not_finish_fails_after_the_bound() -> None:
    fabric = Fabric(2)
    fabric.is_stuck = True
    members = members_of(fabric, issue_seconds=0.2)
    slots = [members.issue(rank, SUM, vector(rank))[0] for rank in range(2)]
    for slot in slots:
        text = str(failure_of(slot))
        assert "NCCL did not finish a collective within 0.4 seconds; run the servers" in text
    members.leave()
    assert [one.ended for one in fabric.communicators] == 2 * ["aborted"]


def test_a_start_that_takes_too_long_fails_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_engine, "START_SECONDS", 0.1)
    fabric = Fabric(2)
    fabric.joined = threading.Barrier(3)  # one more than the members
    members = members_of(fabric)
    for slot in [members.issue(rank, SUM, vector(rank))[0] for rank in range(2)]:
        text = str(failure_of(slot))
        assert "NCCL did not start within 0.1 seconds; run the servers with NCCL_DEBUG=INFO" in text
    fabric.joined.abort()
    members.leave()


def test_nccl_is_not_started_before_all_members_are_there() -> None:
    fabric = Fabric(3)
    members = members_of(fabric, absent=(2,))
    slots = [members.issue(rank, SUM, vector(rank))[0] for rank in range(2)]
    for slot in slots:
        assert failure_of(slot).member == 2
    members.leave()
    assert not fabric.communicators
    assert not fabric.joined.n_waiting


def test_a_member_that_leaves_waits_for_its_collectives() -> None:
    fabric = Fabric(2)
    members = members_of(fabric)
    (first,) = members.issue(0, SUM, vector(0))
    members.rings[0].leave()
    (second,) = members.issue(1, SUM, vector(1))
    for slot in (first, second):
        np.testing.assert_array_equal(slot.array(), vector(0) + vector(1))
    members.leave()


def test_members_agree_on_collectives_whose_inputs_are_not_there() -> None:
    fabric = Fabric(3)
    members = members_of(fabric)
    arriving = [[InFlight(VECTOR, PATIENCE_SECONDS) for _ in range(3)] for _ in range(4)]
    slots = [
        [members.issue(rank, SUM, inputs[rank])[0] for rank in range(3)] for inputs in arriving
    ]
    # All members know of all collectives, of which none has begun.
    wait_until(lambda: all(len(ring._begun) == 4 for ring in members.rings.values()))
    assert not fabric.given
    for inputs, made in zip(arriving, slots, strict=True):
        for rank, one in enumerate(inputs):
            one.complete(vector(rank))
        for slot in made:
            np.testing.assert_array_equal(slot.array(), sum(map(vector, range(3))))
    members.leave()


def test_a_collective_that_differs_is_refused_before_it_starts() -> None:
    fabric = Fabric(2)
    members = members_of(fabric)
    never = InFlight(VECTOR, PATIENCE_SECONDS)
    other = CollectiveCall(CollectiveKind.ALL_REDUCE, (VECTOR,), Reduction.MAX)
    slots = [members.issue(0, SUM, never)[0], members.issue(1, other, vector(1))[0]]
    for slot in slots:
        assert "all_reduce by sum" in str(failure_of(slot))
    never.complete(vector(0))
    members.leave()
    assert not fabric.given


def test_a_collective_that_differs_leaves_earlier_ones_in_flight() -> None:
    fabric = Fabric(2)
    fabric.is_stuck = True
    members = members_of(fabric)
    slots = [members.issue(rank, SUM, vector(rank))[0] for rank in range(2)]
    wait_until(lambda: [len(given) for given in fabric.given] == [2])
    other = CollectiveCall(CollectiveKind.ALL_REDUCE, (VECTOR,), Reduction.MAX)
    later = [members.issue(rank, [SUM, other][rank], vector(rank))[0] for rank in range(2)]
    for slot in later:
        assert "issued all_reduce by max" in str(failure_of(slot))
    fabric.finish(0, vector(5))
    for slot in slots:
        np.testing.assert_array_equal(slot.array(), vector(5))
    members.leave()


@pytest.mark.parametrize("late", range(3))
def test_a_member_whose_input_never_arrives_is_named_and_the_started_ones_are_aborted(
    late: int,
) -> None:
    fabric = Fabric(3)
    members = members_of(fabric, issue_seconds=0.4)
    never = InFlight(VECTOR, PATIENCE_SECONDS)
    slots = [
        members.issue(rank, SUM, never if rank == late else vector(rank))[0] for rank in range(3)
    ]
    for slot in slots:
        error = failure_of(slot)
        assert error.member == late
        assert "did not get the inputs of collective 0, all_reduce by sum" in str(error)
        assert f"session {late} is idle" in str(error)
    never.complete(vector(late))
    members.leave()
    assert [one.ended for one in fabric.communicators] == 3 * ["aborted"]


def test_an_error_of_nccl_is_told_while_a_member_waits_for_an_input() -> None:
    fabric = Fabric(2)
    members = members_of(fabric)
    never = InFlight(VECTOR, PATIENCE_SECONDS)
    slots = [members.issue(rank, SUM, never)[0] for rank in range(2)]
    fabric.error = RuntimeError("NCCL_ERROR_SYSTEM_ERROR")
    for slot in slots:
        text = str(failure_of(slot))
        assert "NCCL failed: NCCL_ERROR_SYSTEM_ERROR" in text
        assert "an input" not in text
    never.complete(vector(0))
    members.leave()


@pytest.mark.parametrize("seed", range(5))
def test_members_that_issue_at_their_own_pace_carry_out_all_collectives(seed: int) -> None:
    fabric, count = Fabric(3), 100
    members = members_of(fabric)
    late: queue.SimpleQueue[tuple[InFlight, int] | None] = queue.SimpleQueue()
    slots: list[list[InFlight]] = [[] for _ in range(3)]

    def issue(rank: int) -> None:
        choices = random.Random(3 * seed + rank)
        for _ in range(count):
            arriving = InFlight(VECTOR, PATIENCE_SECONDS)
            is_late = choices.random() < 0.2
            slots[rank] += members.issue(rank, SUM, arriving if is_late else vector(rank))
            if is_late:
                late.put((arriving, rank))

    def complete_late_inputs() -> None:
        while (item := late.get()) is not None:
            arriving, rank = item
            arriving.complete(vector(rank))

    completing = threading.Thread(target=complete_late_inputs)
    issuing = [threading.Thread(target=issue, args=(rank,)) for rank in range(3)]
    for thread in [completing, *issuing]:
        thread.start()
    for thread in issuing:
        thread.join(PATIENCE_SECONDS)
    for slot in [slot for made in slots for slot in made]:
        np.testing.assert_array_equal(slot.array(), sum(map(vector, range(3))))
    late.put(None)
    completing.join(PATIENCE_SECONDS)
    assert len(fabric.given) == count
    members.leave()
