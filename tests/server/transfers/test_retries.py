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
    REFUSED_TRIES,
    SILENT_TRIES,
    UNREACHED_TRIES,
    Retries,
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


def test_a_report_of_the_source_is_progress() -> None:
    clock = Clock()
    retries = Retries(30.0, clock)
    for reports in range(1, 100):
        retries.reached()
        clock.seconds += 60.0
        assert retries.pause(reports) is not None


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
    ("error", "tries"),
    [
        (caused(TransferFailed("cannot reach"), ConnectionLost("hung up")), UNREACHED_TRIES),
        (caused(TransferFailed(""), caused(ConnectionFailed(""), EOFError())), UNREACHED_TRIES),
        (caused(ConnectionFailed(""), ConnectionResetError()), UNREACHED_TRIES),
        (caused(TransferFailed(""), HandshakeRefused("another token")), REFUSED_TRIES),
        (caused(TransferFailed(""), ConnectionFailed("answered HTTP 404")), REFUSED_TRIES),
        (caused(TransferFailed(""), caused(ConnectionFailed(""), ConnectionRefusedError())), 1),
        (caused(TransferFailed(""), TimeoutError()), SILENT_TRIES),
        (caused(TransferFailed(""), caused(ConnectionFailed(""), TimeoutError())), SILENT_TRIES),
        (TransferFailed("the address is not allowed"), 1),
    ],
)
def test_a_failed_handshake_is_tried_again_unless_nothing_listens(
    error: Exception, tries: int
) -> None:
    retries = Retries(30.0, Clock())
    assert [retries.pause_unreached(error) is None for _ in range(tries)] == [
        *(False,) * (tries - 1),
        True,
    ]


def test_a_peer_that_violates_the_protocol_each_time_is_given_up() -> None:
    retries = Retries(30.0, Clock())
    pauses = []
    for received in range(REFUSED_TRIES):
        retries.reached()
        pauses.append(retries.pause_violated(received))
    assert [pause is None for pause in pauses] == [False] * (REFUSED_TRIES - 1) + [True]
