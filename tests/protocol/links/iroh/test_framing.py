"""Frames on a QUIC stream are found whatever the reads are, and bad input ends the stream."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation
from burn_remote_protocol.links.iroh.framing import (
    HEADER_BYTES,
    Control,
    FrameParser,
    Kind,
    close_payload,
    frame_header,
    read_close,
)

LIMIT = 10_000


def parser(limit: int = LIMIT, *, native: bool = True) -> FrameParser:
    return FrameParser(limit, has_control_frames=native)


def fed(parser: FrameParser, stream: bytes, sizes: list[int]) -> list[bytes | Control]:
    """Feed a stream in parts of the given sizes, over and over."""
    frames: list[bytes | Control] = []
    at = turn = 0
    while at < len(stream):
        size = sizes[turn % len(sizes)]
        frames += parser.feed(stream[at : at + size])
        at, turn = at + size, turn + 1
    return frames


@given(
    st.lists(st.binary(max_size=400)),
    st.lists(st.integers(1, 600), min_size=1, max_size=5),
    st.booleans(),
)
def test_frames_are_found_whatever_the_parts_in_which_they_arrive(
    payloads: list[bytes], sizes: list[int], native: bool
) -> None:
    stream = b"".join(frame_header(len(payload)) + payload for payload in payloads)
    found = parser(native=native)
    assert fed(found, stream, sizes) == payloads
    assert found.failure is None
    assert found.messages == len(payloads)
    assert found.unfinished_bytes == 0


@given(st.binary(max_size=2000), st.lists(st.integers(1, 300), min_size=1, max_size=5))
def test_garbage_never_raises_and_the_same_bytes_give_the_same_frames(
    stream: bytes, sizes: list[int]
) -> None:
    at_once, in_parts = parser(), parser()
    frames = at_once.feed(stream)
    assert fed(in_parts, stream, sizes) == frames
    assert repr(at_once.failure) == repr(in_parts.failure)
    assert sum(len(frame) for frame in frames if isinstance(frame, bytes)) <= len(stream)


@given(st.integers(0, 2**64 - 1))
def test_a_claimed_length_allocates_nothing(claim: int) -> None:
    found = parser(2**62, native=False)
    tracemalloc.start()
    try:
        found.feed(claim.to_bytes(HEADER_BYTES, "little") + b"x")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50_000
    assert (found.failure is not None) == (claim > 2**62)


def test_single_bytes_of_a_long_message_occupy_about_their_own_size() -> None:
    found = parser(2**30)
    found.feed(frame_header(2**29))
    count = 50_000
    tracemalloc.start()
    try:
        for _ in range(count):
            found.feed(b"x")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.unfinished_bytes == count
    assert held < 2 * count


def test_a_truncated_frame_is_not_returned() -> None:
    found = parser()
    assert found.feed(frame_header(5) + b"four") == []
    assert found.unfinished_bytes == 4
    assert found.missing_bytes == 1
    assert found.feed(b"!") == [b"four!"]


@pytest.mark.parametrize("native", [True, False])
def test_a_message_over_the_limit_is_refused_after_the_frames_before_it(native: bool) -> None:
    found = parser(native=native)
    assert found.feed(frame_header(2) + b"ok" + frame_header(LIMIT + 1) + b"x") == [b"ok"]
    assert isinstance(found.failure, LimitExceeded)
    assert (found.failure.seen, found.failure.allowed) == (LIMIT + 1, LIMIT)
    assert found.feed(frame_header(2) + b"no") == []


def test_control_frames_arrive_between_messages() -> None:
    stream = frame_header(1) + b"a" + frame_header(3, Kind.PING) + b"pin" + frame_header(1) + b"b"
    assert parser().feed(stream) == [b"a", Control(Kind.PING, b"pin"), b"b"]


def test_an_unknown_kind_and_a_long_control_frame_are_violations() -> None:
    for header in ((4 << 56).to_bytes(8, "little"), frame_header(126, Kind.PING)):
        found = parser()
        assert found.feed(header) == []
        assert isinstance(found.failure, ProtocolViolation)


def test_burns_frames_have_no_kind() -> None:
    found = parser(native=False)
    found.feed(frame_header(3, Kind.PING))
    assert isinstance(found.failure, LimitExceeded)


@given(st.integers(0, 2**16 - 1), st.text(max_size=200))
def test_a_close_has_a_code_and_a_reason(code: int, reason: str) -> None:
    payload = close_payload(code, reason)
    assert len(payload) <= 125
    text, _, said = read_close(payload).partition(" ")
    assert text == str(code)
    assert reason.rstrip().startswith(said.rstrip())


@given(st.binary(max_size=125))
def test_any_payload_of_a_close_can_be_shown(payload: bytes) -> None:
    assert isinstance(read_close(payload), str)
