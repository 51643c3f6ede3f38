"""Replies complete the requests that wait for them, and a sync raises the first failure."""

from __future__ import annotations

from typing import Any

import pytest

from burn_remote.runner.pending import Pending
from burn_remote.sessions.locations import RING_LENGTH, Locations
from burn_remote.sessions.native.response_router import UNREPORTED_LENGTH, ResponseRouter
from burn_remote_protocol.errors import ClosedDevice, OperationFailed
from burn_remote_protocol.messages import Failed, Reply


def failed(tensor: int) -> Failed:
    return Failed((tensor,), OperationFailed(f"failure {tensor}", operation="Add", tensor=tensor))


def asked(answers: ResponseRouter, request: int) -> Pending[Any]:
    pending: Pending[Any] = Pending()
    answers.expect(request, pending, None)
    return pending


def test_a_sync_raises_the_first_of_many_failures() -> None:
    answers = ResponseRouter(Locations())
    sync = asked(answers, 1)
    for tensor in range(UNREPORTED_LENGTH + 10):
        answers.take(failed(tensor))
    answers.take(Reply(1, None))
    with pytest.raises(OperationFailed, match=r"failure 0\b"):
        sync.result(0)


def test_a_sync_raises_no_failure_that_a_read_has_raised() -> None:
    answers = ResponseRouter(Locations())
    read, sync = asked(answers, 1), asked(answers, 2)
    for tensor in (5, 6):
        answers.take(failed(tensor))
    answers.take(Reply(1, failed(5).error))
    answers.take(Reply(2, None))
    for pending, tensor in ((read, 5), (sync, 6)):
        with pytest.raises(OperationFailed, match=rf"failure {tensor}\b"):
            pending.result(0)


@pytest.mark.parametrize("value", [None, failed(5).error])
def test_a_reply_is_delivered_although_another_thread_ends_the_session(value: Any) -> None:
    answers = ResponseRouter(Locations())
    pending, other = asked(answers, 1), asked(answers, 2)
    pending.when_done(lambda _: answers.fail(ClosedDevice("closed")))
    answers.take(Reply(1, value))
    for one, error in ((pending, OperationFailed if value else None), (other, ClosedDevice)):
        if error is None:
            one.result(0)
        else:
            with pytest.raises(error):
                one.result(0)


def test_a_failure_names_its_line_however_many_operations_follow() -> None:
    locations = Locations()
    answers = ResponseRouter(locations)
    note(locations, 1)
    answers.take(failed(1))
    for tensor in range(2, RING_LENGTH + 2):
        note(locations, tensor)
    sync = asked(answers, 1)
    answers.take(Reply(1, None))
    with pytest.raises(OperationFailed, match="test_response_router"):
        sync.result(0)


def note(locations: Locations, tensor: int) -> None:
    """Record a tensor from the same call depth as a session does."""

    def execute() -> None:
        locations.note(tensor)

    def register_op() -> None:
        execute()

    register_op()
