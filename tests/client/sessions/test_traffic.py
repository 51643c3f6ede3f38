"""Differences of traffic measure a section of a program."""

from __future__ import annotations

from dataclasses import astuple, fields

from hypothesis import given
from hypothesis import strategies as st

from burn_remote.sessions.traffic import Traffic

COUNTS = st.builds(Traffic, *[st.integers(0, 2**63)] * len(fields(Traffic)))


@given(COUNTS, COUNTS)
def test_a_difference_has_the_difference_of_each_count(after: Traffic, before: Traffic) -> None:
    pairs = zip(astuple(after), astuple(before), strict=True)
    assert astuple(after - before) == tuple(late - early for late, early in pairs)


def test_a_difference_is_a_copy() -> None:
    traffic = Traffic(operations=1)
    copy = traffic - Traffic()
    traffic.operations += 1
    assert (copy.operations, traffic.operations) == (1, 2)
