"""How every router of responses fails its requests: tests for the routers of all dialects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import pytest

from burn_remote.runner.pending import Pending
from burn_remote_protocol.errors import ConnectionLost

__all__ = ["FailureConformance"]


class FailureConformance(ABC):
    """Tests of ``fail``; a subclass provides the router."""

    @abstractmethod
    def requests(self) -> tuple[Any, Pending[Any], Pending[Any]]:
        """Return a router and two of its open requests, in the order in which they were sent."""

    def test_requests_are_done_when_failing_them_returns_in_any_thread(self) -> None:
        router, first, second = self.requests()
        lost = ConnectionLost("gone")
        seen: list[bool] = []

        def fail_too(_: Pending[Any]) -> None:
            router.fail(lost)  # as another thread does that notices the end meanwhile
            seen.append(second.done())

        first.when_done(fail_too)
        router.fail(lost)
        assert seen == [True]

    def test_an_interrupt_while_requests_fail_leaves_the_others_to_the_next_call(self) -> None:
        router, first, second = self.requests()

        def interrupt(_: Pending[Any]) -> None:
            raise KeyboardInterrupt

        first.when_done(interrupt)
        with pytest.raises(KeyboardInterrupt):
            router.fail(ConnectionLost("gone"))
        router.fail(ConnectionLost("gone"))
        assert second.done()
