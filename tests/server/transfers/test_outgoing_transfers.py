"""A tensor whose connection broke can be fetched again; a confirmed one cannot."""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.dtypes import U8
from burn_remote_protocol.errors import OperationFailed, ProtocolViolation
from burn_remote_protocol.messages import FetchRequest
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.tensors.exposed_tensors import Exposed, Transfers
from burn_remote_server.transfers.outgoing_transfers import OutgoingTransfers

ID = b"t" * 32
EXPOSED = Exposed("array", TensorSpec((10,), U8), backend=None)  # type: ignore[arg-type]


class Loan:
    handle = b"handle"


def fetched(transfers: Transfers) -> list[Exposed]:
    got: list[Exposed] = []
    transfers.fetch(("native", ID), got.append)
    return got


def test_a_tensor_that_did_not_arrive_is_exposed_again() -> None:
    transfers = Transfers()
    sending = OutgoingTransfers(transfers, "native", 9.0)
    sending.begin(FetchRequest(1, ID), EXPOSED)
    sending.expose_again()
    assert [one.array for one in fetched(transfers)] == [EXPOSED.array]
    assert fetched(transfers) == []


def test_a_tensor_that_arrived_is_not_exposed_again() -> None:
    transfers = Transfers()
    sending = OutgoingTransfers(transfers, "native", 9.0)
    sending.begin(FetchRequest(1, ID), EXPOSED)
    assert sending.arrived(FetchRequest(1, ID, 10))
    sending.expose_again()
    assert fetched(transfers) == []


def test_memory_lent_when_the_connection_broke_is_kept_as_long_as_the_tensor() -> None:
    transfers, loan = Transfers(), Loan()
    is_lent = weakref.ref(loan)
    sending = OutgoingTransfers(transfers, "native", 9.0)
    sending.begin(FetchRequest(1, ID), EXPOSED)
    sending.lend(FetchRequest(1, ID), EXPOSED, loan)
    del loan
    sending.expose_again()
    assert is_lent() is not None

    (again,) = fetched(transfers)
    sending.begin(FetchRequest(2, ID), again)
    del again
    assert is_lent() is not None
    assert sending.arrived(FetchRequest(2, ID, 10))
    assert is_lent() is None


def test_a_loan_ends_when_the_peer_has_copied_it_or_asks_for_the_elements() -> None:
    sending = OutgoingTransfers(Transfers(), "native", 9.0, borrower="somebody")
    for asked in (FetchRequest(1, ID, 10), FetchRequest(1, ID)):
        loan = Loan()
        is_lent = weakref.ref(loan)
        sending.begin(FetchRequest(1, ID), EXPOSED)
        sending.lend(FetchRequest(1, ID), EXPOSED, loan)
        del loan
        assert is_lent() is not None
        assert sending.arrived(asked) or sending.declined(asked) is EXPOSED
        assert is_lent() is None
    assert sending.arrived(FetchRequest(1, ID, 10))  # the elements, too


def test_failures_and_unsent_tensors_are_not_exposed_again() -> None:
    transfers = Transfers()
    sending = OutgoingTransfers(transfers, "native", 9.0)
    failure = OperationFailed("it failed")
    sending.begin(FetchRequest(1, ID), Exposed(None, EXPOSED.spec, EXPOSED.backend, failure))
    sending.begin(FetchRequest(2, ID), EXPOSED)
    sending.give_up(FetchRequest(2, ID))
    sending.expose_again()
    assert len(transfers) == 0


def test_a_new_fetch_is_not_a_confirmation() -> None:
    sending = OutgoingTransfers(Transfers(), "native", 9.0)
    assert not sending.arrived(FetchRequest(1, ID, 10))


@pytest.mark.parametrize("request_", [FetchRequest(1, ID, 5), FetchRequest(1, b"o" * 32, 10)])
def test_a_confirmation_that_matches_no_fetch_is_refused(request_: FetchRequest) -> None:
    sending = OutgoingTransfers(Transfers(), "native", 9.0)
    sending.begin(FetchRequest(1, ID), EXPOSED)
    with pytest.raises(ProtocolViolation, match="request number"):
        sending.arrived(request_)


def test_a_fetch_from_beyond_the_end_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match="begins at byte 11"):
        OutgoingTransfers(Transfers(), "native", 9.0).begin(FetchRequest(1, ID, 11), EXPOSED)


def test_fetches_of_silent_peers_expire(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    sending = OutgoingTransfers(Transfers(), "native", 9.0)
    for request in range(1000):
        sending.begin(FetchRequest(request, ID), EXPOSED)
        now += 1.0
    assert len(sending._begun) <= 11


def test_unconfirmed_loans_expire_but_outlast_a_silent_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    sending = OutgoingTransfers(Transfers(), "native", 9.0)
    loans = weakref.WeakSet[Loan]()
    for request in range(50):
        sending.begin(FetchRequest(request, ID), EXPOSED)
        loan = Loan()
        loans.add(loan)
        sending.lend(FetchRequest(request, ID), EXPOSED, loan)
    del loan
    now = 599.0
    sending.expire()
    assert len(loans) == 50
    now = 601.0
    sending.expire()
    assert len(loans) == 0


async def test_a_connection_may_end_once_its_loans_have_expired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    sending = OutgoingTransfers(Transfers(), "native", 9.0)
    sending.begin(FetchRequest(1, ID), EXPOSED)
    sending.lend(FetchRequest(1, ID), EXPOSED, Loan())
    finished = asyncio.create_task(sending.finished())
    await asyncio.sleep(0)
    assert not finished.done()
    now = 601.0
    sending.expire()
    await finished


async def test_a_loan_of_an_arrived_tensor_is_not_kept() -> None:
    sending = OutgoingTransfers(Transfers(), "native", 9.0)
    sending.begin(FetchRequest(1, ID), EXPOSED)
    assert sending.arrived(FetchRequest(1, ID, 10))
    assert not sending.lend(FetchRequest(1, ID), EXPOSED, Loan())
    await sending.finished()


class Lending:
    lends_to = "somebody"


def exposed_of(size: int) -> Exposed:
    return Exposed("array", TensorSpec((size,), U8), Lending())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "fit"), [(2**20, 64), (2**30, 4), (2**40, 1)], ids=["small", "large", "huge"]
)
def test_loans_to_a_connection_are_limited_in_number_and_bytes(size: int, fit: int) -> None:
    sending = OutgoingTransfers(Transfers(), "native", 9.0, borrower="somebody")
    exposed = exposed_of(size)
    for number in range(fit):
        request = FetchRequest(number, ID)
        sending.begin(request, exposed)
        assert sending.may_lend(request, exposed)
        sending.lend(request, exposed, Loan())
    more = FetchRequest(fit, ID)
    sending.begin(more, exposed)
    assert not sending.may_lend(more, exposed)
    assert sending.arrived(FetchRequest(0, ID, size))
    assert sending.may_lend(more, exposed)


def test_loans_that_are_being_made_count() -> None:
    sending = OutgoingTransfers(Transfers(), "native", 9.0, borrower="somebody")
    exposed = exposed_of(2**40)
    for number in (1, 2):
        sending.begin(FetchRequest(number, ID), exposed)
    with sending.counting_loan(exposed):
        assert not sending.may_lend(FetchRequest(2, ID), exposed)
    assert sending.may_lend(FetchRequest(2, ID), exposed)


def test_loans_of_arrays_of_different_shapes_are_made_side_by_side() -> None:
    sending = OutgoingTransfers(Transfers(), "native", 9.0)
    backend: Any = None
    first, second = (
        Exposed(np.ones((size,), np.uint8), TensorSpec((size,), U8), backend) for size in (2, 3)
    )
    with sending.counting_loan(first), sending.counting_loan(second):
        pass
    with sending.counting_loan(first), contextlib.ExitStack() as others:
        others.enter_context(sending.counting_loan(second))


def test_exposed_tensors_are_compared_by_identity_and_never_by_their_elements() -> None:
    backend: Any = None
    array = np.ones((2,), np.uint8)
    first, second = (Exposed(array, TensorSpec((2,), U8), backend) for _ in range(2))
    assert first != second
    assert first == first
