"""The schedule of pings, tested with a fake clock, and the kernel's probes."""

from __future__ import annotations

import socket

import pytest

from burn_remote_protocol.links.websocket import keepalive
from burn_remote_protocol.links.websocket.keepalive import (
    PART_BYTES,
    TCP_IDLE_SECONDS,
    KeepaliveTimer,
    TimerEvent,
    enable_tcp_keepalive,
)


class Clock:
    """A fake of the module ``time``."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(keepalive, "time", clock)
    return clock


def test_without_an_interval_nothing_is_ever_due(clock: Clock) -> None:
    timer = KeepaliveTimer(None)
    clock.now += 1e9
    assert timer.next_event() is TimerEvent.NOTHING
    assert timer.seconds_until(None) is None


def test_a_ping_is_due_once_per_interval_while_the_peer_responds(clock: Clock) -> None:
    timer = KeepaliveTimer(10)
    for _ in range(3):
        assert timer.next_event() is TimerEvent.NOTHING
        clock.now += 10
        assert timer.next_event() is TimerEvent.PING
        timer.record_message()


def test_a_peer_that_is_silent_for_an_interval_after_a_ping_is_overdue(clock: Clock) -> None:
    timer = KeepaliveTimer(10)
    clock.now += 10
    assert timer.next_event() is TimerEvent.PING
    clock.now += 9
    assert timer.next_event() is TimerEvent.NOTHING
    clock.now += 1
    assert timer.next_event() is TimerEvent.NO_RESPONSE


def test_only_a_large_part_of_a_message_is_a_response(clock: Clock) -> None:
    timer = KeepaliveTimer(10)
    for part_bytes, due in (
        (PART_BYTES, TimerEvent.PING),
        (PART_BYTES - 1, TimerEvent.NO_RESPONSE),
    ):
        clock.now += 10
        assert timer.next_event() is TimerEvent.PING
        timer.record_part(part_bytes)
        clock.now += 10
        assert timer.next_event() is due
        timer.record_message()


def test_waiting_ends_at_the_deadline_or_the_next_ping(clock: Clock) -> None:
    timer = KeepaliveTimer(10)
    assert timer.seconds_until(None) == 10
    assert timer.seconds_until(clock.now + 3) == 3
    assert timer.seconds_until(clock.now + 30) == 10
    assert timer.seconds_until(clock.now - 1) == 0


def test_the_kernel_probes_an_idle_connection() -> None:
    with socket.socket() as sock:
        enable_tcp_keepalive(sock)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == TCP_IDLE_SECONDS
