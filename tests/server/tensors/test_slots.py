"""A fetch in flight completes once, whichever of its events comes first."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from burn_remote_protocol.errors import ProtocolViolation, TransferFailed
from burn_remote_server.tensors.slots import InFlight, Uploading
from support.engines import vector
from support.waiting import PATIENCE_SECONDS

FIRST = TransferFailed("first")
SECOND = TransferFailed("second")


def outcome(slot: InFlight) -> object:
    """Return the delivered array, or the error in its place."""
    try:
        return slot.array()
    except TransferFailed as error:
        return error


EVENTS: dict[str, Callable[[InFlight], None]] = {
    "array 1": lambda slot: slot.complete("array 1"),
    "array 2": lambda slot: slot.complete("array 2"),
    "first": lambda slot: slot.fail(FIRST),
    "second": lambda slot: slot.fail(SECOND),
}
OUTCOMES = {"array 1": "array 1", "array 2": "array 2", "first": FIRST, "second": SECOND}


@pytest.mark.parametrize("order", [*itertools.permutations(EVENTS, 3)], ids="-".join)
def test_the_first_delivery_counts(order: tuple[str, ...]) -> None:
    slot = InFlight(vector(2))
    assert not slot.arrived()
    for event in order:
        EVENTS[event](slot)
        assert slot.arrived()
        assert outcome(slot) is OUTCOMES[order[0]]


def test_a_dropped_tensor_is_not_kept_alive() -> None:
    before, after = InFlight(vector(2)), InFlight(vector(2))
    before.complete("array")
    before.drop()
    after.drop()
    after.complete("array")
    assert before.array() is None
    assert after.array() is None


def test_a_fetch_that_timed_out_fails_permanently() -> None:
    slot = InFlight(vector(2), timeout_seconds=0.0)
    with pytest.raises(TransferFailed, match="did not arrive within 0 seconds"):
        slot.array()
    slot.complete("too late")
    with pytest.raises(TransferFailed):
        slot.array()


def test_a_failed_fetch_keeps_nothing_alive_of_the_functions_that_failed() -> None:
    slot, decoded = InFlight(vector(2)), []

    def decode() -> None:
        message = np.zeros(2)
        decoded.append(weakref.ref(message))
        raise ProtocolViolation("not a tensor")

    try:
        try:
            decode()
        except ProtocolViolation as error:
            raise TransferFailed("cannot fetch") from error
    except TransferFailed as error:
        slot.fail(error)
    assert decoded[0]() is None
    assert isinstance(outcome(slot), TransferFailed)


def test_every_waiting_thread_gets_the_array() -> None:
    slot = InFlight(vector(2))
    received: list[object] = []
    threads = [
        threading.Thread(target=lambda: received.append(slot.array()), daemon=True)
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    slot.complete("array")
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert received == ["array"] * 3


def test_only_one_of_concurrent_deliveries_counts() -> None:
    for _ in range(20):
        slot = InFlight(None)
        barrier = threading.Barrier(4)
        threads = [
            threading.Thread(target=partial(deliver, slot, barrier, name), daemon=True)
            for name in EVENTS
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        assert outcome(slot) is outcome(slot)
        assert outcome(slot) in OUTCOMES.values()


def deliver(slot: InFlight, barrier: threading.Barrier, name: str) -> None:
    barrier.wait(PATIENCE_SECONDS)
    EVENTS[name](slot)


def test_a_new_upload_has_received_nothing() -> None:
    upload = Uploading(vector(3), "buffer")
    assert (upload.size, upload.received, upload.upload) == (12, 0, "buffer")


@pytest.mark.parametrize("is_dropped_first", [True, False])
def test_a_lent_slot_keeps_its_array_after_it_is_dropped(is_dropped_first: bool) -> None:
    slot = InFlight(vector(2))
    slot.lend()
    if is_dropped_first:
        slot.drop()
    slot.complete("array")
    slot.drop()
    assert slot.array() == "array"


def test_a_thread_that_begins_to_wait_calls_the_function_for_it() -> None:
    slot = InFlight(vector(2), PATIENCE_SECONDS)
    slot.call_on_wait(lambda: slot.complete("array"))
    assert slot.array() == "array"


def test_the_function_is_called_at_once_if_a_thread_has_begun_to_wait() -> None:
    slot = InFlight(vector(2), PATIENCE_SECONDS)
    assert not slot.wait(0.0)
    calls: list[str] = []
    slot.call_on_wait(lambda: calls.append("hurry"))
    assert calls == ["hurry"]


@pytest.mark.parametrize("end", ["array 1", "first"])
def test_nobody_is_hurried_for_what_has_arrived(end: str) -> None:
    calls: list[str] = []
    early, late = InFlight(vector(2)), InFlight(vector(2))
    early.call_on_wait(lambda: calls.append("early"))
    for slot in (early, late):
        EVENTS[end](slot)
    late.call_on_wait(lambda: calls.append("late"))
    assert outcome(early) is outcome(late) is OUTCOMES[end]
    assert not calls
