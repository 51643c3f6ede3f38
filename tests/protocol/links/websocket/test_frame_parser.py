"""Is every stream of frames cut into its messages, however it arrives?"""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation
from burn_remote_protocol.links.websocket.frame_parser import READ_BYTES, FrameCutter
from support.link_ends import SIZES, pattern
from support.link_scripts import frame_bytes

LIMIT_BYTES = 2**22

PING = Frame(Opcode.PING, b"?")
PING_BYTE = 0x89


def cut(cutter: FrameCutter, chunks: list[bytes]) -> list[bytes]:
    """Feed chunks one by one; return the messages."""
    messages = []
    for chunk in chunks:
        cutter.arrived.append(chunk)
        while (message := cutter.take()) is not None or cutter.control:
            if message is None:
                assert cutter.control.popleft()[0] == PING_BYTE
            else:
                messages.append(message)
        assert not cutter.ready()
    return messages


def cut_as_wanted(cutter: FrameCutter, stream: bytes) -> list[bytes]:
    """Feed as many bytes at a time as the cutter asks for."""
    messages: list[bytes] = []
    while stream:
        wanted = cutter.wanted()
        assert wanted <= max(READ_BYTES, len(stream)), "more is known to come than comes"
        messages += cut(cutter, [stream[:wanted]])
        stream = stream[wanted:]
    return messages


def fragments(message: bytes, sizes: list[int]) -> list[Frame]:
    """Write a message in frames of these sizes, the rest in the last, with pings between them."""
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
def test_any_messages_in_any_fragments_and_chunks_come_out_whole(
    masked: bool, messages: list[tuple[int, list[int]]], data: st.DataObject
) -> None:
    frames = [frame for size, sizes in messages for frame in fragments(pattern(size), sizes)]
    stream = b"".join(frame.serialize(mask=masked) for frame in frames)
    places = data.draw(st.lists(st.integers(0, len(stream)), max_size=20).map(sorted))
    chunks = [
        stream[start:end] for start, end in zip([0, *places], [*places, len(stream)], strict=True)
    ]
    cutter = FrameCutter(LIMIT_BYTES, masked=masked)
    assert cut(cutter, chunks) == [pattern(size) for size, _ in messages]


@given(sizes=st.lists(st.sampled_from(SIZES), max_size=8))
def test_reading_as_much_as_is_wanted_reads_everything(sizes: list[int]) -> None:
    stream = b"".join(frame_bytes(Opcode.BINARY, pattern(size)) for size in sizes)
    assert cut_as_wanted(FrameCutter(LIMIT_BYTES), stream) == [pattern(size) for size in sizes]


def test_the_payload_of_a_large_frame_after_another_is_not_copied() -> None:
    large = pattern(2**20)
    cutter = FrameCutter(LIMIT_BYTES)
    cut_as_wanted(cutter, frame_bytes(Opcode.BINARY, large))
    header_bytes = cutter.wanted()
    cut(cutter, [frame_bytes(Opcode.BINARY, large)[:header_bytes]])
    assert cutter.wanted() == len(large)
    cutter.arrived.append(large)
    assert cutter.take() is large


@pytest.mark.timeout(20)  # a quarter of a second; where each byte copies what came before, hours
def test_a_message_that_comes_byte_by_byte_costs_no_more_with_each_byte() -> None:
    message = pattern(300_000)
    head, payload = frame_bytes(Opcode.BINARY, message)[:10], message
    chunks = [head, *(payload[at : at + 1] for at in range(len(payload)))]
    assert cut(FrameCutter(LIMIT_BYTES), chunks) == [message]


def test_a_message_in_tiny_fragments_takes_little_more_memory_than_its_bytes() -> None:
    message = pattern(200_000)
    cutter = FrameCutter(LIMIT_BYTES)
    tracemalloc.start()
    try:
        for at in range(0, len(message), 2):
            opcode = Opcode.CONT if at else Opcode.BINARY
            cutter.arrived.append(frame_bytes(opcode, message[at : at + 2], fin=False))
            assert cutter.take() is None
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1.5 * len(message)
    cutter.arrived.append(frame_bytes(Opcode.CONT, b"!"))
    assert cutter.take() == message + b"!"


def test_a_message_that_was_put_back_is_taken_again_before_what_follows() -> None:
    cutter = FrameCutter(LIMIT_BYTES)
    cutter.arrived.append(frame_bytes(Opcode.BINARY, b"one") + frame_bytes(Opcode.BINARY, b"two"))
    assert cutter.take() == b"one"
    cutter.put_back(b"one")
    assert cutter.ready()
    assert [cutter.take(), cutter.take(), cutter.take()] == [b"one", b"two", None]


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
def test_what_the_protocol_forbids_is_a_violation(sent: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        cut(FrameCutter(LIMIT_BYTES), [sent])


def test_a_client_that_does_not_mask_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation, match="masked"):
        cut(FrameCutter(LIMIT_BYTES, masked=True), [frame_bytes(Opcode.BINARY, b"bare")])


def test_a_huge_length_is_refused_from_the_header_alone() -> None:
    with pytest.raises(LimitExceeded, match="allowed 4,194,304"):
        cut(FrameCutter(LIMIT_BYTES), [b"\x82\x7f" + (2**63 - 1).to_bytes(8, "big")])


def test_fragments_are_refused_as_soon_as_they_exceed_the_limit_together() -> None:
    cutter = FrameCutter(1000)
    assert cut(cutter, [frame_bytes(Opcode.BINARY, bytes(600), fin=False)]) == []
    with pytest.raises(LimitExceeded) as caught:
        cut(cutter, [frame_bytes(Opcode.CONT, bytes(600))[:4]])
    assert (caught.value.seen, caught.value.allowed) == (1200, 1000)
