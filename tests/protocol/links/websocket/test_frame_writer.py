"""Outgoing WebSocket messages, as the ``websockets`` library reads them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame
from websockets.protocol import Side, State
from websockets.server import ServerProtocol

from burn_remote_protocol.links.websocket.frame_writer import (
    OutgoingBuffer,
    message_buffers,
    messages_buffers,
)
from burn_remote_protocol.links.websocket.frames import BINARY, FINAL_BIT, frame_header
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


def test_server_headers_match_those_of_websockets() -> None:
    for size in SIZES:
        payload = pattern(size)
        expected = Frame(2, payload).serialize(mask=False)  # type: ignore[arg-type]
        assert frame_header(FINAL_BIT | BINARY, size) + payload == expected
