"""Collectives of a session: which of them may share the event that makes their inputs ready."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from burn_remote_protocol.collectives import CollectiveCall, CollectiveKind, EngineKind, GroupSpec
from burn_remote_protocol.errors import OperationFailed
from burn_remote_protocol.messages import Collective, Define, Drop, JoinGroup, LeaveGroup, Upload
from burn_remote_server.tensors.slots import InFlight, Lent
from support.engines import EngineSession, floats, vector
from support.kernels import signature

ALONE = GroupSpec(bytes(32), 0, ("ws://one:1",), 1.0, 1.0, EngineKind.MEMORY)
SUM = CollectiveCall(CollectiveKind.ALL_REDUCE, (vector(2),))
NEGATE = signature("Numeric.MulScalar", vector(2), rhs=-1.0)


class OneMember:
    """Groups of one member, whose collectives give their inputs."""

    def join(self, task: JoinGroup) -> None:
        raise AssertionError

    def spec(self, group: int) -> GroupSpec:
        if group:
            raise OperationFailed(f"this session is not a member of group {group}")
        return ALONE

    def submit(
        self, task: Collective, inputs: Sequence[InFlight | Lent], outputs: Sequence[InFlight]
    ) -> None:
        for one, slot in zip(inputs, outputs, strict=True):
            assert isinstance(one, Lent)
            slot.complete(one.array)

    def reject(self, task: Collective, reason: str) -> None:
        """Reject nothing: there is no other member."""

    def leave(self, task: LeaveGroup) -> None:
        raise AssertionError

    def end(self) -> None:
        """Leave nothing."""


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> EngineSession:
    """A session that notes in ``has_worked`` whether it may have worked between collectives."""
    made = EngineSession(groups=OneMember())
    made.run(Define(0, NEGATE), Upload(1, floats(1, 2)), Upload(2, floats(3, 4)))
    backend: Any = made.interpreter.session
    made.has_worked = []  # type: ignore[attr-defined]

    def share_all(arrays: Sequence[Any], *, has_worked: bool = True) -> list[Any]:
        made.has_worked.append(has_worked)  # type: ignore[attr-defined]
        return [*arrays]

    monkeypatch.setattr(backend, "share_all", share_all)
    return made


def collective(number: int, tensor: int, output: int, group: int = 0) -> Collective:
    return Collective(group, number, SUM, (tensor,), (output,))


def has_worked(session: EngineSession) -> Any:
    return session.has_worked  # type: ignore[attr-defined]


def test_nothing_happens_between_collectives_of_a_batch_with_only_drops_in_between(
    session: EngineSession,
) -> None:
    session.run(
        collective(0, 1, 10),
        collective(1, 2, 11),
        Drop((10,)),
        Drop((11,)),
        collective(2, 1, 12),
    )
    assert has_worked(session) == [True, False, False]


@pytest.mark.parametrize(
    "task",
    [(0, 1, 5), Upload(5, floats(1, 2)), Define(1, NEGATE)],
    ids=["operation", "upload", "define"],
)
def test_other_tasks_between_collectives_count_as_work(session: EngineSession, task: Any) -> None:
    session.run(collective(0, 1, 10), Drop((10,)), task, Drop((2,)), collective(1, 1, 11))
    assert has_worked(session) == [True, True]


def test_the_first_collective_of_a_batch_may_follow_work(session: EngineSession) -> None:
    session.run(collective(0, 1, 10))
    session.run(Drop((10,)), collective(1, 1, 11))
    assert has_worked(session) == [True, True]


def test_a_collective_after_one_that_failed_shares_anew(session: EngineSession) -> None:
    session.run(collective(0, 1, 10))
    session.run((0, 1, 5), collective(0, 5, 11, group=7), collective(1, 5, 12))
    assert has_worked(session) == [True, True]
    assert len(session.outbox.failures) == 1
