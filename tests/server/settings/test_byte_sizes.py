"""Sizes with units, such as 64MiB, are parsed and formatted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_server.settings.byte_sizes import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("4096", 4096),
        ("64MiB", 64 * 2**20),
        ("64mib", 64 * 2**20),
        ("1.5 GiB", 3 * 2**29),
        ("2GB", 2 * 10**9),
        (" 1kb ", 1000),
    ],
)
def test_a_size_is_read(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "MiB", "64 apples", "-1MiB", "1e9", "0x10", "٣MiB", "1.MiB"])
def test_a_malformed_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="such as 67108864 or 64MiB"):
        parse_bytes(text)


@given(st.integers(0, 2**50))
def test_a_written_size_reads_as_nearly_the_same(count: int) -> None:
    assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=1e-3)


@pytest.mark.parametrize(("text", "advice"), [("40G", "write 40GiB"), ("1.5m", "write 1.5MiB")])
def test_a_unit_without_its_end_gets_the_binary_one_as_advice(text: str, advice: str) -> None:
    with pytest.raises(ValueError, match=advice):
        parse_bytes(text)
