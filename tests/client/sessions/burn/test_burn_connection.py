"""A Burn session uses two sockets; the end of either fails the whole session."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from burn_remote.sessions.burn.burn_connection import BurnConnection
from burn_remote.sessions.burn.burn_version_differences import Burn021
from burn_remote.sessions.ending import Ending, _failure_of
from burn_remote_protocol.dialects.burn_0_21 import encode_close
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ClosedDevice,
    ConnectionFailed,
    ConnectionLost,
    ProtocolViolation,
)
from support.burn_end import ROUTES, BurnEnd, burn_end
from support.interrupts import InterruptAfterCall, Walk
from support.waiting import PATIENCE_SECONDS


class Connected:
    """A connection, its server's end, and what it reported."""

    def __init__(self, end: BurnEnd) -> None:
        self.end = end
        self.answers: list[bytes] = []
        self.lost: list[BurnRemoteError] = []
        self.told = threading.Event()
        self.connection = BurnConnection(
            end.dial,
            self._take,
            self._lose,
            lambda: "; the last was so and so",
            Burn021(),
            PATIENCE_SECONDS,
        )
        self.session = end.greet()

    def _take(self, frame: bytes) -> None:
        self.answers.append(frame)
        self.told.set()

    def _lose(self, error: BurnRemoteError) -> None:
        self.lost.append(error)
        self.told.set()

    def wait_told(self) -> None:
        assert self.told.wait(PATIENCE_SECONDS)


@pytest.fixture
def connected() -> Iterator[Connected]:
    with burn_end() as end:
        made = Connected(end)
        made.connection.start()
        yield made
        made.connection.end(ClosedDevice("the test is over"))


def test_a_session_whose_end_is_interrupted_anywhere_fails_what_other_threads_wait_for() -> None:
    steps: Any = (BurnConnection.end, BurnConnection._complete_end, Ending.complete, _failure_of)
    codes = frozenset(function.__code__ for function in steps)
    walk = Walk()
    for place in walk:
        with burn_end() as end:
            connection = Connected(end).connection
            connection.start()
            interrupt = InterruptAfterCall(place, codes)
            with interrupt.watching():
                connection.end(ClosedDevice("the test is over"))
            is_complete = connection._ending_steps.is_complete
            assert connection.error is None or is_complete, interrupt.place
            connection.end(ClosedDevice("the test is over"))
    walk.check(*steps)


def test_frames_sent_together_arrive_one_by_one_in_order(connected: Connected) -> None:
    frames = [b"%d" % number for number in range(1000)]
    connected.connection.send([*frames])
    assert [connected.end.requests.message() for _ in frames] == frames
    assert connected.connection.traffic.frames_sent == 1000
    assert connected.connection.traffic.bytes_sent == sum(map(len, frames))


def test_responses_are_handled_while_no_thread_waits(connected: Connected) -> None:
    connected.end.responses.send(b"an answer")
    connected.connection.receiver.attend()
    connected.wait_told()
    assert connected.answers == [b"an answer"]


@pytest.mark.parametrize("route", ROUTES)
def test_the_end_of_either_socket_is_a_lost_connection_with_its_cause(
    route: str, connected: Connected
) -> None:
    connected.end.socket_at(route).hang_up()
    connected.wait_told()
    (error,) = connected.lost
    assert isinstance(error, ConnectionLost)
    assert "hung up" in str(error)
    assert "panics" in str(error)
    assert str(error).endswith("the last was so and so")
    with pytest.raises(ConnectionLost, match="the last was so and so"):
        connected.connection.send([b"too late"])
    for each in ROUTES:
        assert connected.end.socket_at(each).rest() == []


def test_a_frame_received_on_the_task_socket_ends_the_session(connected: Connected) -> None:
    connected.end.requests.send(b"hello?")
    connected.wait_told()
    assert isinstance(connected.connection.error, ProtocolViolation)


def test_later_errors_do_not_replace_the_first(connected: Connected) -> None:
    connected.connection.end(ClosedDevice("first"))
    connected.connection.end(ConnectionLost("second"))
    assert [str(error) for error in connected.lost] == ["first"]
    with pytest.raises(ClosedDevice, match="first"):
        connected.connection.raise_error()


def test_close_is_sent_after_the_last_frames(connected: Connected) -> None:
    connected.connection.close(lambda: [b"one", b"two"])
    expected = [b"one", b"two", encode_close(connected.session)]
    assert connected.end.requests.rest() == expected
    with pytest.raises(ClosedDevice, match="closed its connection"):
        connected.connection.send([b"three"])


def test_a_server_that_hangs_up_on_the_close_message_does_not_make_it_a_lost_connection(
    connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = connected.connection._requests.send_together

    def send_and_notice_the_end(frames: list[bytes]) -> None:
        send(frames)
        connected.end.requests.hang_up()
        connected.wait_told()

    monkeypatch.setattr(connected.connection._requests, "send_together", send_and_notice_the_end)
    connected.connection.close(list)
    assert [type(error) for error in connected.lost] == [ClosedDevice]


def test_abandoning_after_a_fork_sends_nothing_on_the_sockets(connected: Connected) -> None:
    connected.connection.abandon(ClosedDevice("belongs to the parent"))
    with pytest.raises(ClosedDevice, match="parent"):
        connected.connection.send([b"from the child"])
    connected.end.responses.send(b"for the parent")
    connected.connection.receiver.attend()
    connected.wait_told()
    assert connected.answers == [b"for the parent"]


def test_session_ids_are_random() -> None:
    sessions = set()
    for _ in range(2):
        with burn_end() as end:
            made = Connected(end)
            sessions.add(made.session)
            made.connection.end(ClosedDevice("enough"))
    assert len(sessions) == 2


def test_the_first_socket_is_closed_if_the_second_cannot_be_opened() -> None:
    with burn_end() as end:

        def dial(route: str) -> Any:
            return end.dial("/nowhere" if route == "/response" else route)

        with pytest.raises(ConnectionFailed):
            BurnConnection(
                dial, lambda _: None, lambda _: None, lambda: "", Burn021(), PATIENCE_SECONDS
            )
        assert end.requests.rest() == []
