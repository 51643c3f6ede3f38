"""Connections count from their acceptance; those over the limit are refused or just closed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from burn_remote_server.access.quota import Pool
from burn_remote_server.listeners.connection_limits import (
    CONNECTION_BYTES,
    LOG_INTERVAL_SECONDS,
    REFUSALS_AT_ONCE,
    ConnectionLimits,
)
from burn_remote_server.listeners.http_responses import refuse


def test_connections_up_to_the_limit_are_taken() -> None:
    limits = ConnectionLimits(3, 2, Pool(0))
    assert [limits.enter(address) for address in "aab"] == [(True, "")] * 3


def test_an_open_connection_counts_in_the_memory_pool_also_if_that_is_full() -> None:
    pool = Pool(10)
    limits = ConnectionLimits(1, 1, pool)
    for _ in range(2):
        limits.enter("a")
    assert pool.taken == 2 * CONNECTION_BYTES
    for _ in range(2):
        limits.leave("a")
    assert pool.taken == 0


def test_a_connection_over_an_addresss_limit_is_refused_with_the_numbers() -> None:
    limits = ConnectionLimits(9, 2, Pool(0))
    for _ in range(2):
        limits.enter("192.0.2.7")
    may_stay, reason = limits.enter("192.0.2.7")
    assert may_stay
    assert "connections from 192.0.2.7: 3 would be open, 2 are allowed" in reason
    assert limits.enter("192.0.2.8") == (True, "")


def test_a_connection_over_the_total_limit_is_refused_with_the_reason() -> None:
    limits = ConnectionLimits(2, 2, Pool(0))
    limits.enter("a")
    limits.enter("b")
    assert "connections: 3 would be open, 2 are allowed" in limits.enter("c")[1]


def test_a_flood_of_connections_is_closed_without_a_response() -> None:
    limits = ConnectionLimits(1000, 1, Pool(0))
    told = [limits.enter("a")[0] for _ in range(2 + REFUSALS_AT_ONCE)]
    assert told == [True] * (1 + REFUSALS_AT_ONCE) + [False]


def test_a_flood_of_connections_is_logged_once_per_interval() -> None:
    limits = ConnectionLimits(1, 1, Pool(0))
    assert [limits.close(100.0) for _ in range(50)] == [1, *[0] * 49]
    assert limits.close(100.0 + LOG_INTERVAL_SECONDS) == 50
    assert limits.close(100.0 + LOG_INTERVAL_SECONDS) == 0


@given(st.lists(st.sampled_from("abc")))
def test_a_closed_connection_frees_its_place_and_leaves_no_state(addresses: list[str]) -> None:
    limits = ConnectionLimits(1000, 1000, Pool(0))
    for address in addresses:
        limits.enter(address)
    assert len(limits) == len(addresses)
    for address in addresses:
        limits.leave(address)
    assert len(limits) == 0
    assert not limits._open


def test_a_refused_connection_is_answered_with_the_reason() -> None:
    answer = refuse({}, "connections: 3 would be open, 2 are allowed", 0, 1)
    assert answer is not None
    assert answer[0] == 429
    assert b"2 are allowed" in answer[2]


def test_web_pages_are_refused_and_programs_are_not() -> None:
    answer = refuse({"Origin": "https://page.example"}, "", 0, 1)
    assert answer is not None
    assert answer[0] == 403
    assert refuse({}, "", 0, 1) is None
