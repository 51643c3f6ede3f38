"""Counters add up and keep the counts of closed sessions."""

from __future__ import annotations

from dataclasses import fields

from burn_remote_server.telemetry.counters import CounterRegistry, Counters


def test_the_total_is_the_sum_of_all_writers() -> None:
    counter_registry = CounterRegistry()
    first, second = counter_registry.open(), counter_registry.open()
    first.operations += 2
    second.operations += 3
    first.failures["unsupported"] += 1
    second.failures["unsupported"] += 1
    assert counter_registry.total().operations == 5
    assert counter_registry.total().failures == {"unsupported": 2}


def test_counts_of_a_closed_writer_remain() -> None:
    counter_registry = CounterRegistry()
    counters = counter_registry.open()
    counters.batches += 7
    counters.failures["unsupported"] += 1
    counter_registry.close(counters)
    counter_registry.close(counters)
    assert counter_registry.total().batches == 7
    assert counter_registry.total().failures == {"unsupported": 1}


def test_a_total_is_a_copy() -> None:
    counter_registry = CounterRegistry()
    counter_registry.total().operations += 1
    assert counter_registry.total().operations == 0


def test_every_number_is_added() -> None:
    one, sum_ = Counters(), Counters()
    names = [item.name for item in fields(Counters) if item.name != "failures"]
    for name in names:
        setattr(one, name, 1)
    sum_.add(one)
    sum_.add(one)
    assert {getattr(sum_, name) for name in names} == {2}
