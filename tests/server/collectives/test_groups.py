"""A process has a bounded number of members, also of those that have left and still end."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable

import pytest

from burn_remote_protocol.collectives import EngineKind, GroupSpec
from burn_remote_protocol.errors import OperationFailed
from burn_remote_protocol.messages import JoinGroup
from burn_remote_server.access.quota import Quota
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.collectives import groups as module
from burn_remote_server.collectives import member as member_module
from burn_remote_server.collectives.collective_engine import GroupIsBroken
from burn_remote_server.collectives.groups import Groups, SessionGroups
from burn_remote_server.collectives.links import Incoming
from burn_remote_server.telemetry.counters import CounterRegistry
from support.waiting import wait_until

OWN = "ws://own:1"


class Dialler:
    """Dials neighbours that never join, until the test gives up."""

    def __init__(self) -> None:
        self.given_up = threading.Event()

    def join_seconds(self, spec: GroupSpec) -> float:
        return 86_400.0

    def dial(self, spec: GroupSpec, party: str, check: Callable[[], None]) -> Incoming:
        while not self.given_up.wait(0.01):
            check()
        raise GroupIsBroken


def joined(session: SessionGroups, group: int) -> None:
    spec = GroupSpec(secrets.token_bytes(32), 0, (OWN, "ws://other:1"), 86_400.0)
    session.join(JoinGroup(group, spec))


def test_one_client_has_at_most_half_of_the_members_of_a_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_MEMBERS", 4)
    monkeypatch.setattr(member_module, "LEAVING_SECONDS", 0.0)
    dialler = Dialler()
    groups = Groups(dialler, OWN.__eq__, CounterRegistry(), [EngineKind.RING])
    sessions = [
        groups.session(NumpyBackend(), Quota(2**20, 10), is_staged=False, party=party)
        for party in ("one", "one", "other")
    ]
    for session in sessions[:2]:
        joined(session, 0)
    joined(sessions[0], 1)
    with pytest.raises(OperationFailed, match=r"2 members of groups of this client.* 4 are all"):
        sessions[0].spec(1)
    joined(sessions[2], 1)
    assert sessions[2].spec(1).rank == 0
    for session in sessions:
        session.end()
    dialler.given_up.set()
    wait_until(lambda: not groups._places.total)
    joined(sessions[0], 1)
    assert sessions[0].spec(1).rank == 0
    sessions[0].end()
    wait_until(lambda: not groups._places.total)


def test_a_client_that_joins_again_and_again_starts_no_further_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_MEMBERS", 8)
    monkeypatch.setattr(member_module, "LEAVING_SECONDS", 0.5)
    dialler = Dialler()
    groups = Groups(dialler, OWN.__eq__, CounterRegistry(), [EngineKind.RING])
    session = groups.session(NumpyBackend(), Quota(2**20, 10), is_staged=False)
    before = threading.active_count()
    for _ in range(100):
        joined(session, 0)  # leaves the group that had the number, whose neighbour never joins
    assert threading.active_count() <= before + 2 * 4
    session.end()
    dialler.given_up.set()
    wait_until(lambda: not groups._places.total)


@pytest.mark.parametrize("started", [0, 1])
def test_a_member_without_threads_is_refused_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, started: int
) -> None:
    groups = Groups(Dialler(), OWN.__eq__, CounterRegistry(), [EngineKind.RING])
    session = groups.session(NumpyBackend(), Quota(2**20, 10), is_staged=False)
    before = {*threading.enumerate()}
    start = threading._start_new_thread  # type: ignore[attr-defined]
    left = [start] * started

    def start_some(*arguments: object) -> object:
        if not left:
            raise RuntimeError("can't start new thread")
        return left.pop()(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(threading, "_start_new_thread", start_some)
        joined(session, 0)
    with pytest.raises(OperationFailed, match="member 0: its server has no thread for it"):
        session.spec(0)
    assert not groups._places.total and not groups._ranks
    wait_until(lambda: {*threading.enumerate()} <= before)
