"""Transfer ids: random ones are distinct from the small numbers that Burn's client uses."""

from __future__ import annotations

import pytest

from burn_remote_protocol.ids import (
    SECRET_NUMBERS,
    TRANSFER_ID_BYTES,
    is_secret,
    new_transfer_id,
    new_transfer_number,
)


def test_transfer_ids_are_32_bytes_and_never_the_same() -> None:
    drawn = {new_transfer_id() for _ in range(100)}
    assert len(drawn) == 100
    assert {len(transfer) for transfer in drawn} == {TRANSFER_ID_BYTES}
    assert all(map(is_secret, drawn))


def test_random_transfer_numbers_lie_above_those_that_burn_counts() -> None:
    drawn = {new_transfer_number() for _ in range(100)}
    assert len(drawn) == 100
    assert all(SECRET_NUMBERS <= number < 2**64 for number in drawn)
    assert all(map(is_secret, drawn))


@pytest.mark.parametrize("counted", [0, 1, SECRET_NUMBERS - 1])
def test_a_counted_transfer_number_is_not_secret(counted: int) -> None:
    assert not is_secret(counted)
