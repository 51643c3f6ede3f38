"""Members of a group in one process: results, failures and their end."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.collectives import CollectiveCall, CollectiveKind, GroupSpec, Reduction
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import CollectiveFailed, ConnectionFailed, OperationFailed
from burn_remote_protocol.messages import BeginCollective, GroupBroken
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.collectives import member as module
from burn_remote_server.collectives.collective_engine import Job
from burn_remote_server.collectives.links import Incoming, MemoryPipe, Piece
from burn_remote_server.collectives.member import Member
from burn_remote_server.collectives.memory_engine import MemoryEngine
from burn_remote_server.collectives.ring_engine import RingEngine
from burn_remote_server.telemetry.counters import Counters
from burn_remote_server.tensors.slots import InFlight, Lent
from support.members import Members
from support.waiting import PATIENCE_SECONDS, wait_until

Kind = CollectiveKind
VECTOR = TensorSpec((1000,), F32)
SUM = CollectiveCall(Kind.ALL_REDUCE, (VECTOR,))
BARRIER = CollectiveCall(Kind.BARRIER)


def vector(rank: int) -> Any:
    return np.arange(1000, dtype=np.float32) + rank


def error_of(slot: InFlight) -> CollectiveFailed:
    with pytest.raises(CollectiveFailed) as failed:
        slot.array()
    return failed.value


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_all_members_get_the_same_sum_and_end(count: int) -> None:
    members = Members(count)
    slots = [members.issue(rank, SUM, vector(rank)) for rank in range(count)]
    results = [slot.array() for (slot,) in slots]
    for result in results:
        np.testing.assert_array_equal(result, sum(vector(rank) for rank in range(count)))
    assert len({result.tobytes() for result in results}) == 1
    members.leave()


def test_inputs_that_still_arrive_are_waited_for() -> None:
    members = Members(2)
    arriving = InFlight(VECTOR, PATIENCE_SECONDS)
    (first,), (second,) = members.issue(0, SUM, arriving), members.issue(1, SUM, vector(1))
    arriving.complete(vector(0))
    np.testing.assert_array_equal(first.array(), second.array())
    members.leave()


def test_an_input_is_not_changed() -> None:
    members = Members(3)
    inputs = [vector(rank) for rank in range(3)]
    slots = [members.issue(rank, SUM, inputs[rank]) for rank in range(3)]
    for rank, (slot,) in enumerate(slots):
        slot.array()
        np.testing.assert_array_equal(inputs[rank], vector(rank))
    members.leave()


def test_a_failed_input_names_its_member_everywhere() -> None:
    members = Members(4)
    failed = InFlight(VECTOR, PATIENCE_SECONDS)
    failed.fail(OperationFailed("no such thing"))
    slots = [members.issue(rank, SUM, failed if rank == 2 else vector(rank)) for rank in range(4)]
    for (slot,) in slots:
        error = error_of(slot)
        assert (error.member, error.address) == (2, members.addresses[2])
        assert "no such thing" in str(error)
        assert error.operation == "Collective"
    members.leave()


def test_calls_that_differ_fail_everywhere_with_both_descriptions() -> None:
    members = Members(3)
    different = CollectiveCall(Kind.ALL_REDUCE, (VECTOR,), Reduction.MIN)
    slots = [
        members.issue(rank, different if rank == 1 else SUM, vector(rank)) for rank in range(3)
    ]
    for (slot,) in slots:
        text = str(error_of(slot))
        assert "all_reduce by sum" in text
        assert "all_reduce by min" in text
    members.leave()


def test_a_member_that_leaves_does_its_part_of_what_it_issued() -> None:
    members = Members(3)
    done = [members.issue(rank, SUM, vector(rank)) for rank in range(3)]
    members.rings[1].leave()
    for (slot,) in done:
        assert slot.array()[0] == 3
    assert members.ended[1].wait(PATIENCE_SECONDS)
    for rank in (0, 2):
        (slot,) = members.issue(rank, SUM, vector(rank))
        error = error_of(slot)
        assert error.member == 1
        assert "left the group" in str(error)
    members.leave()


def test_a_member_that_does_not_join_is_named() -> None:
    members = Members(3, absent=(1,))
    (slot,) = members.issue(0, BARRIER)
    assert error_of(slot).member == 1
    members.leave()


def test_a_link_that_cannot_be_dialled_names_the_previous_member() -> None:
    def dial(check: Callable[[], None]) -> Incoming:
        raise ConnectionFailed("nothing listens there")

    ended = threading.Event()
    spec = GroupSpec(bytes(32), 0, ("ws://a:1", "ws://b:1", "ws://c:1"), 1.0)
    ring = Member(spec, NumpyBackend(), RingEngine, dial, Counters(), Members.setting(ended), 1.0)
    slot = InFlight(VECTOR, PATIENCE_SECONDS)
    ring.submit(Job(0, SUM, [Lent(vector(0))], [slot], [7]))
    ring.start()
    error = error_of(slot)
    assert (error.member, error.tensor) == (2, 7)
    assert "nothing listens there" in str(error)
    ring.leave()
    assert ended.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize("late", range(4))
def test_a_member_that_is_alive_but_issues_nothing_is_named_everywhere(late: int) -> None:
    members = Members(4, issue_seconds=0.6)
    done = [members.issue(rank, SUM, vector(rank)) for rank in range(4)]
    assert all(slot.array()[0] == 6 for (slot,) in done)
    slots = [members.issue(rank, SUM, vector(rank)) for rank in range(4) if rank != late]
    for (slot,) in slots:
        error = error_of(slot)
        assert (error.member, error.address) == (late, members.addresses[late])
        assert "it is alive, but did not issue collective 1, all_reduce by sum" in str(error)
        assert f"after member {(late - 1) % 4} began it; session {late} is idle" in str(error)
    (own,) = members.issue(late, SUM, vector(late))
    assert error_of(own).member == late
    members.leave()


def test_of_two_late_members_the_one_whose_neighbour_has_begun_is_named() -> None:
    members = Members(4, issue_seconds=1.2)  # member 3 names member 2 after 1.8 s
    slots = [members.issue(rank, SUM, vector(rank)) for rank in (0, 3)]
    for (slot,) in slots:
        error = error_of(slot)
        assert error.member == 1
        assert "after member 0 began it; session 1 is idle" in str(error)
    members.leave()


def test_a_member_whose_input_never_arrives_is_named() -> None:
    members = Members(3, issue_seconds=0.6)
    never = InFlight(VECTOR, PATIENCE_SECONDS)
    slots = [members.issue(rank, SUM, never if rank == 1 else vector(rank)) for rank in range(3)]
    for (slot,) in slots:
        error = error_of(slot)
        assert error.member == 1
        assert "did not get the inputs of collective 0" in str(error)
    never.fail(OperationFailed("its source is gone"))
    members.leave()


def test_members_that_were_suspended_together_give_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    suspended, looks = 0.0, Counter[int]()
    look = Member._check_silence

    def counted(member: Member) -> None:
        looks[member.spec.rank] += 1
        look(member)

    monkeypatch.setattr(MemoryPipe, "has_beats", True)
    monkeypatch.setattr(Member, "_check_silence", counted)
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + suspended)
    monkeypatch.setattr(module, "time", clock)
    members = Members(3, bound_seconds=60.0)
    done = [members.issue(rank, SUM, vector(rank)) for rank in range(3)]
    assert all(slot.array()[0] == 3 for (slot,) in done)
    suspended = 300.0
    looks.clear()
    wait_until(lambda: all(looks[rank] >= 2 for rank in range(3)))
    later = [members.issue(rank, SUM, vector(rank)) for rank in range(3)]
    assert all(slot.array()[0] == 3 for (slot,) in later)
    members.leave()


def test_the_earliest_failure_counts() -> None:
    members = Members(2)
    (slot,) = members.issue(0, SUM, vector(0))
    members.rings[0].report(GroupBroken(5, 1, "later"))
    members.rings[0].report(GroupBroken(0, 1, "sooner"))
    members.rings[0].report(GroupBroken(0, 0, "again"))
    error = error_of(slot)
    assert (error.member, "sooner" in str(error)) == (1, True)
    members.leave()


@pytest.mark.parametrize("reporter", ["previous", "next"])
def test_a_neighbour_that_names_a_member_that_does_not_exist_has_failed(reporter: str) -> None:
    members = Members(3)
    (slot,) = members.issue(0, SUM, vector(0))
    ring, broken = members.rings[0], GroupBroken(7, 3, "it does not exist")
    if reporter == "next":
        ring.receive_from_next(broken)
    else:
        ring.report(broken, reported_by=2)
    error = error_of(slot)
    assert error.member == (1 if reporter == "next" else 2)
    assert "a failure of member 3 of 3 members" in str(error)
    members.leave()


@pytest.mark.parametrize("is_dialled", [False, True])
def test_a_member_that_leaves_waits_only_shortly_for_neighbours_that_never_join(
    monkeypatch: pytest.MonkeyPatch, is_dialled: bool
) -> None:
    monkeypatch.setattr(module, "LEAVING_SECONDS", 0.0)
    dialling = threading.Event()

    def dial(check: Callable[[], None]) -> Incoming:
        dialling.set()
        while not is_dialled:
            check()
            assert not ended.wait(0.01)
        return MemoryPipe()

    ended = threading.Event()
    spec = GroupSpec(bytes(32), 0, ("ws://a:1", "ws://b:1", "ws://c:1"), 86_400.0)
    setting = Members.setting(ended)
    member = Member(spec, NumpyBackend(), RingEngine, dial, Counters(), setting, 86_400.0)
    slot = InFlight(VECTOR, PATIENCE_SECONDS)
    member.submit(Job(0, SUM, [Lent(vector(0))], [slot], [7]))
    member.start()
    assert dialling.wait(PATIENCE_SECONDS)
    member.leave(has_session=False)
    assert ended.wait(PATIENCE_SECONDS)
    assert "left the group" in str(error_of(slot))


def test_nobody_leaves_a_barrier_before_the_last_has_entered() -> None:
    members = Members(3)
    slots = [members.issue(rank, BARRIER)[0] for rank in (0, 1)]
    done = members.issue(2, SUM, vector(2))  # another call: the barrier can never complete
    assert all(not slot.arrived() or error_of(slot) for slot in (*slots, *done))
    members.leave()


def test_threads_end_with_the_member() -> None:
    before = {*threading.enumerate()}
    for _ in range(5):
        members = Members(3)
        slots = [members.issue(rank, BARRIER)[0] for rank in range(3)]
        assert all(slot.array().size == 0 for slot in slots)
        members.leave()
    wait_until(lambda: {*threading.enumerate()} <= before)


class SlowSlot(InFlight):
    """A slot that is failed only once its member has left the group."""

    def __init__(self, ended: threading.Event) -> None:
        super().__init__(VECTOR, PATIENCE_SECONDS)
        self._ended = ended

    def fail(self, error: OperationFailed) -> None:
        assert self._ended.wait(PATIENCE_SECONDS)
        super().fail(error)


def test_neighbours_hear_the_reason_although_a_member_leaves_before_it_is_told() -> None:
    """The worker leaves before the thread that reports the failure has failed its collectives."""
    members = Members(4)
    job = Job(0, SUM, [Lent(vector(0))], [SlowSlot(members.ended[0])], [1])
    members.rings[0].submit(job)
    broken = GroupBroken(0, 2, "it was killed")
    reporting = threading.Thread(target=members.rings[0].report, args=(broken,))
    reporting.start()
    assert members.ended[0].wait(PATIENCE_SECONDS)
    for neighbour in (1, 3):
        (slot,) = members.issue(neighbour, SUM, vector(neighbour))
        error = error_of(slot)
        assert (error.member, "it was killed" in str(error)) == (2, True)
    reporting.join(PATIENCE_SECONDS)
    members.leave()


def _fail_an_input(members: Members) -> None:
    failed = InFlight(VECTOR, PATIENCE_SECONDS)
    failed.fail(OperationFailed("no such thing"))
    for rank in members.rings:
        members.issue(rank, SUM, failed if rank == 1 else vector(rank))


def _lose_a_member(members: Members) -> None:
    members.rings[0].lost(2, "it was killed")


def _issue_nothing(members: Members) -> None:
    pass


@pytest.mark.parametrize("end", [_issue_nothing, _fail_an_input, _lose_a_member])
def test_the_end_of_a_group_frees_members_and_arrays_without_a_garbage_collection(
    end: Callable[[Members], None],
) -> None:
    """Garbage is collected once a minute: groups that fail one after the other would add up."""
    gc.collect()
    gc.disable()
    try:
        watched = _ended_group(end)
        wait_until(lambda: not [one() for one in watched if one() is not None])
    finally:
        gc.enable()


def _ended_group(end: Callable[[Members], None]) -> list[weakref.ref[Any]]:
    """Let a chain of collectives end; return references to the members and their arrays."""
    members = Members(3)
    first = [vector(rank) for rank in range(3)]
    watched: list[weakref.ref[Any]] = [weakref.ref(ring) for ring in members.rings.values()]
    watched += [weakref.ref(array) for array in first]
    given: list[Any] = [*first]
    for _ in range(3):
        given = [members.issue(rank, SUM, given[rank])[0] for rank in range(3)]
    watched += [weakref.ref(slot.array()) for slot in given]
    end(members)
    for _ in range(5):
        given = [members.issue(rank, SUM, given[rank])[0] for rank in range(3)]
    members.leave()
    return watched


def test_a_member_that_waits_for_the_next_one_hears_why_it_does_not_come() -> None:
    """The previous member alone can report the reason: the next one cannot open its link."""
    pipe = MemoryPipe()
    ended = threading.Event()
    spec = GroupSpec(bytes(32), 0, ("ws://a:1", "ws://b:1", "ws://c:1"), 60.0)
    ring = Member(
        spec, NumpyBackend(), RingEngine, lambda _: pipe, Counters(), Members.setting(ended), 60.0
    )
    slot = InFlight(VECTOR, PATIENCE_SECONDS)
    ring.submit(Job(0, SUM, [Lent(vector(0))], [slot], [1]))
    ring.start()
    pipe.send(GroupBroken(0, 2, "its certificate is not trusted"))
    error = error_of(slot)
    assert (error.member, "certificate" in str(error)) == (2, True)
    ring.attach(MemoryPipe())
    ring.leave()
    assert ended.wait(PATIENCE_SECONDS)


def test_a_member_that_has_ended_fails_collectives_that_the_others_may_complete() -> None:
    """The previous member announces that it leaves after three collectives.

    Its link ends before they are done.
    """
    pipe = MemoryPipe()
    ended = threading.Event()
    spec = GroupSpec(bytes(32), 0, ("ws://a:1", "ws://b:1", "ws://c:1"), 0.5)
    ring = Member(
        spec, NumpyBackend(), RingEngine, lambda _: pipe, Counters(), Members.setting(ended), 0.5
    )
    ring.attach(MemoryPipe())
    ring.start()
    pipe.send(GroupBroken(3, 2, "it left the group"))
    pipe.close()
    slots = [InFlight(VECTOR, PATIENCE_SECONDS) for _ in range(2)]
    for sequence, slot in enumerate(slots):
        ring.submit(Job(sequence, SUM, [Lent(vector(0))], [slot], [1]))
        assert error_of(slot).member == 2
        assert ended.wait(PATIENCE_SECONDS)
    ring.leave()


def test_elements_are_sent_before_the_previous_member_has_begun() -> None:
    """The next member reads them after this member's announcement, if it agrees."""
    incoming, outgoing = MemoryPipe(), MemoryPipe()
    ended = threading.Event()
    spec = GroupSpec(bytes(32), 0, ("ws://a:1", "ws://b:1"), 0.5)
    ring = Member(
        spec, NumpyBackend(), RingEngine, lambda _: incoming, Counters(),
        Members.setting(ended), 0.5,
    )  # fmt: skip
    ring.attach(outgoing)
    ring.start()
    slot = InFlight(VECTOR, PATIENCE_SECONDS)
    ring.submit(Job(0, SUM, [Lent(vector(0))], [slot], [1]))
    found = [outgoing.receive(lambda *_: memoryview(b""), lambda: None) for _ in range(2)]
    assert [type(one) for one in found] == [BeginCollective, Piece]
    assert not slot.arrived()
    ring.abandon("the test is over")
    assert ended.wait(PATIENCE_SECONDS)


class CountingPipe(MemoryPipe):
    """A pipe that counts how often its receiver was woken, and records what was begun.

    Its receiver waits until a message or a ``wake`` comes, and not for a slice of time only.
    """

    def __init__(self) -> None:
        super().__init__()
        self.wakes = 0
        self.is_waiting = threading.Event()
        self.begun: list[list[type]] = []

    def wait(self, timeout_seconds: float) -> bool:
        if timeout_seconds:
            self.is_waiting.set()
        return super().wait(timeout_seconds and PATIENCE_SECONDS)

    def wake(self) -> None:
        self.wakes += 1
        super().wake()

    def begin(self, items: Sequence[BeginCollective | Piece]) -> bool:
        self.begun.append([type(item) for item in items])
        return super().begin(items)


@pytest.fixture(params=[RingEngine, MemoryEngine])
def lone(request: pytest.FixtureRequest) -> Iterator[tuple[Member, CountingPipe, CountingPipe]]:
    """One of two members, and its links from and to the other one, which the test plays."""
    incoming, outgoing, ended = CountingPipe(), CountingPipe(), threading.Event()
    spec = GroupSpec(bytes(32), 0, ("ws://a:1", "ws://b:1"), 60.0)
    ring = Member(
        spec, NumpyBackend(), request.param, lambda _: incoming, Counters(),
        Members.setting(ended), 60.0,
    )  # fmt: skip
    ring.attach(outgoing)
    ring.start()
    yield ring, incoming, outgoing
    ring.abandon("the test is over")
    assert ended.wait(PATIENCE_SECONDS)


def issued(ring: Member, sequence: int) -> InFlight:
    slot = InFlight(VECTOR, PATIENCE_SECONDS)
    ring.submit(Job(sequence, SUM, [Lent(vector(0))], [slot], [1]))
    return slot


def nowhere(sequence: int, offset: int, size: int) -> memoryview:
    return memoryview(b"")


def test_a_new_collective_wakes_its_member_only_if_it_waits_for_one(
    lone: tuple[Member, CountingPipe, CountingPipe],
) -> None:
    ring, incoming, outgoing = lone
    assert incoming.is_waiting.wait(PATIENCE_SECONDS)
    before = incoming.wakes
    slots = [issued(ring, 0)]
    assert isinstance(outgoing.receive(nowhere, lambda: None), BeginCollective)
    assert incoming.wakes == before + 1
    # Now the member waits for the other one's announcement.
    slots += [issued(ring, sequence) for sequence in range(1, 4)]
    assert incoming.wakes == before + 1
    ring.abandon("the test is over")
    for slot in slots:
        assert "the test is over" in str(error_of(slot))


def test_an_announcement_leaves_together_with_the_first_elements(
    lone: tuple[Member, CountingPipe, CountingPipe],
) -> None:
    ring, _, outgoing = lone
    issued(ring, 0)
    for kind in (BeginCollective, Piece):
        assert isinstance(outgoing.receive(nowhere, lambda: None), kind)
    assert outgoing.begun == [[BeginCollective, Piece]]


def test_a_member_without_elements_of_its_own_announces_before_it_waits(
    lone: tuple[Member, CountingPipe, CountingPipe],
) -> None:
    ring, _, outgoing = lone
    call = CollectiveCall(Kind.BROADCAST, (VECTOR,), root=1)
    ring.submit(Job(0, call, [], [InFlight(VECTOR, PATIENCE_SECONDS)], [1]))
    assert isinstance(outgoing.receive(nowhere, lambda: None), BeginCollective)
    assert outgoing.begun == [[BeginCollective]]
