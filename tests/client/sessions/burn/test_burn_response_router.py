"""Responses of a Burn server complete the requests that wait for them, in the declared dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from burn_remote.runner.interface import OwningHandle, TensorHandle
from burn_remote.runner.pending import Pending
from burn_remote.sessions.burn.burn_response_router import BurnResponseRouter
from burn_remote.sessions.source_locations import Locations
from burn_remote_protocol.dialects.burn_0_21_responses import BurnReply
from burn_remote_protocol.dtypes import BOOL, BOOL_U8, F32, I32, I64, U8, DType, DTypeUsage
from burn_remote_protocol.errors import ConnectionLost, OperationFailed, ProtocolViolation
from burn_remote_protocol.tensors import TensorData, TensorSpec
from support.response_routers import FailureConformance


class Holder:
    """The client of a handle, which is told when the handle is dropped."""

    def drop_handle(self, identifier: int) -> None:
        """Do nothing, because there is no server."""


def handle(
    dtype: DType, shape: tuple[int, ...] = (2,), identifier: int = 9, holder: Any = None
) -> TensorHandle:
    client: Any = Holder() if holder is None else holder
    made = OwningHandle()
    made.client, made.id, made.spec = client, identifier, TensorSpec(shape, dtype)
    return made


@pytest.fixture
def replies() -> BurnResponseRouter:
    return BurnResponseRouter(Locations())


def asked(
    replies: BurnResponseRouter, request: int, read: TensorHandle | None = None
) -> Pending[Any]:
    pending: Pending[Any] = Pending()
    replies.expect(request, pending, None if read is None else (read.id, read.spec))
    return pending


def test_responses_complete_their_requests_in_any_order(replies: BurnResponseRouter) -> None:
    sync, usage, read = asked(replies, 1), asked(replies, 2), asked(replies, 3, handle(F32))
    data = TensorData(bytes(8), (2,), F32)
    for answer in (BurnReply(3, data), BurnReply(1, None), BurnReply(2, 3)):
        replies.take(answer)
    assert (sync.result(0), usage.result(0), read.result(0)) == (None, DTypeUsage(3), data)


@pytest.mark.parametrize(
    ("declared", "answered", "elements", "expected"),
    [
        (I32, I64, [1, -2], [1, -2]),  # argmax and argmin, as recorded
        (BOOL, U8, [1, 0], [True, False]),  # gathered bools, as recorded
        (BOOL, BOOL_U8, [0, 1], [False, True]),
    ],
)
def test_a_read_returns_the_dtype_that_the_program_declared(
    replies: BurnResponseRouter, declared: DType, answered: DType, elements: Any, expected: Any
) -> None:
    stored = np.array(elements, np.int64 if answered is I64 else np.uint8)
    pending = asked(replies, 1, handle(declared))
    replies.take(BurnReply(1, TensorData(stored.tobytes(), (2,), answered)))
    data = pending.result(0)
    assert data.spec == TensorSpec((2,), declared)
    seen = np.frombuffer(data.bytes, np.int32 if declared is I32 else np.bool_)
    assert seen.tolist() == expected


@pytest.mark.parametrize("answer", [None, 3, TensorData(bytes(12), (3,), F32)])
def test_a_response_to_a_read_without_a_tensor_of_its_shape_is_a_violation(
    answer: Any, replies: BurnResponseRouter
) -> None:
    asked(replies, 1, handle(F32))
    with pytest.raises(ProtocolViolation, match="read of float32"):
        replies.take(BurnReply(1, answer))


def test_a_response_to_an_unknown_request_is_a_violation(replies: BurnResponseRouter) -> None:
    asked(replies, 1)
    replies.take(BurnReply(1, None))
    with pytest.raises(ProtocolViolation, match=r"a reply to request .*, which is not open"):
        replies.take(BurnReply(1, None))


def test_a_failure_fails_its_read_alone_and_names_the_line(replies: BurnResponseRouter) -> None:
    locations = Locations()
    locations.note(9)
    replies = BurnResponseRouter(locations)
    failed, other = asked(replies, 1, handle(F32)), asked(replies, 2)
    replies.take(BurnReply(1, OperationFailed("too small")))
    with pytest.raises(OperationFailed, match="too small") as caught:
        failed.result(0)
    assert caught.value.location
    assert not other.done()


def test_each_pending_request_fails_with_its_own_error_object(replies: BurnResponseRouter) -> None:
    waiting = [asked(replies, number) for number in range(3)]
    replies.fail(ConnectionLost("gone"))
    errors = []
    for pending in waiting:
        with pytest.raises(ConnectionLost, match="gone") as caught:
            pending.result(0)
        errors.append(caught.value)
    assert len({id(error) for error in errors}) == 3
    replies.fail(ConnectionLost("again"))  # no request is pending any more


def test_a_pending_request_does_not_keep_the_tensor_alive(replies: BurnResponseRouter) -> None:
    dropped: list[int] = []

    class Noting(Holder):
        def drop_handle(self, identifier: int) -> None:
            dropped.append(identifier)

    asked(replies, 1, handle(F32, holder=Noting()))
    assert dropped == [9]


class TestFailure(FailureConformance):
    def requests(self) -> tuple[BurnResponseRouter, Pending[Any], Pending[Any]]:
        router = BurnResponseRouter(Locations())
        return router, asked(router, 1), asked(router, 2)
