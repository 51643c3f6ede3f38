"""A fetch survives broken connections while bytes arrive, and ends when none do."""

from __future__ import annotations

import pytest

from burn_remote_protocol.errors import (
    ConnectionFailed,
    ConnectionLost,
    HandshakeRefused,
    TransferFailed,
)
from burn_remote_server.transfers.retries import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    UNREACHED_TRIES,
    Retries,
    was_cut,
)


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_a_fetch_goes_on_through_any_number_of_breaks_while_bytes_arrive() -> None:
    clock = Clock()
    retries = Retries(30.0, clock)
    for received in range(1, 1_000):
        retries.reached()
        clock.seconds += 29.0
        pause = retries.pause(received)
        assert pause is not None
        assert pause <= FIRST_PAUSE_SECONDS


def test_a_fetch_that_waits_for_its_expose_survives_many_breaks() -> None:
    clock = Clock()
    retries = Retries(30.0, clock)
    retries.reached()
    pauses = []
    while clock.seconds < 29.0:
        retries.reached()
        pause = retries.pause(0)
        assert pause is not None
        pauses.append(pause)
        clock.seconds += 0.2
    assert len(pauses) > 100
    assert max(pauses) <= LONGEST_PAUSE_SECONDS


def test_a_fetch_without_progress_is_given_up_in_time() -> None:
    clock = Clock()
    retries = Retries(30.0, clock)
    retries.reached()
    assert retries.pause(5) is not None
    clock.seconds = 30.0
    assert retries.pause(5) is None


@pytest.mark.parametrize("was_reached_before", [False, True])
def test_a_peer_that_cannot_be_reached_is_given_up_after_a_few_tries(
    was_reached_before: bool,
) -> None:
    retries = Retries(30.0, Clock())
    if was_reached_before:
        retries.reached()
        assert retries.pause(0) is not None
    pauses = [retries.pause(0) for _ in range(UNREACHED_TRIES)]
    assert [pause is None for pause in pauses] == [False] * (UNREACHED_TRIES - 1) + [True]


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "is_cut"),
    [
        (caused(TransferFailed("cannot reach"), ConnectionLost("hung up")), True),
        (caused(TransferFailed(""), caused(ConnectionFailed(""), ConnectionResetError())), True),
        (caused(ConnectionFailed(""), caused(OSError(), EOFError())), True),
        (caused(TransferFailed(""), caused(ConnectionFailed(""), ConnectionRefusedError())), False),
        (caused(TransferFailed("cannot reach"), HandshakeRefused("another token")), False),
        (caused(TransferFailed("cannot reach"), TimeoutError()), False),
    ],
)  # fmt: skip
def test_only_a_connection_that_broke_is_tried_again(error: Exception, is_cut: bool) -> None:
    assert was_cut(error) is is_cut
