"""A thread receives whole small messages, and leaves everything else to the event loop."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest
from websockets.frames import Frame, Opcode

from burn_remote_protocol.errors import ProtocolViolation
from burn_remote_protocol.links.websocket.frame_parser import FrameParser
from burn_remote_protocol.links.websocket.thread_receiver import (
    MESSAGES_AT_ONCE,
    READS_AT_ONCE,
    ThreadReceiver,
)
from support.link_scripts import frame_bytes
from support.waiting import PATIENCE_SECONDS

BINARY = Opcode.BINARY


def masked(message: bytes, opcode: Opcode = BINARY) -> bytes:
    """Return a client's frame."""
    return Frame(opcode, message).serialize(mask=True)


class Lent:
    """A receiver of one end of a pair of sockets; the test has the other end."""

    def __init__(self) -> None:
        self.far, self.near = socket.socketpair()
        self.near.setblocking(False)
        self.parser = FrameParser(2**20, masked=True)
        self.unsent = 0
        self.written: list[bytes] = []
        self.returned = 0
        self.receiver = ThreadReceiver(
            self.near.fileno(),
            self.parser,
            lambda: self.unsent,
            self.written.append,
            self.note_return,
        )

    def note_return(self) -> None:
        self.returned += 1

    def receive(self) -> list[bytes]:
        """Receive what the test has sent already."""
        return self.receiver.receive(PATIENCE_SECONDS)


@pytest.fixture
def lent() -> Iterator[Lent]:
    opened = Lent()
    yield opened
    opened.far.close()
    opened.near.close()


def test_messages_that_arrived_together_are_returned_together(lent: Lent) -> None:
    messages = [b"first", b"", b"x" * 1000]
    frames = b"".join(map(masked, messages))
    lent.far.sendall(frames)
    assert lent.receive() == messages
    assert lent.receiver.messages == 3
    assert lent.receiver.received_bytes == len(frames)


def test_nothing_is_returned_if_nothing_arrives_in_time(lent: Lent) -> None:
    assert lent.receiver.receive(0) == []
    lent.far.sendall(masked(b"later"))
    assert lent.receive() == [b"later"]


def test_a_message_is_returned_when_its_rest_has_arrived(lent: Lent) -> None:
    frame = masked(b"in two parts")
    lent.far.sendall(masked(b"whole") + frame[:5])
    assert lent.receive() == [b"whole"]
    assert lent.receiver.receive(0) == []
    lent.far.sendall(frame[5:])
    assert lent.receive() == [b"in two parts"]


def test_more_messages_than_are_returned_at_once_follow_without_another_read(lent: Lent) -> None:
    count = MESSAGES_AT_ONCE + 3
    lent.far.sendall(b"".join(masked(b"%d" % number) for number in range(count)))
    first, second = lent.receive(), lent.receiver.receive(0)
    assert len(first) == MESSAGES_AT_ONCE
    assert first + second == [b"%d" % number for number in range(count)]


def test_a_control_frame_is_left_to_the_event_loop_after_the_messages_before_it(
    lent: Lent,
) -> None:
    ping = masked(b"", Opcode.PING)
    lent.far.sendall(masked(b"before") + ping + masked(b"after"))
    assert lent.receive() == [b"before"]
    assert lent.receive() == []
    assert [*lent.parser.control] == [ping]
    assert lent.parser.take() == b"after"


@pytest.mark.parametrize(
    "left",
    [masked(b"", Opcode.PING), masked(bytes(300_000))[:1000], b"\x83\x80\0\0\0\0"],
    ids=["control frame", "long message", "violation"],
)
def test_the_thread_does_not_wait_after_what_it_leaves_to_the_event_loop(
    lent: Lent, monkeypatch: pytest.MonkeyPatch, left: bytes
) -> None:
    arrivals: list[bool] = []
    poll = lent.receiver._poll.poll

    class Poll:
        def poll(self, _: float) -> list[tuple[int, int]]:
            ready = poll(0)
            arrivals.append(bool(ready))
            return ready

    monkeypatch.setattr(lent.receiver, "_poll", Poll())
    lent.far.sendall(left)
    assert lent.receive() == []
    assert arrivals == [True]


def test_the_rest_of_a_long_message_is_left_to_the_event_loop(lent: Lent) -> None:
    message = os.urandom(300_000)
    frame = masked(message)
    lent.far.sendall(frame[:1000])
    assert lent.receive() == []
    assert lent.parser.is_within_message
    lent.parser.received.append(frame[1000:])
    assert lent.parser.take() == message


def test_a_violation_is_kept_for_the_event_loop(lent: Lent) -> None:
    lent.far.sendall(masked(b"before") + b"\x83\x80\0\0\0\0")
    assert lent.receive() == [b"before"]
    assert lent.receive() == []
    assert isinstance(lent.receiver.violation, ProtocolViolation)


def test_the_end_of_the_connection_is_left_to_the_event_loop(lent: Lent) -> None:
    lent.far.sendall(masked(b"last"))
    lent.far.shutdown(socket.SHUT_WR)
    assert lent.receive() == [b"last"]
    assert lent.receive() == []
    assert lent.near.recv(1) == b""


def test_a_peer_that_sends_single_bytes_does_not_keep_the_thread(
    lent: Lent, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, _: read(descriptor, 1))
    lent.far.sendall(masked(bytes(200)))
    assert lent.receive() == []
    assert lent.receiver.received_bytes == READS_AT_ONCE


@pytest.mark.parametrize("end", ["close", "stop"])
def test_nothing_is_read_or_sent_after_the_end(lent: Lent, end: str) -> None:
    frame = masked(b"unread")
    lent.far.sendall(frame)
    getattr(lent.receiver, end)()
    assert lent.receive() == []
    assert lent.receiver.send(b"unsent") is False
    assert lent.near.recv(100) == frame


def test_it_is_given_back_once_with_the_messages_that_were_not_handled(lent: Lent) -> None:
    lent.far.sendall(masked(b"one") + masked(b"two"))
    messages = lent.receive()
    lent.receiver.give_back(messages[1:])
    assert lent.returned == 1
    assert lent.receiver.unread == [b"two"]
    lent.far.sendall(masked(b"three"))
    assert lent.receive() == []


def test_a_reply_is_written_as_one_frame(lent: Lent) -> None:
    assert lent.receiver.send(b"reply") is True
    assert lent.far.recv(100) == frame_bytes(BINARY, b"reply")
    assert lent.receiver.sent_bytes == len(frame_bytes(BINARY, b"reply"))


def test_a_reply_waits_for_bytes_that_the_event_loop_has_not_sent(lent: Lent) -> None:
    lent.unsent = 1
    assert lent.receiver.send(b"reply") is False
    lent.unsent = 0
    assert lent.receiver.send(b"reply") is True
    assert lent.far.recv(100) == frame_bytes(BINARY, b"reply")


def test_what_the_system_does_not_take_is_left_to_the_event_loop(
    lent: Lent, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda to, data: write(to, data[:4]))
    assert lent.receiver.send(b"reply") is True
    assert lent.far.recv(100) + b"".join(lent.written) == frame_bytes(BINARY, b"reply")
    # The event loop has to send the rest first.
    assert lent.receiver.send(b"next") is False


def test_a_reply_for_which_the_system_has_no_room_is_not_sent(lent: Lent) -> None:
    lent.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sent = 0
    while lent.receiver.send(bytes(1000)):
        sent += 1
        assert sent < 10_000
    lent.far.settimeout(PATIENCE_SECONDS)
    frame = frame_bytes(BINARY, bytes(1000))
    received = b""
    while len(received) + len(b"".join(lent.written)) < sent * len(frame):
        received += lent.far.recv(2**16)
    assert received + b"".join(lent.written) == sent * frame
