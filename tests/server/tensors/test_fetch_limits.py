"""A fetch reserves memory from its start until the tensor has arrived and been dropped."""

from __future__ import annotations

import gc
import weakref

import pytest

from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import OperationFailed, QuotaExceeded
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.access.quota import FREE_OVERHEAD_BYTES, Pool, Quota
from burn_remote_server.tensors.fetch_limits import FETCH_BYTES, Fetches
from burn_remote_server.tensors.slots import InFlight


class CountedSlot(InFlight):
    """A fetch that counts how often it is examined."""

    examined = 0

    def arrived(self) -> bool:
        self.examined += 1
        return super().arrived()


def in_flight(elements: int = 10) -> InFlight:
    return InFlight(TensorSpec((elements,), F32))


def test_memory_is_reserved_before_any_elements_arrive() -> None:
    quota = Quota(100, 9)
    fetches = Fetches(quota, None)
    fetches.begin(in_flight(20))
    with pytest.raises(QuotaExceeded, match="session bytes: 120"):
        fetches.begin(in_flight(10))
    assert quota.bytes == 80


def test_a_tensor_over_the_limit_of_one_is_refused() -> None:
    with pytest.raises(QuotaExceeded, match="tensor bytes: 44 would be held, 40 are allowed"):
        Fetches(Quota(100, 9, 40), None).begin(in_flight(11))


def test_a_tensor_dropped_in_flight_keeps_its_reservation_until_it_arrives() -> None:
    quota = Quota(100, 9)
    fetches = Fetches(quota, None)
    slot = in_flight(20)
    fetches.begin(slot)
    fetches.drop(slot)
    assert quota.total_bytes == 80
    with pytest.raises(QuotaExceeded, match="session bytes: 120"):
        quota.take(40, 1)
    slot.complete("array")
    assert quota.total_bytes == quota.tensors == 0
    quota.take(100, 1)


def test_a_tensor_dropped_in_flight_counts_for_other_sessions_until_it_arrives_or_fails() -> None:
    pool = Pool(100)
    quota = Quota(100, 9, pool=pool)
    fetches = Fetches(quota, None)
    slots = [in_flight(10), in_flight(15)]
    for slot in slots:
        fetches.begin(slot)
        fetches.drop(slot)
    quota.end()
    assert pool.taken == 100
    slots[0].complete("array")
    slots[0].fail(OperationFailed("late"))
    assert pool.taken == 60
    slots[1].fail(OperationFailed("the source has gone"))
    assert pool.taken == 0


def test_a_dropped_tensor_is_not_kept_whichever_comes_first() -> None:
    fetches = Fetches(Quota(1000, 9), None)
    early, late = in_flight(), in_flight()
    for slot in (early, late):
        fetches.begin(slot)
    early.complete("array")
    fetches.drop(early)
    fetches.drop(late)
    late.complete("array")
    assert early.array() is None
    assert late.array() is None


def test_a_tensor_that_has_arrived_keeps_its_reservation_until_it_is_dropped() -> None:
    quota = Quota(100, 9)
    fetches = Fetches(quota, None)
    slot = in_flight(20)
    fetches.begin(slot)
    slot.complete("array")
    with pytest.raises(QuotaExceeded, match="session bytes: 120"):
        fetches.begin(in_flight(10))
    assert quota.bytes == 80
    fetches.drop(slot)
    assert quota.bytes == 0


def test_running_fetches_are_examined_a_constant_number_of_times_on_average() -> None:
    fetches = Fetches(Quota(10**8, 10**4), None)
    slots = [CountedSlot(TensorSpec((1,), F32)) for _ in range(2000)]
    for slot in slots:
        fetches.begin(slot)
    assert sum(slot.examined for slot in slots) <= 2 * len(slots)


def test_the_number_of_running_fetches_is_limited() -> None:
    fetches = Fetches(Quota(10_000, 999), 3)
    slots = [in_flight() for _ in range(3)]
    for slot in slots:
        fetches.begin(slot)
    with pytest.raises(QuotaExceeded, match="running fetches: 4 would run, 3 are allowed"):
        fetches.begin(in_flight())
    slots[1].complete("array")
    fetches.begin(in_flight())


def test_thousands_of_finished_fetches_leave_no_state() -> None:
    quota = Quota(40, 1)
    fetches = Fetches(quota, None)
    for _ in range(5000):
        slot = in_flight()
        fetches.begin(slot)
        slot.complete("array")
        fetches.drop(slot)
    assert (quota.bytes, quota.tensors) == (0, 0)
    assert len(fetches._begun) <= 64


def test_a_tensor_without_elements_is_counted_and_freed_like_any_other() -> None:
    quota = Quota(40, 1)
    fetches = Fetches(quota, None)
    slot = in_flight(0)
    fetches.begin(slot)
    assert quota.tensors == 1
    slot.complete("array")
    fetches.drop(slot)
    assert quota.tensors == 0


def test_the_end_of_a_session_frees_all_reservations() -> None:
    quota = Quota(400, 9)
    fetches = Fetches(quota, None)
    slots = [in_flight(), in_flight(0)]
    for slot in slots:
        fetches.begin(slot)
    fetches.drop(slots[0])
    fetches.end()
    assert (quota.bytes, quota.tensors) == (0, 0)


def test_a_session_that_has_ended_keeps_no_fetched_tensor() -> None:
    fetches = Fetches(Quota(400, 9), None)
    slot = CountedSlot(TensorSpec((10,), F32))
    fetches.begin(slot)
    fetches.end()
    alive = weakref.ref(slot)
    del slot
    gc.collect()
    assert alive() is None


def test_the_objects_of_running_fetches_count_until_the_fetches_end() -> None:
    free = FREE_OVERHEAD_BYTES // FETCH_BYTES
    quota = Quota(10 * FETCH_BYTES, 9999)
    fetches = Fetches(quota, None)
    slots = [in_flight(0) for _ in range(free + 10)]
    for slot in slots:
        fetches.begin(slot)
    refused = in_flight(0)
    with pytest.raises(QuotaExceeded, match="session bytes"):
        fetches.begin(refused)
    assert quota.tensors == len(slots)
    for slot in slots[:5]:
        slot.complete("array")
    for _ in range(5):
        fetches.begin(in_flight(0))
    fetches.end()
    assert quota.total_bytes == 0


def test_the_objects_of_running_fetches_count_in_host_memory() -> None:
    device, host = Quota(100, 9999), Quota(10**6, 0)
    fetches = Fetches(device, None, host)
    for _ in range(200):
        fetches.begin(in_flight(0))
    assert device.total_bytes == 0
    assert host.total_bytes == 200 * FETCH_BYTES - FREE_OVERHEAD_BYTES
