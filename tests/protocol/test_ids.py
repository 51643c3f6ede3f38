"""Transfer ids: random ones are distinct from the small numbers that Burn's client uses."""

from __future__ import annotations

import pytest

from burn_remote_protocol.ids import (
    SECRET_NUMBERS,
    TRANSFER_ID_BYTES,
    exposing_session,
    is_secret,
    new_transfer_id,
    new_transfer_number,
)


def test_transfer_ids_are_32_bytes_and_never_the_same() -> None:
    drawn = {new_transfer_id() for _ in range(100)}
    assert len(drawn) == 100
    assert {len(transfer) for transfer in drawn} == {TRANSFER_ID_BYTES}
    assert all(map(is_secret, drawn))


@pytest.mark.parametrize("session", [0, 7, 2**63 - 1, 2**64 - 1])
def test_a_transfer_id_may_name_its_session_and_has_16_random_bytes(session: int) -> None:
    drawn = {new_transfer_id(session) for _ in range(100)}
    assert len({one[-16:] for one in drawn}) == 100
    assert {len(transfer) for transfer in drawn} == {TRANSFER_ID_BYTES}
    assert {exposing_session(transfer) for transfer in drawn} == {session}


@pytest.mark.parametrize("transfer", [7, 2**63, b"", b"sess", bytes(32)])
def test_other_transfer_ids_name_no_session(transfer: bytes | int) -> None:
    assert exposing_session(transfer) is None


def test_random_transfer_numbers_lie_above_those_that_burn_counts() -> None:
    drawn = {new_transfer_number() for _ in range(100)}
    assert len(drawn) == 100
    assert all(SECRET_NUMBERS <= number < 2**64 for number in drawn)
    assert all(map(is_secret, drawn))


@pytest.mark.parametrize("counted", [0, 1, SECRET_NUMBERS - 1])
def test_a_counted_transfer_number_is_not_secret(counted: int) -> None:
    assert not is_secret(counted)
