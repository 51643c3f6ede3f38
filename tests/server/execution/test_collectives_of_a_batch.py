"""Collectives that follow each other in a batch begin together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from burn_remote_protocol.collectives import CollectiveCall, CollectiveKind, GroupSpec
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.messages import Collective, Drop, JoinGroup, LeaveGroup, Seed, Task
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.tensors.slots import InFlight, Lent
from support.engines import EngineSession

CALL = CollectiveCall(CollectiveKind.ALL_REDUCE, (TensorSpec((2,), F32),))


class RecordingGroups:
    """The groups of a session, which note what the engine calls."""

    def __init__(self) -> None:
        self.seen: list[int | str] = []

    def join(self, task: JoinGroup) -> None:
        raise NotImplementedError

    def spec(self, group: int) -> GroupSpec:
        return GroupSpec(bytes(32), 0, ("ws://a:1", "ws://b:1"), 1.0)

    def submit(
        self, task: Collective, inputs: Sequence[InFlight | Lent], outputs: Sequence[InFlight]
    ) -> None:
        self.seen.append(task.sequence)

    def flush(self) -> None:
        self.seen.append("flush")

    def reject(self, task: Collective, reason: str) -> None:
        self.seen.append("reject")

    def leave(self, task: LeaveGroup) -> None:
        raise NotImplementedError

    def end(self) -> None:
        raise NotImplementedError


def collective(sequence: int, source: int = 1) -> Collective:
    return Collective(0, sequence, CALL, (source,), (100 + sequence,))


MISSING = 99


@pytest.mark.parametrize(
    ("tasks", "seen"),
    [
        ([collective(0)], [0, "flush"]),
        ([collective(0), collective(1), collective(2)], [0, 1, 2, "flush"]),
        ([collective(0), Drop((100,)), collective(1)], [0, 1, "flush"]),
        ([collective(0), Drop((100,)), Drop((101,)), Drop((102,))], [0, "flush"]),
        ([collective(0), Seed(1), collective(1)], [0, "flush", 1, "flush"]),
        ([collective(0), Drop((100,))], [0, "flush"]),
        ([collective(0), collective(1, MISSING)], [0, "reject", "flush"]),
    ],
)
def test_collectives_begin_once_none_follows_directly(
    tasks: list[Task], seen: list[int | str]
) -> None:
    session = EngineSession()
    groups = session.engine._groups = RecordingGroups()
    session.upload(1, 1.0, 2.0)
    session.run(*tasks)
    assert groups.seen == seen
