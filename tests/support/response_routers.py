"""How every router of responses fails its requests: tests for the routers of all dialects."""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from burn_remote.runner.pending import Pending
from burn_remote_protocol.errors import ConnectionLost
from support.garbage import finalizers_that_call
from support.waiting import PATIENCE_SECONDS

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

    def test_requests_may_come_from_finalizers_and_go_in_other_threads_while_they_fail(
        self,
    ) -> None:
        router, *_ = self.requests()
        numbers = itertools.count(100)
        sent: list[Pending[Any]] = []
        threads = 3
        limit = 1000  # failing a request allocates memory, so finalizers would send more and more
        beginning = threading.Barrier(threads)

        def send() -> None:
            pending: Pending[Any] = Pending()
            router.expect(next(numbers), pending, None)
            sent.append(pending)

        def send_one_of_few() -> None:
            if len(sent) < limit:
                send()

        def fail() -> None:
            beginning.wait(PATIENCE_SECONDS)
            for _ in range(20):
                for _ in range(20):
                    send()
                router.fail(ConnectionLost("gone"))

        with ThreadPoolExecutor(threads) as pool, finalizers_that_call(send_one_of_few):
            failing = [pool.submit(fail) for _ in range(threads)]
            for one in failing:
                one.result(PATIENCE_SECONDS)
        router.fail(ConnectionLost("gone"))
        assert all(pending.done() for pending in sent)
