"""The engine ``nccl`` with a fake communicator: starts, failures in flight, aborts and the end.

The fake does what NCCL documents: it waits for all members to join, a collective waits for all of
them forever, and an abort ends what is in flight and leaves anything in its outputs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.collectives import CollectiveCall, CollectiveKind, Reduction
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import CollectiveFailed, OperationFailed
from burn_remote_protocol.messages import GroupBroken
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.collectives.nccl_engine import (
    MAX_IN_FLIGHT,
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
        self.given: list[list[Any]] = []
        self.communicators: list[FakeCommunicator] = []
        self.error: Exception | None = None
        self.is_stuck = False  # collectives go on forever
        self.hurried: list[tuple[int, int]] = []  # the rank and the number of a collective


def _once(
    done: Callable[[Sequence[Any] | None], None],
) -> Callable[[Sequence[Any] | None], None]:
    """Return a function that calls ``done`` the first time: the event of a collective passes once.

    So an abort does not pass the event of a collective that was done before.
    """
    left = [done]

    def passed(arrays: Sequence[Any] | None) -> None:
        try:
            first = left.pop()
        except IndexError:
            return
        first(arrays)

    return passed


class FakeCommunicator:
    """One member of a communicator; all-reduces by sum."""

    def __init__(self, fabric: Fabric, rank: int) -> None:
        self._fabric = fabric
        self._rank = rank
        self._started = 0
        self._waiting: list[Callable[[Sequence[Any] | None], None]] = []
        self.ended = ""
        fabric.joined.wait(PATIENCE_SECONDS)
        fabric.communicators.append(self)

    def start(
        self,
        call: CollectiveCall,
        inputs: Sequence[Any],
        specs: Sequence[TensorSpec],
        done: Callable[[Sequence[Any] | None], None],
    ) -> Callable[[], None]:
        fabric, done = self._fabric, _once(done)
        with fabric.lock:
            if len(fabric.given) == self._started:
                fabric.given.append([])
            given = fabric.given[self._started]
            given.append((inputs[0], done))
            number, self._started = self._started, self._started + 1
            self._waiting.append(done)
            is_complete = len(given) == fabric.members and not fabric.is_stuck
        if is_complete:
            total = sum(array for array, _ in given)
            for _, each in given:
                threading.Thread(target=each, args=([total],)).start()
        return lambda: fabric.hurried.append((self._rank, number))

    def examine(self) -> None:
        if self._fabric.error is not None:
            raise self._fabric.error

    def abort(self) -> None:
        self.ended = "aborted"
        for done in self._waiting:
            done([GARBAGE])  # the GPU's events pass

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
    for _, done in fabric.given[0]:
        done([vector(5)])
    for slot in slots:
        np.testing.assert_array_equal(slot.array(), vector(5))
    members.leave()


def test_a_reader_hurries_the_collective_that_it_waits_for() -> None:
    fabric = Fabric(2)
    fabric.is_stuck = True
    members = members_of(fabric)
    slots = [[members.issue(rank, SUM, vector(rank))[0] for rank in range(2)] for _ in range(3)]
    wait_until(lambda: [len(given) for given in fabric.given] == [2, 2, 2])
    assert not fabric.hurried
    assert not slots[1][0].wait(0.0)
    assert fabric.hurried == [(0, 1)]
    members.rings[0].abandon("the test is over")
    members.leave()


def test_a_member_with_many_collectives_in_flight_goes_on_when_half_of_them_are_done() -> None:
    fabric = Fabric(2)
    fabric.is_stuck = True
    members = members_of(fabric)
    slots = [
        [members.issue(rank, SUM, vector(rank))[0] for rank in range(2)]
        for _ in range(MAX_IN_FLIGHT + 2)
    ]
    # Both wait, and hurry the one after which they go on.
    last = MAX_IN_FLIGHT - RESUME_IN_FLIGHT - 1
    wait_until(lambda: sorted(fabric.hurried) == [(0, last), (1, last)])
    assert [len(given) for given in fabric.given] == MAX_IN_FLIGHT * [2]
    for number in range(last):
        for _, done in fabric.given[number]:
            done([vector(0)])
    assert len(fabric.given) == MAX_IN_FLIGHT
    for _, done in fabric.given[last]:
        done([vector(0)])
    wait_until(lambda: [len(given) for given in fabric.given] == (MAX_IN_FLIGHT + 2) * [2])
    for given in fabric.given[last + 1 :]:
        for _, done in given:
            done([vector(1)])
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
        assert "NCCL did not finish a collective within 0.4 seconds" in str(failure_of(slot))
    members.leave()
    assert [one.ended for one in fabric.communicators] == 2 * ["aborted"]


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
