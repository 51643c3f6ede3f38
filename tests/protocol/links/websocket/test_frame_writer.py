"""Outgoing WebSocket messages, as the ``websockets`` library reads them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame
from websockets.protocol import Side, State
from websockets.server import ServerProtocol

from burn_remote_protocol.links.websocket import frame_writer
from burn_remote_protocol.links.websocket.frame_writer import (
    MASK_BLOCK_BYTES,
    FrameWriter,
    OutgoingBuffer,
    message_buffers,
    messages_buffers,
)
from burn_remote_protocol.links.websocket.frames import BINARY, FINAL_BIT, apply_mask, frame_header
from support.link_ends import SIZES, pattern


def read_by_server(stream: bytes) -> list[Frame]:
    """Return the frames that the library's server reads."""
    server = ServerProtocol(state=State.OPEN, max_size=None)
    assert server.side is Side.SERVER
    server.receive_data(stream)
    assert server.parser_exc is None
    return [event for event in server.events_received() if isinstance(event, Frame)]


@given(
    head_size=st.integers(0, 400),
    size=st.sampled_from(SIZES),
    fragment_bytes=st.none() | st.integers(1000, 300_000),
)
def test_a_message_in_buffers_is_read_by_a_server(
    head_size: int, size: int, fragment_bytes: int | None
) -> None:
    message = pattern(head_size + size)
    head, payload = message[:head_size], memoryview(message)[head_size:]
    buffers = message_buffers(head, payload, [], fragment_bytes)
    frames = read_by_server(b"".join(buffer.unsent() for buffer in buffers))
    assert b"".join(frame.data for frame in frames) == message
    assert [frame.fin for frame in frames] == [False] * (len(frames) - 1) + [True]
    if fragment_bytes is None:
        assert len(frames) == 1
    else:
        assert all(len(frame.data) == fragment_bytes for frame in frames[:-1])


@given(sizes=st.lists(st.sampled_from(SIZES), max_size=12))
def test_messages_sent_together_are_read_one_by_one(sizes: list[int]) -> None:
    messages = [pattern(size) for size in sizes]
    buffers = messages_buffers(messages, [], None)
    frames = read_by_server(b"".join(buffer.unsent() for buffer in buffers))
    assert [frame.data for frame in frames] == messages


def test_small_messages_share_one_buffer() -> None:
    assert len(messages_buffers([pattern(100)] * 256, [], None)) == 1


def test_masking_keys_are_not_repeated() -> None:
    keys: list[bytes] = []
    streams = {
        bytes(message_buffers(bytes(8), memoryview(b""), keys, None)[0].unsent())
        for _ in range(600)
    }
    assert len(streams) == 600


@given(cuts=st.lists(st.integers(0, 1000), max_size=5))
def test_a_buffer_keeps_what_was_not_accepted(cuts: list[int]) -> None:
    buffer = OutgoingBuffer(pattern(1000), b"\0\0\0\0")
    sent = b""
    for count in cuts:
        part = bytes(buffer.unsent()[:count])
        sent += part
        buffer.accepted.append(len(part))
    assert sent + bytes(buffer.unsent()) == pattern(1000)
    assert buffer.done() == (len(sent) == 1000)


def test_a_detached_buffer_does_not_change_with_the_memory_it_came_from() -> None:
    memory = bytearray(pattern(100))
    buffer = OutgoingBuffer(memoryview(memory), b"\0\0\0\0")
    buffer.detach()
    memory[:] = bytes(100)
    assert bytes(buffer.unsent()) == pattern(100)


class Interrupt(BaseException):
    """Takes the place of KeyboardInterrupt."""


class InterruptedSocket:
    """Accepts the header and the first block of a message; then the sender is interrupted.

    After that, the next ``failures`` calls of ``apply_mask`` raise ``error``.
    """

    def __init__(self, failures: int, error: type[BaseException]) -> None:
        self._buffers = 0
        self._errors = [error] * failures
        self.accepted = b""

    def write(self, buffer: OutgoingBuffer, timeout_seconds: float | None) -> bool:
        self._buffers += 1
        if self._buffers == 3:
            raise Interrupt
        data = bytes(buffer.unsent())
        self.accepted += data
        buffer.accepted.append(len(data))
        return True

    def apply_mask(self, data: bytes | memoryview, key: bytes) -> bytes:
        if self._buffers == 3 and self._errors:
            raise self._errors.pop()
        return apply_mask(data, key)


@pytest.mark.parametrize("error", [Interrupt, MemoryError])
@pytest.mark.parametrize("failures", [0, 1, 3])
def test_an_interrupted_message_is_sent_whole_although_its_memory_changes(
    failures: int, error: type[BaseException]
) -> None:
    socket = InterruptedSocket(failures, error)
    writer = FrameWriter(socket.write, None)
    message = pattern(3 * MASK_BLOCK_BYTES)
    payload = bytearray(message)
    with patch.object(frame_writer, "apply_mask", socket.apply_mask):
        with pytest.raises(Interrupt):
            writer.send(b"", memoryview(payload))
        payload[:] = bytes(len(payload))
        writer.send(b"next", memoryview(b""))
    assert [frame.data for frame in read_by_server(socket.accepted)] == [message, b"next"]


def test_an_interrupt_before_the_copying_of_an_interrupted_message_loses_nothing() -> None:
    def interrupt(frame: FrameType, event: str, _: object) -> None:
        # CPython removes a profile function that raises, so this interrupts once.
        if event == "call" and frame.f_code.co_name == "_detach":
            raise Interrupt

    socket = InterruptedSocket(0, Interrupt)
    writer = FrameWriter(socket.write, None)
    message = pattern(3 * MASK_BLOCK_BYTES)
    payload = bytearray(message)
    sys.setprofile(interrupt)
    try:
        with pytest.raises(Interrupt):
            writer.send(b"", memoryview(payload))
        assert sys.getprofile() is None
    finally:
        sys.setprofile(None)
    payload[:] = bytes(len(payload))
    writer.send(b"next", memoryview(b""))
    assert [frame.data for frame in read_by_server(socket.accepted)] == [message, b"next"]


@pytest.mark.parametrize("call", ["send", "send_together", "send_control"])
def test_a_message_that_could_not_be_copied_is_never_continued(call: str) -> None:
    socket = InterruptedSocket(1000, MemoryError)
    writer = FrameWriter(socket.write, None)
    calls: dict[str, Callable[[], object]] = {
        "send": lambda: writer.send(b"next", memoryview(b"")),
        "send_together": lambda: writer.send_together([b"next"]),
        "send_control": lambda: writer.send_control([b"next"]),
    }
    with patch.object(frame_writer, "apply_mask", socket.apply_mask):
        with pytest.raises(Interrupt):
            writer.send(b"", memoryview(bytearray(3 * MASK_BLOCK_BYTES)))
        accepted = len(socket.accepted)
        with pytest.raises(ConnectionAbortedError, match="could not be copied"):
            calls[call]()
    assert len(socket.accepted) == accepted


def test_server_headers_match_those_of_websockets() -> None:
    for size in SIZES:
        payload = pattern(size)
        expected = Frame(2, payload).serialize(mask=False)  # type: ignore[arg-type]
        assert frame_header(FINAL_BIT | BINARY, size) + payload == expected
