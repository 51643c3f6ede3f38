"""Byte streams over sockets: reading, waiting, waking and ending."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

import pytest

from burn_remote_protocol.links.websocket import socket_streams
from burn_remote_protocol.links.websocket.frame_writer import OutgoingBuffer
from burn_remote_protocol.links.websocket.socket_streams import PlainStream, WatchResult
from support.link_ends import in_thread
from support.waiting import PATIENCE_SECONDS


@pytest.fixture
def ends() -> Iterator[tuple[PlainStream, socket.socket]]:
    near, far = socket.socketpair()
    stream = PlainStream(near)
    yield stream, far
    stream.close()
    far.close()


def test_waiting_for_a_socket_that_another_thread_closed_is_an_error_of_the_system() -> None:
    near, far = socket.socketpair()
    far.close()
    near.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        socket_streams._ready_for(near, select.POLLOUT, 0)


def test_a_read_appends_what_arrived(ends: tuple[PlainStream, socket.socket]) -> None:
    stream, far = ends
    received: list[bytes] = []
    assert not stream.read(received, 100, 0)
    far.sendall(b"hello")
    assert stream.read(received, 100, PATIENCE_SECONDS)
    far.close()
    assert stream.read(received, 100, None)
    assert received == [b"hello", b""]


def test_a_bounded_read_without_a_timeout_returns(ends: tuple[PlainStream, socket.socket]) -> None:
    stream, _ = ends
    stream.bound_silence(0.01)
    assert not stream.read([], 100, None)


def test_a_write_records_how_much_was_accepted(ends: tuple[PlainStream, socket.socket]) -> None:
    stream, far = ends
    buffer = OutgoingBuffer(b"hello")
    assert stream.write(buffer)
    assert buffer.done()
    assert far.recv(100) == b"hello"


def test_a_write_to_a_full_socket_returns_after_its_timeout(
    ends: tuple[PlainStream, socket.socket],
) -> None:
    stream, _ = ends
    buffer = OutgoingBuffer(bytes(2**24))
    while stream.write(buffer, 0):
        assert not buffer.done()
    assert 0 < sum(buffer.accepted) < 2**24


def test_watching_distinguishes_bytes_a_wake_and_a_timeout(
    ends: tuple[PlainStream, socket.socket],
) -> None:
    stream, far = ends
    assert stream.watch(0) is WatchResult.TIMED_OUT
    stream.wake()
    assert stream.watch(None) is WatchResult.WOKEN
    assert stream.watch(0) is WatchResult.TIMED_OUT
    far.sendall(b"x")
    assert stream.watch(None) is WatchResult.READABLE


def test_shutting_down_ends_a_blocked_read(ends: tuple[PlainStream, socket.socket]) -> None:
    stream, _ = ends
    received: list[bytes] = []
    reading = in_thread(stream.read, received, 100, None)
    stream.shut_down()
    assert reading.result(PATIENCE_SECONDS)
    assert received == [b""]
