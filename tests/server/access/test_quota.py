"""Limits on the memory of each session and of all sessions together."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.errors import QuotaExceeded
from burn_remote_server.access.quota import (
    FREE_OVERHEAD_BYTES,
    FREE_TENSORS,
    TENSOR_BYTES,
    OverheadAccount,
    Pool,
    Quota,
)
from support.waiting import PATIENCE_SECONDS


def test_bytes_up_to_the_limit_are_taken_and_one_more_is_refused_by_name() -> None:
    quota = Quota(100, 10)
    quota.take(100, 1)
    with pytest.raises(QuotaExceeded, match="session bytes: 101 would be held, 100 are allowed"):
        quota.take(1, 1)
    assert (quota.bytes, quota.tensors) == (100, 1)


def test_tensors_up_to_the_limit_are_taken_and_one_more_is_refused_by_name() -> None:
    quota = Quota(100, 2)
    quota.take(0, 2)
    with pytest.raises(QuotaExceeded, match="session tensors: 3 would be held, 2 are allowed"):
        quota.take(0, 1)


def test_returned_bytes_can_be_taken_again() -> None:
    quota = Quota(100, 1)
    quota.take(100, 1)
    quota.give_back(100, 1)
    quota.take(100, 1)


def test_only_what_is_reserved_from_the_pool_is_taken_without_the_pool() -> None:
    pool = Pool(4096 * 100)  # shares of 100 bytes
    quota = Quota(4096 * 100, 3, pool=pool)
    assert not quota.take_reserved(1, 1)

    quota.take(10, 1)
    taken = pool.taken

    assert taken == 110
    assert quota.take_reserved(100, 1)
    assert not quota.take_reserved(1, 1)
    assert quota.take_reserved(0, 1)
    assert not quota.take_reserved(0, 1)  # the fourth tensor
    assert (quota.bytes, quota.tensors, pool.taken) == (110, 3, taken)


def test_a_tensor_over_the_limit_for_each_tensor_is_refused_by_name() -> None:
    quota = Quota(100, 2, max_tensor_bytes=50)
    assert quota.refusal([50, 50]) is None
    refusal = quota.refusal([1, 51])
    assert refusal is not None
    assert "tensor bytes: 51 would be held, 50 are allowed" in str(refusal)


def test_the_objects_of_many_tensors_count_and_are_returned_with_them() -> None:
    pool = Pool(2**30)
    quota = Quota(TENSOR_BYTES * 3000, 10_000, None, pool)
    quota.take(0, FREE_TENSORS)
    assert quota.total_bytes == 0
    stored = FREE_TENSORS
    with pytest.raises(QuotaExceeded, match="the objects of many tensors, 3,072,000 are allowed"):
        for _ in range(10_000):
            quota.take(1, 1)
            stored += 1
    assert stored == quota.tensors
    # Each tensor has one byte of elements, and its objects count unless it is one of the first
    # ``FREE_TENSORS``.
    assert (stored - FREE_TENSORS) * (TENSOR_BYTES + 1) <= quota.max_bytes
    assert (stored - FREE_TENSORS + 1) * (TENSOR_BYTES + 1) > quota.max_bytes
    quota.give_back(quota.bytes, stored)
    assert quota.held <= TENSOR_BYTES * FREE_TENSORS
    quota.take(quota.max_bytes // 2, 0)
    quota.end()
    assert (quota.held, pool.taken) == (0, 0)


def test_tensors_in_other_memory_count_their_objects_in_the_quota_of_the_host() -> None:
    host = Quota(10**9, 0)
    quota = Quota(10**9, 10**6, objects=host)
    quota.take(10, FREE_TENSORS + 500)
    assert quota.total_bytes == 10
    assert host.held >= 500 * TENSOR_BYTES
    quota.end()
    assert host.held == 0


def test_too_many_failed_and_awaited_tensors_are_refused() -> None:
    Quota(100, 2).check_slot([1])
    with pytest.raises(QuotaExceeded, match=r"3 would be held, .* raise max_session_tensors"):
        Quota(100, 2).check_slot([1, 2])


def test_all_sessions_together_hold_no_more_than_the_pool() -> None:
    pool = Pool(1000)
    first, second = Quota(1000, 9, None, pool), Quota(1000, 9, None, pool)
    first.take(600, 1)
    second.take(400, 1)
    with pytest.raises(
        QuotaExceeded, match="bytes of all sessions: 1,001 would be held, 1,000 are allowed"
    ):
        second.take(1, 1)
    first.give_back(600, 1)
    first.end()
    second.take(600, 1)


def test_an_ended_session_returns_everything_and_takes_nothing_more() -> None:
    pool = Pool(10**9)
    quota = Quota(10**9, 9, None, pool)
    quota.take(5 * 10**8, 1)
    quota.end()
    assert pool.taken == 0
    quota.give_back(5 * 10**8, 1)  # a late drop
    with pytest.raises(QuotaExceeded):
        quota.take(1, 1)
    assert pool.taken == 0


@given(st.lists(st.integers(-(10**7), 10**7)), st.integers(10**6, 10**8))
def test_the_pool_counts_the_used_bytes_and_at_most_two_shares_more(
    steps: list[int], allowed: int
) -> None:
    pool = Pool(allowed)
    quota = Quota(allowed, 10**9, None, pool)
    held: list[int] = []
    for step in steps:
        if step >= 0:
            try:
                quota.take(step, 1)
                held.append(step)
            except QuotaExceeded:
                assert quota.bytes + step > allowed
        elif held:
            quota.give_back(held.pop(), 1)
        assert quota.bytes == sum(held)
        assert quota.bytes <= pool.taken <= min(allowed, quota.bytes + 2 * pool.share)


def test_sessions_of_many_threads_never_take_more_than_the_pool_has() -> None:
    pool = Pool(10**7)
    start = threading.Barrier(4)
    seen: list[int] = []

    def work() -> None:
        quota = Quota(10**7, 10**9, None, pool)
        start.wait(PATIENCE_SECONDS)
        for _ in range(2000):
            try:
                quota.take(3 * 10**6, 1)
            except QuotaExceeded:
                continue
            seen.append(pool.taken)
            quota.give_back(3 * 10**6, 1)
        quota.end()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert max(seen) <= 10**7
    assert pool.taken == 0


LARGE = 2**40  # sums of such numbers are new objects, so each needs memory


@pytest.mark.parametrize("failing", range(12))
def test_bytes_are_returned_once_although_an_allocation_fails(
    failing: int, allocations: Any
) -> None:
    pool = Pool(2**50)
    quota = Quota(2**50, 10, pool=pool)
    quota.hold(3 * LARGE)
    steps = [partial(quota.release, LARGE), partial(pool.give_back, LARGE)]
    for step in steps:
        allocations.set_nomemory(failing, failing + 1)
        try:
            step()
        finally:
            allocations.remove_mem_hooks()
    assert (quota.held, pool.taken) == (2 * LARGE, LARGE)


@pytest.mark.parametrize("failing", range(40))
def test_a_hold_that_fails_for_memory_counts_nothing(failing: int, allocations: Any) -> None:
    pool = Pool(2**50)
    quota = Quota(2**50, 10, pool=pool)
    account = OverheadAccount(quota)
    added = False
    allocations.set_nomemory(failing, failing + 1)
    try:
        account.add(LARGE)
        added = True
    except MemoryError:
        pass
    finally:
        allocations.remove_mem_hooks()
    assert account.bytes == added * LARGE
    assert quota.held == pool.taken == added * (LARGE - FREE_OVERHEAD_BYTES)


def test_a_report_that_fails_for_memory_leaves_the_bytes_returned() -> None:
    def report() -> None:
        raise MemoryError

    pool = Pool(100)
    pool.on_given_back(1, report)
    assert pool.take(50)
    pool.give_back(50)
    assert pool.taken == 0


def test_messages_leave_tensors_all_of_the_pool_up_to_a_sixteenth_of_it() -> None:
    pool = Pool(1600)
    assert pool.take_urgent(60)
    pool.add_urgent(40)
    assert pool.take(1600)
    assert not pool.take(1)
    assert not pool.take_urgent(1)
    pool.add_urgent(20)  # 120 of the room for 100
    assert pool.is_full
    pool.give_back(20)
    assert not pool.is_full
    assert not pool.take(1)
    pool.give_back_urgent(120)
    assert pool.taken == 1580
    assert pool.take(20)
    assert not pool.take(1)


@pytest.mark.parametrize(
    ("mib", "allowed_mib"), [(32, 0), (64, 0), (96, 0.5), (160, 4.5), (320, 10)]
)
def test_a_pool_has_many_urgent_bytes_if_little_room_for_them_is_left(
    mib: int, allowed_mib: float
) -> None:
    pool = Pool(mib * 2**20)
    allowed = int(allowed_mib * 2**20)
    pool.add_urgent(allowed)
    assert not pool.has_many_urgent
    pool.add_urgent(1)
    assert pool.has_many_urgent
    pool.give_back_urgent(allowed + 1)
    assert not pool.has_many_urgent
