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


class NotingSession(EngineSession):
    """A session that notes for each collective whether it may have worked since the last one."""

    def __init__(self) -> None:
        super().__init__(groups=OneMember())
        self.has_worked: list[bool] = []

    def share_all(self, arrays: Sequence[Any], *, has_worked: bool = True) -> list[Any]:
        self.has_worked.append(has_worked)
        return [*arrays]


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> NotingSession:
    made = NotingSession()
    made.run(Define(0, NEGATE), Upload(1, floats(1, 2)), Upload(2, floats(3, 4)))
    monkeypatch.setattr(made.interpreter.session, "share_all", made.share_all)
    return made


def collective(number: int, tensor: int, output: int, group: int = 0) -> Collective:
    return Collective(group, number, SUM, (tensor,), (output,))


def test_drops_between_collectives_of_a_batch_do_not_count_as_work(
    session: NotingSession,
) -> None:
    session.run(
        collective(0, 1, 10),
        collective(1, 2, 11),
        Drop((10,)),
        Drop((11,)),
        collective(2, 1, 12),
    )
    assert session.has_worked == [True, False, False]


@pytest.mark.parametrize(
    "task",
    [(0, 1, 5), Upload(5, floats(1, 2)), Define(1, NEGATE)],
    ids=["operation", "upload", "define"],
)
def test_other_tasks_between_collectives_count_as_work(session: NotingSession, task: Any) -> None:
    session.run(collective(0, 1, 10), Drop((10,)), task, Drop((2,)), collective(1, 1, 11))
    assert session.has_worked == [True, True]


def test_the_first_collective_of_a_batch_may_follow_work(session: NotingSession) -> None:
    session.run(collective(0, 1, 10))
    session.run(Drop((10,)), collective(1, 1, 11))
    assert session.has_worked == [True, True]


def test_a_collective_after_one_that_failed_shares_anew(session: NotingSession) -> None:
    session.run(collective(0, 1, 10))
    session.run((0, 1, 5), collective(0, 5, 11, group=7), collective(1, 5, 12))
    assert session.has_worked == [True, True]
    assert len(session.outbox.failures) == 1
