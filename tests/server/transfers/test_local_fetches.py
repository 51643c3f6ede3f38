"""Fetches inside a process wait without a task, and end in batches."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from burn_remote_protocol.dtypes import U8
from burn_remote_protocol.errors import TransferFailed
from burn_remote_protocol.ids import new_transfer_id
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends import open_backends
from burn_remote_server.tensors import exposed_tensors as registry
from burn_remote_server.tensors.exposed_tensors import Exposed, Transfers
from burn_remote_server.tensors.slots import InFlight
from burn_remote_server.transfers.local_fetches import FAILED_AT_ONCE, LocalFetches
from support.waiting import PATIENCE_SECONDS

SPEC = TensorSpec((3,), U8)
KEY = ("native", b"t" * 32)


def _local_fetches(transfers: Transfers, seconds: float = 60.0) -> LocalFetches:
    made = LocalFetches(transfers, seconds, lambda: TransferFailed("too late"))
    made.open("session")
    return made


def _completing(slot: InFlight) -> Callable[[Exposed], None]:
    return lambda exposed: slot.complete(exposed.array)


def _expose(transfers: Transfers, count: int = 1) -> None:
    (backend,) = open_backends("numpy", 1)
    transfers.expose(
        KEY, Exposed("array", SPEC, backend), owner="other", count=count, expires_seconds=60.0
    )


async def _failed_per_turn(slots: list[InFlight]) -> int:
    """Wait until all slots have failed; return the most that failed in one turn of the loop."""
    failed = [sum(slot.arrived() for slot in slots)]
    async with asyncio.timeout(PATIENCE_SECONDS):
        while failed[-1] < len(slots):
            await asyncio.sleep(0)
            failed.append(sum(slot.arrived() for slot in slots))
    return max(after - before for before, after in pairwise([0, *failed]))


@pytest.mark.parametrize("is_early", [True, False])
async def test_a_tensor_is_delivered_whether_it_was_exposed_before_or_after(
    is_early: bool,
) -> None:
    transfers, slot = Transfers(), InFlight(SPEC)
    local_fetches = _local_fetches(transfers)
    if is_early:
        _expose(transfers)
    local_fetches.begin("session", slot, KEY, _completing(slot))
    if not is_early:
        assert not slot.arrived()
        _expose(transfers)
    assert slot.array() == "array"
    local_fetches.end("session")


async def test_waiting_fetches_make_no_tasks() -> None:
    local_fetches = _local_fetches(Transfers())
    before = asyncio.all_tasks()
    for _ in range(100):
        slot = InFlight(SPEC)
        local_fetches.begin("session", slot, KEY, _completing(slot))
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    local_fetches.close()


async def test_fetches_that_time_out_together_fail_in_slices() -> None:
    transfers = Transfers()
    local_fetches = _local_fetches(transfers, 0.0)
    slots = [InFlight(SPEC) for _ in range(5 * FAILED_AT_ONCE)]
    for slot in slots:
        local_fetches.begin("session", slot, KEY, _completing(slot))
    assert await _failed_per_turn(slots) <= FAILED_AT_ONCE
    with pytest.raises(TransferFailed, match="too late"):
        slots[0].array()
    assert not transfers._waiting


async def test_the_fetches_of_a_session_that_ends_fail_in_slices() -> None:
    transfers = Transfers()
    local_fetches = _local_fetches(transfers)
    slots = [InFlight(SPEC) for _ in range(5 * FAILED_AT_ONCE)]
    for slot in slots:
        local_fetches.begin("session", slot, KEY, _completing(slot))
    local_fetches.end("session")
    assert await _failed_per_turn(slots) <= FAILED_AT_ONCE
    with pytest.raises(TransferFailed, match="the session ended"):
        slots[0].array()
    assert not transfers._waiting


async def test_a_fetch_of_a_session_that_has_ended_fails_at_once() -> None:
    local_fetches, slot = _local_fetches(Transfers()), InFlight(SPEC)
    local_fetches.end("session")
    local_fetches.begin("session", slot, KEY, _completing(slot))
    with pytest.raises(TransferFailed, match="the session ended"):
        slot.array()


async def test_a_tensor_that_is_exposed_after_the_session_ended_is_left_to_others() -> None:
    transfers, slot = Transfers(), InFlight(SPEC)
    local_fetches = _local_fetches(transfers)
    local_fetches.begin("session", slot, KEY, _completing(slot))
    local_fetches.end("session")
    await _failed_per_turn([slot])
    _expose(transfers)
    assert len(transfers) == 1


async def test_threads_that_fetch_and_expose_at_once_lose_no_tensor() -> None:
    transfers = Transfers()
    local_fetches = _local_fetches(transfers)
    slots = [InFlight(SPEC) for _ in range(2000)]

    def begin() -> None:
        for slot in slots:
            local_fetches.begin("session", slot, KEY, _completing(slot))

    thread = threading.Thread(target=begin)
    thread.start()
    for _ in slots:
        try:
            _expose(transfers)
        except TransferFailed:  # one is exposed already: let it be fetched
            await asyncio.sleep(0)
    await asyncio.to_thread(thread.join)
    waiting = [slot for slot in slots if not slot.arrived()]
    if waiting:
        transfers.withdraw("other")
        _expose(transfers, len(waiting))
    assert [slot.array() for slot in slots] == ["array"] * len(slots)
    assert not local_fetches._deadlines._items
    assert not transfers._waiting
    local_fetches.close()


async def test_a_fetch_waits_while_a_session_may_still_expose_its_tensor() -> None:
    asked: list[float] = []

    def may_come(since: float) -> bool:
        asked.append(since)
        return len(asked) < 3

    before = time.monotonic()
    local_fetches = LocalFetches(Transfers(), 0.0, lambda: TransferFailed("too late"), may_come)
    local_fetches.open("session")
    slot = InFlight(SPEC)
    local_fetches.begin("session", slot, KEY, _completing(slot))
    await _failed_per_turn([slot])
    with pytest.raises(TransferFailed, match="too late"):
        slot.array()
    assert len(asked) == 3
    assert len({*asked}) == 1
    assert before <= asked[0] <= time.monotonic()


async def test_a_fetch_that_ends_while_it_times_out_starts_no_further_timeout() -> None:
    def end_it(since: float) -> bool:
        local_fetches.end("session")
        return True

    local_fetches = LocalFetches(Transfers(), 0.0, lambda: TransferFailed("too late"), end_it)
    local_fetches.open("session")
    slot = InFlight(SPEC)
    local_fetches.begin("session", slot, KEY, _completing(slot))
    await _failed_per_turn([slot])
    with pytest.raises(TransferFailed, match="the session ended"):
        slot.array()
    assert not local_fetches._deadlines._items


async def test_a_tensor_exposed_while_its_fetch_times_out_is_delivered_once() -> None:
    transfers, slot = Transfers(), InFlight(SPEC)

    def expose_it(since: float) -> bool:
        _expose(transfers)
        return True

    local_fetches = LocalFetches(transfers, 0.0, lambda: TransferFailed("too late"), expose_it)
    local_fetches.open("session")
    local_fetches.begin("session", slot, KEY, _completing(slot))
    await _failed_per_turn([slot])
    assert slot.array() == "array"
    assert not local_fetches._deadlines._items


async def test_a_fetch_beyond_the_limit_on_waiting_ones_fails_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "MAX_WAITING", 0)
    local_fetches, slot = _local_fetches(Transfers()), InFlight(SPEC)
    local_fetches.begin("session", slot, KEY, _completing(slot))
    assert slot.arrived()
    with pytest.raises(TransferFailed, match="try again later"):
        slot.array()


def test_a_fetch_that_begins_when_the_event_loop_has_closed_fails_at_once() -> None:
    async def opened() -> LocalFetches:
        return _local_fetches(Transfers())

    local_fetches, slot = asyncio.run(opened()), InFlight(SPEC)
    local_fetches.begin("session", slot, KEY, _completing(slot))
    assert slot.arrived()
    with pytest.raises(TransferFailed, match="the session ended"):
        slot.array()


async def test_closing_fails_all_waiting_fetches_at_once() -> None:
    local_fetches = _local_fetches(Transfers())
    local_fetches.open("other")
    slots = [InFlight(SPEC) for _ in range(2 * FAILED_AT_ONCE)]
    for place, slot in enumerate(slots):
        local_fetches.begin(("session", "other")[place % 2], slot, KEY, _completing(slot))
    local_fetches.close()
    assert all(slot.arrived() for slot in slots)


async def test_a_fetch_that_was_delivered_keeps_no_timeout() -> None:
    transfers, slot = Transfers(), InFlight(SPEC)
    local_fetches = _local_fetches(transfers)
    _expose(transfers)
    local_fetches.begin("session", slot, KEY, _completing(slot))
    assert slot.arrived()
    assert not local_fetches._deadlines._items


async def test_a_fetch_from_a_session_that_is_not_open_fails_at_once() -> None:
    transfers, slot = Transfers(), InFlight(SPEC)
    local_fetches = LocalFetches(
        transfers, 60.0, lambda: TransferFailed("too late"), is_open=lambda session: session == 7
    )
    local_fetches.open("session")
    key = ("native", new_transfer_id(8))
    local_fetches.begin("session", slot, key, _completing(slot))
    with pytest.raises(TransferFailed, match="has ended on its server"):
        slot.array()
    assert not transfers._waiting


async def test_the_end_of_a_session_fails_the_fetches_that_name_it_a_bounded_number_at_a_time() -> (
    None
):
    transfers = Transfers()
    local_fetches = _local_fetches(transfers)
    slots = {source: [InFlight(SPEC) for _ in range(300)] for source in (7, 8)}
    for source, named in slots.items():
        for slot in named:
            key = ("native", new_transfer_id(source))
            local_fetches.begin("session", slot, key, _completing(slot))
    unnamed = InFlight(SPEC)
    local_fetches.begin("session", unnamed, KEY, _completing(unnamed))
    local_fetches.end_source(7)
    assert await _failed_per_turn(slots[7]) <= FAILED_AT_ONCE
    assert not any(slot.arrived() for slot in [*slots[8], unnamed])
    local_fetches.end("session")
    assert await _failed_per_turn([*slots[8], unnamed]) <= FAILED_AT_ONCE
    assert not local_fetches._by_source
