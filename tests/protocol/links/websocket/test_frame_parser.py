"""The frame parser, on streams in every fragmentation and on malformed ones."""

from __future__ import annotations

import contextlib
import gc
import sys
from types import FunctionType, ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation
from burn_remote_protocol.links.interface import PlacedFrame, Placement
from burn_remote_protocol.links.websocket import frame_parser
from burn_remote_protocol.links.websocket.frame_parser import READ_BYTES, FrameParser
from burn_remote_protocol.links.websocket.growing_buffer import GROWING_BYTES
from support.link_ends import SIZES, pattern
from support.link_scripts import frame_bytes

LIMIT_BYTES = 2**22

PING = Frame(Opcode.PING, b"?")
PING_BYTE = 0x89


def parse(parser: FrameParser, chunks: list[bytes], whole: int = 0) -> list[bytes]:
    """Feed chunks one by one; return the messages. ``take_whole`` takes up to ``whole`` of each."""
    messages = []
    for chunk in chunks:
        parser.received.append(chunk)
        if whole:
            messages += parser.take_whole(whole)
        while (message := parser.take()) is not None or parser.control:
            if message is None:
                assert parser.control.popleft()[0] == PING_BYTE
            else:
                messages.append(message)
        assert not parser.ready()
    return messages


def parse_as_requested(parser: FrameParser, stream: bytes) -> list[bytes]:
    """Feed as many bytes at a time as the parser requests."""
    messages: list[bytes] = []
    while stream:
        requested = parser.bytes_to_read()
        assert requested <= max(READ_BYTES, len(stream)), "the parser requested more than follows"
        messages += parse(parser, [stream[:requested]])
        stream = stream[requested:]
    return messages


def fragments(message: bytes, sizes: list[int]) -> list[Frame]:
    """Split a message into frames of these sizes and a last one, with pings between them."""
    frames = []
    for number, size in enumerate([*sizes, len(message)]):
        opcode = Opcode.CONT if number else Opcode.BINARY
        frames += [Frame(opcode, message[:size], fin=number == len(sizes)), PING]
        message = message[size:]
    return frames


@pytest.mark.parametrize("masked", [True, False])
@given(
    messages=st.lists(
        st.tuples(st.sampled_from(SIZES), st.lists(st.integers(0, 70_000), max_size=3)),
        max_size=4,
    ),
    data=st.data(),
)
def test_messages_in_any_fragments_and_chunks_are_parsed_whole(
    masked: bool, messages: list[tuple[int, list[int]]], data: st.DataObject
) -> None:
    frames = [frame for size, sizes in messages for frame in fragments(pattern(size), sizes)]
    stream = b"".join(frame.serialize(mask=masked) for frame in frames)
    places = data.draw(st.lists(st.integers(0, len(stream)), max_size=20).map(sorted))
    chunks = [
        stream[start:end] for start, end in zip([0, *places], [*places, len(stream)], strict=True)
    ]
    whole = data.draw(st.integers(0, 3))
    parser = FrameParser(LIMIT_BYTES, masked=masked)
    assert parse(parser, chunks, whole) == [pattern(size) for size, _ in messages]


@pytest.mark.parametrize("masked", [True, False])
def test_messages_that_arrived_together_are_taken_together(masked: bool) -> None:
    parser = FrameParser(LIMIT_BYTES, masked=masked)
    messages = [pattern(size) for size in (0, 125, 126, 2**16 - 1, 9)]
    stream = b"".join(Frame(Opcode.BINARY, each).serialize(mask=masked) for each in messages)
    parser.received.append(stream + PING.serialize(mask=masked))
    assert parser.take_whole(3) == messages[:3]
    assert parser.take_whole(3) == messages[3:]
    assert parser.take_whole(3) == []
    assert parser.take() is None
    assert len(parser.control) == 1


@pytest.mark.parametrize("cut", [1, 3, 5])
def test_a_message_that_is_incomplete_or_too_long_is_not_taken_with_others(cut: int) -> None:
    parser = FrameParser(126)
    short, long = (frame_bytes(Opcode.BINARY, pattern(size)) for size in (126, 127))
    parser.received.append(short + short + short[:cut])
    assert parser.take_whole(9) == [pattern(126)] * 2
    parser.received.append(short[cut:] + long)
    assert parser.take_whole(9) == [pattern(126)]
    with pytest.raises(LimitExceeded, match="127"):
        parser.take()


@given(sizes=st.lists(st.sampled_from(SIZES), max_size=8))
def test_reading_as_much_as_requested_reads_everything(sizes: list[int]) -> None:
    stream = b"".join(frame_bytes(Opcode.BINARY, pattern(size)) for size in sizes)
    assert parse_as_requested(FrameParser(LIMIT_BYTES), stream) == [pattern(size) for size in sizes]


def test_the_payload_of_a_large_frame_after_another_is_not_copied() -> None:
    large = pattern(2**20)
    parser = FrameParser(LIMIT_BYTES)
    parse_as_requested(parser, frame_bytes(Opcode.BINARY, large))
    header_bytes = parser.bytes_to_read()
    parse(parser, [frame_bytes(Opcode.BINARY, large)[:header_bytes]])
    assert parser.bytes_to_read() == len(large)
    parser.received.append(large)
    assert parser.take() is large


def test_each_byte_of_a_message_costs_the_same() -> None:
    """It takes 0.25 s; with a copy of the payload for each byte, it would run into the timeout."""
    message = pattern(300_000)
    head, payload = frame_bytes(Opcode.BINARY, message)[:10], message
    chunks = [head, *(payload[at : at + 1] for at in range(len(payload)))]
    assert parse(FrameParser(LIMIT_BYTES), chunks) == [message]


def held_bytes(root: object) -> int:
    """Return the bytes of all objects that an object keeps alive, without code and classes."""
    objects, waiting = {id(root): root}, [root]
    while waiting:
        for held in gc.get_referents(waiting.pop()):
            if id(held) not in objects and not isinstance(held, type | ModuleType | FunctionType):
                objects[id(held)] = held
                waiting.append(held)
    return sum(map(sys.getsizeof, objects.values()))


def test_a_message_in_tiny_fragments_takes_little_more_memory_than_its_bytes() -> None:
    message = pattern(200_000)
    parser = FrameParser(LIMIT_BYTES)
    for at in range(0, len(message), 2):
        opcode = Opcode.CONT if at else Opcode.BINARY
        parser.received.append(frame_bytes(opcode, message[at : at + 2], fin=False))
        assert parser.take() is None
    assert len(message) < held_bytes(parser) < 1.5 * len(message)
    parser.received.append(frame_bytes(Opcode.CONT, b"!"))
    assert parser.take() == message + b"!"


def test_a_large_message_from_a_client_is_complete_without_joining_its_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    joined: list[int] = []
    join = frame_parser._joined

    def counting(parts: Any) -> bytes:
        if parts and parts[0]:
            joined.append(len(join(parts)))
        return join(parts)

    monkeypatch.setattr(frame_parser, "_joined", counting)
    message = pattern(8 * GROWING_BYTES + 123)
    frames = b"".join(
        Frame(opcode, part, fin).serialize(mask=True)
        for opcode, part, fin in (
            (Opcode.BINARY, message[:5_000_000], False),
            (Opcode.CONT, message[5_000_000:], True),
        )
    )
    chunks = [frames[at : at + 100_001] for at in range(0, len(frames), 100_001)]
    parser = FrameParser(len(message), masked=True)
    assert parse(parser, chunks) == [message]
    assert sum(joined) <= 2 * GROWING_BYTES
    small = Frame(Opcode.BINARY, b"small").serialize(mask=True)
    assert parse(parser, [small]) == [b"small"]


@pytest.mark.parametrize("sizes", [[2**22], [65_537, 3, 131_071, 1, 100_000, 7]])
def test_bytes_that_a_reader_stores_in_place_make_the_same_message(sizes: list[int]) -> None:
    message = pattern(GROWING_BYTES + 2 * READ_BYTES)
    stream = Frame(Opcode.BINARY, message).serialize(mask=True)
    parser = FrameParser(len(message), masked=True)
    assert not parser.has_room
    parser.received.append(stream[:1000])
    assert parser.take() is None
    at = 1000
    while parser.has_room:
        room = parser.room(sizes[at % len(sizes)])
        room[:] = stream[at : at + len(room)]
        at += len(room)
        parser.add(len(room))
    assert at == len(stream)
    assert parser.take() == message
    assert parse(parser, [Frame(Opcode.BINARY, b"small").serialize(mask=True)]) == [b"small"]


def test_a_reader_of_masked_frames_stores_large_ones_that_follow_each_other_in_place() -> None:
    large, small = pattern(2 * READ_BYTES + 1), pattern(300)
    frames = [Frame(Opcode.BINARY, each).serialize(mask=True) for each in (large, large, small)]
    parser = FrameParser(LIMIT_BYTES, masked=True)
    assert not parser.expects_bulk
    assert parse(parser, [frames[0][:1000], frames[0][1000:]]) == [large]
    assert parser.expects_bulk
    # The header can arrive in parts.
    for part in (frames[1][:5], frames[1][5:14]):
        assert parser.bytes_to_read() >= len(part)
        parser.received.append(part)
        assert parser.take() is None
    room = parser.room(len(large))
    assert len(room) == len(large)
    room[:] = frames[1][14:]
    parser.add(len(room))
    assert parser.take() == large
    assert parser.expects_bulk
    parser.received.append(frames[2][: parser.bytes_to_read()])
    assert parser.take() is None
    assert not parser.expects_bulk
    assert not parser.has_room
    assert parse(parser, [frames[2][14:]]) == [small]


def test_more_than_a_header_after_a_large_frame_is_read_at_once() -> None:
    large, ping = pattern(2 * READ_BYTES), Frame(Opcode.PING, pattern(100)).serialize(mask=True)
    parser = FrameParser(LIMIT_BYTES, masked=True)
    frame = Frame(Opcode.BINARY, large).serialize(mask=True)
    assert parse(parser, [frame[:1000], frame[1000:]]) == [large]
    assert parser.expects_bulk
    parser.received.append(ping[:14])
    assert parser.take() is None
    assert not parser.expects_bulk


@pytest.mark.parametrize("step", [1, 13, 47, 5000, 10**7])
def test_the_rest_of_a_long_message_is_stored_where_the_receiver_wants_it(step: int) -> None:
    large, small = pattern(2 * READ_BYTES), pattern(300)
    asked: list[tuple[bytes, bytearray]] = []

    def place(head: bytes, size: int) -> Placement:
        asked.append((head, bytearray(size)))
        return Placement(memoryview(asked[-1][1]), lambda: True)

    frames = [Frame(Opcode.BINARY, each).serialize(mask=True) for each in (large, small, large)]
    stream = b"".join(frames)
    parser = FrameParser(LIMIT_BYTES, masked=True)
    parser.place_frames(33, place)
    parsed: list[bytes] = []
    while stream:
        size = min(step, parser.bytes_to_read())
        parsed += parse(parser, [stream[:size]])
        stream = stream[size:]
    assert parsed == [large[:33], small, large[:33]]
    assert asked == [(large[:33], bytearray(large[33:]))] * 2
    for message, (_, memory) in zip(parsed[::2], asked, strict=True):
        assert isinstance(message, PlacedFrame)
        assert message.rest.obj is memory


def test_a_message_for_which_there_is_no_place_is_received_as_usual() -> None:
    parser = FrameParser(LIMIT_BYTES, masked=True)
    parser.place_frames(33, lambda head, size: None)
    message = pattern(2 * READ_BYTES)
    stream = Frame(Opcode.BINARY, message).serialize(mask=True)
    assert parse_as_requested(parser, 2 * stream) == [message, message]


def test_fragments_of_a_message_have_no_place() -> None:
    def place(head: bytes, size: int) -> Placement:
        raise AssertionError("the size of the message is not known")

    parser = FrameParser(LIMIT_BYTES, masked=True)
    parser.place_frames(33, place)
    message = pattern(4 * READ_BYTES)
    frames = Frame(Opcode.BINARY, message[: 2 * READ_BYTES], False).serialize(mask=True)
    frames += Frame(Opcode.CONT, message[2 * READ_BYTES :]).serialize(mask=True)
    assert parse_as_requested(parser, frames) == [message]


def test_a_client_stores_no_payload_in_place() -> None:
    parser = FrameParser(LIMIT_BYTES)
    parser.received.append(frame_bytes(Opcode.BINARY, pattern(4 * READ_BYTES))[:1000])
    assert parser.take() is None
    assert not parser.has_room


def test_a_message_that_was_put_back_is_the_next_one_taken() -> None:
    parser = FrameParser(LIMIT_BYTES)
    parser.received.append(frame_bytes(Opcode.BINARY, b"one") + frame_bytes(Opcode.BINARY, b"two"))
    assert parser.take() == b"one"
    parser.put_back(b"one")
    assert parser.ready()
    assert [parser.take(), parser.take(), parser.take()] == [b"one", b"two", None]


@pytest.mark.parametrize(
    "sent",
    [
        frame_bytes(Opcode.TEXT, b"hello?"),
        frame_bytes(Opcode.CONT, b"of nothing"),
        frame_bytes(Opcode.BINARY, b"unfinished", fin=False) + frame_bytes(Opcode.BINARY, b"new"),
        b"\x82\x81\0\0\0\0x",  # masked, which servers must not
        b"\xc2\x00",  # a reserved bit
        b"\x83\x00",  # an unknown opcode
        b"\x8b\x00",  # an unknown control opcode
        b"\x89\x7e\x00\x7e" + bytes(126),  # a ping with more than 125 bytes
        b"\x09\x00",  # a fragmented ping
    ],
    ids=["text", "continuation", "interleaved", "masked", "reserved", "opcode", "control", "ping",
         "fragmented ping"],
)  # fmt: skip
def test_frames_that_the_protocol_forbids_are_violations(sent: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        parse(FrameParser(LIMIT_BYTES), [sent])


def test_a_client_that_does_not_mask_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="masked"):
        parse(FrameParser(LIMIT_BYTES, masked=True), [frame_bytes(Opcode.BINARY, b"bare")])


@pytest.mark.parametrize("sent", [b"\x82\x85", b"\x82\x05abcde"])
def test_a_parser_is_ready_to_raise(sent: bytes) -> None:
    parser = FrameParser(LIMIT_BYTES, masked=sent[1] < 0x80)
    parser.received.append(sent)
    with contextlib.suppress(ProtocolViolation):
        parser.take()
    assert parser.ready()
    with pytest.raises(ProtocolViolation):
        parser.take()


def test_a_huge_length_is_refused_from_the_header_alone() -> None:
    with pytest.raises(LimitExceeded, match="allowed 4,194,304"):
        parse(FrameParser(LIMIT_BYTES), [b"\x82\x7f" + (2**63 - 1).to_bytes(8, "big")])


def test_fragments_are_refused_as_soon_as_they_exceed_the_limit_together() -> None:
    parser = FrameParser(1000)
    assert parse(parser, [frame_bytes(Opcode.BINARY, bytes(600), fin=False)]) == []
    with pytest.raises(LimitExceeded) as caught:
        parse(parser, [frame_bytes(Opcode.CONT, bytes(600))[:4]])
    assert (caught.value.seen, caught.value.allowed) == (1200, 1000)


@pytest.mark.parametrize("count", [1, 2, 300])
def test_nothing_is_kept_of_whole_messages_that_were_taken(count: int) -> None:
    parser = FrameParser(2**20, masked=True)
    parser.received.append(Frame(Opcode.BINARY, b"x" * 500).serialize(mask=True) * count)
    taken = 0
    while taken < count:
        taken += len(parser.take_whole(7))
        taken += parser.take() is not None
    assert parser.held_bytes == 0


@pytest.mark.parametrize("sizes", [[], [10], [40_000] * 30, [READ_BYTES + 1], [GROWING_BYTES, 5]])
def test_a_parser_that_drops_messages_keeps_nothing_of_them_but_takes_control_frames(
    sizes: list[int],
) -> None:
    message = pattern(2 * GROWING_BYTES)
    begun = Frame(Opcode.BINARY, message, fin=False).serialize(mask=True)
    parser = FrameParser(LIMIT_BYTES, masked=True)
    parser.received.append(begun[:READ_BYTES])
    assert parser.take() is None
    assert parser.held_bytes
    parser.drop_messages()
    stream = begun[READ_BYTES:] + Frame(Opcode.CONT, b"end").serialize(mask=True)
    stream += b"".join(one.serialize(mask=True) for one in fragments(message, sizes))
    stream += PING.serialize(mask=True)
    controls = 0
    while stream:
        chunk, stream = stream[:READ_BYTES], stream[READ_BYTES:]
        parser.received.append(chunk)
        while (taken := parser.take()) is not None or parser.control:
            if taken is None:
                controls += parser.control.popleft()[0] == PING_BYTE
            else:
                assert not taken
        assert parser.held_bytes <= 2 * READ_BYTES
    assert controls == len(sizes) + 2
