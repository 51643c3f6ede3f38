"""The failure that a group of servers reports."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from burn_remote.distributed.server_engines import RingEngine
from burn_remote.runner.pending import Pending
from burn_remote_protocol.collectives import GROUP_SECRET_BYTES, GroupSpec
from burn_remote_protocol.errors import BurnRemoteError, CollectiveFailed, ConnectionLost

LOST = ConnectionLost("cut")
FAILED = CollectiveFailed("member 2 did not answer", member=2, address="ws://c")


class Member:
    """A device and its runners; the read of its barrier fails."""

    def __init__(self, error: BurnRemoteError, *, attends: bool) -> None:
        self.runners = self
        self._error = error
        self._attends = attends

    def collective(self, *_: object) -> list[object]:
        return [object()]

    def read_tensor_async(self, token: object) -> Pending[Any]:
        read = Read(self._attends)
        read.fail(self._error)
        return read


class Read(Pending[Any]):
    """A read that raises an error if its session has ended."""

    def __init__(self, attends: bool) -> None:
        super().__init__()
        self._attends = attends

    def attend(self) -> None:
        if not self._attends:
            raise LOST


class Engine(RingEngine):  # type: ignore[misc]  # it is final
    """An engine whose members were not joined."""

    def __init__(self, *members: Member) -> None:
        self._devices = members  # type: ignore[assignment]
        self._numbers = [0] * len(members)
        spec = GroupSpec(bytes(GROUP_SECRET_BYTES), 0, ("ws://a", "ws://b"), 1.0)
        self._specs = [spec] * len(members)

    @contextlib.contextmanager
    def complete(self, parts: object) -> Iterator[None]:
        yield


def test_the_failure_of_a_member_is_found_behind_one_whose_session_ends_meanwhile() -> None:
    engine = Engine(Member(LOST, attends=False), Member(FAILED, attends=True))
    failure = engine.failure()
    assert failure is not None
    assert failure.member == FAILED.member
