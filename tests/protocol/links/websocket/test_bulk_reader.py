"""The reader of bulk messages, over bytes that arrive in any portions."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation
from burn_remote_protocol.links.websocket.bulk_reader import BulkReader
from burn_remote_protocol.links.websocket.frames import BINARY, FINAL_BIT, MASK_BIT, frame_header
from burn_remote_protocol.links.websocket.socket_streams import PlainStream

HEAD = 17
FIRST = FINAL_BIT | BINARY


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, BulkReader]]:
    """A socket to write to, and the reader of what is written."""
    writing, reading = socket.socketpair()
    stream = PlainStream(reading)
    with writing:
        yield writing, BulkReader(stream, b"", "a test")
    stream.close()


def fail() -> None:
    raise AssertionError("nothing may be missing")


def received(reader: BulkReader) -> tuple[bytes, bytes]:
    head, rest = reader.receive(HEAD, lambda _, size: memoryview(bytearray(size)), fail)
    return head, bytes(rest)


def message(size: int) -> bytes:
    body = bytes(index % 251 for index in range(size))
    return frame_header(FIRST, size) + body


@pytest.mark.parametrize("portion", [1, 2, 9, 10, 26, 27, 28, 47, 48, 49, 70_000])
def test_a_large_message_may_arrive_in_any_portions(
    ends: tuple[socket.socket, BulkReader], portion: int
) -> None:
    writing, reader = ends
    whole = message(66_000) + message(5) + message(70_000)
    written = 0

    def write() -> None:
        nonlocal written
        # The receiver takes each portion before the next is written, up to the last long one.
        for at in range(0, 200, portion):
            written += writing.send(whole[at : at + portion])
        writing.sendall(whole[written:])

    thread = threading.Thread(target=write)
    thread.start()
    for size in (66_000, 5, 70_000):
        head, rest = received(reader)
        assert head + rest == message(size)[-size:]
        assert len(head) == min(size, HEAD)
    thread.join()


@pytest.mark.parametrize("size", [0, 3, HEAD - 1, HEAD, HEAD + 1, 300])
def test_a_length_in_64_bits_may_be_small(
    ends: tuple[socket.socket, BulkReader], size: int
) -> None:
    writing, reader = ends
    body = message(size)[-size:] if size else b""
    writing.sendall(bytes((FIRST, 127)) + size.to_bytes(8, "big") + body + message(40))
    head, rest = received(reader)
    assert head + rest == body
    head, rest = received(reader)
    assert head + rest == message(40)[-40:]


def test_a_large_masked_message_is_refused(ends: tuple[socket.socket, BulkReader]) -> None:
    writing, reader = ends
    writing.sendall(frame_header(FIRST, 70_000, MASK_BIT) + bytes(40))
    with pytest.raises(ProtocolViolation, match="masked"):
        received(reader)


def test_the_limit_names_the_length_of_a_large_message(
    ends: tuple[socket.socket, BulkReader],
) -> None:
    writing, reader = ends
    writing.sendall(message(70_000)[:100])
    with pytest.raises(LimitExceeded) as found:
        reader.receive(HEAD, lambda _, size: memoryview(b""), fail)
    assert (found.value.seen, found.value.allowed) == (70_000, HEAD)
