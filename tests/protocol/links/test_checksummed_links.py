"""A garbled, lost, repeated or reordered frame ends a checked link."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest, xxh64_intdigest

from burn_remote_protocol.dialects.native import encode_frame
from burn_remote_protocol.errors import ConnectionLost, GarbledBytes, LimitExceeded
from burn_remote_protocol.links.checksummed_links import (
    CheckedAsyncLink,
    CheckedLink,
    Checks,
    is_checked,
)
from burn_remote_protocol.links.interface import MAX_MESSAGE_BYTES, BlockingLink, PlacedFrame
from burn_remote_protocol.messages import Acknowledged, Hello
from support.interrupts import InterruptAt, Walk
from support.link_ends import FarEnd, OpenPair, take
from support.links import BlockingLinkConformance
from support.memory_links import MemoryFarEnd, async_memory_pair, memory_pair
from support.waiting import PATIENCE_SECONDS

HEADER_BYTES = 9


def test_the_example_of_the_wire_document_is_right() -> None:
    document = (Path(__file__).parents[3] / "docs" / "wire-native.md").read_text("utf-8")
    sealed = Checks().seal(encode_frame(Acknowledged(3)))
    shown = f"{sealed[:1].hex()} {sealed[1:9].hex()} {sealed[9:].hex(' ')}"
    assert f"\n{shown}\n" in document


def test_the_header_is_the_one_of_the_wire_document() -> None:
    checks = Checks()
    assert checks.seal(b"frame") == b"\xfe" + xxh3_64_intdigest(b"frame", 0).to_bytes(8) + b"frame"
    head = checks.seal_parts(b"head", memoryview(b"payload"))
    assert head == b"\xfe" + xxh3_64_intdigest(b"headpayload", 1).to_bytes(8) + b"head"


@pytest.mark.parametrize("size", [240, 241, 16_384, 16_385])
def test_frames_of_medium_size_have_the_checksum_xxh64(size: int) -> None:
    frame = bytes(range(256)) * 65
    frame = frame[:size]
    hashed = xxh64_intdigest if 241 <= size <= 16_384 else xxh3_64_intdigest
    checks = Checks()
    assert checks.seal(frame)[1:HEADER_BYTES] == hashed(frame, 0).to_bytes(8)
    parts = checks.seal_parts(frame[:100], memoryview(frame)[100:])
    assert parts[1:HEADER_BYTES] == hashed(frame, 1).to_bytes(8)


@pytest.mark.parametrize("size", [100, 240, 241, 16_384, 16_385])
def test_a_frame_that_arrives_in_two_parts_is_checked(size: int) -> None:
    frame = bytes(range(256)) * 65
    head, rest = frame[:100], memoryview(frame)[100:size]
    sender, receiver = Checks(), Checks()
    for _ in range(2):
        assert receiver.open_parts(sender.seal_parts(head, rest), rest) == head
    with pytest.raises(GarbledBytes):
        receiver.open_parts(sender.seal_parts(head, rest), memoryview(bytes(size - 100) + b"x"))


def test_a_frame_in_memory_of_its_receiver_is_checked() -> None:
    head, rest = b"head", memoryview(bytearray(b"rest"))
    sender, receiver = Checks(), Checks()
    opened = receiver.open(PlacedFrame.of(sender.seal_parts(head, rest), rest))
    assert isinstance(opened, PlacedFrame)
    assert (opened, opened.rest) == (head, rest)
    sealed = sender.seal_parts(head, rest)
    rest[0] ^= 1
    with pytest.raises(GarbledBytes):
        receiver.open(PlacedFrame.of(sealed, rest))


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_frames_arrive_as_they_were_sent(frames: list[bytes]) -> None:
    sender, receiver = Checks(), Checks()
    assert [bytes(receiver.open(sender.seal(frame))) for frame in frames] == frames


@pytest.mark.parametrize("frame", [b"", b"x", bytes(range(200))], ids=len)
def test_every_flipped_bit_is_detected(frame: bytes) -> None:
    sealed = Checks().seal(frame)
    for position in range(8 * len(sealed)):
        garbled = bytearray(sealed)
        garbled[position // 8] ^= 1 << position % 8
        with pytest.raises(GarbledBytes):
            Checks().open(bytes(garbled))


def test_a_flipped_bit_does_not_turn_the_checksums_off() -> None:
    """A connection whose first frame is a plain Hello has no checksums."""
    mark = Checks().seal(b"hello")[0]
    hello = encode_frame(Hello((1,)))[0]
    assert (mark ^ hello).bit_count() > 1


@pytest.mark.parametrize("order", [(1,), (0, 0), (0, 2)], ids=["lost", "repeated", "reordered"])
def test_a_frame_out_of_order_is_detected(order: tuple[int, ...]) -> None:
    sender, receiver = Checks(), Checks()
    sealed = [sender.seal(b"frame") for _ in range(3)]
    with pytest.raises(GarbledBytes):
        for number in order:
            receiver.open(sealed[number])


@pytest.mark.parametrize("length", [0, 1, 8])
def test_a_frame_too_short_for_a_checksum_is_garbled(length: int) -> None:
    with pytest.raises(GarbledBytes, match="without a checksum"):
        Checks().open(Checks().seal(b"")[:length])


def test_a_blocking_link_checks_both_directions() -> None:
    plain, far = memory_pair()
    link, other = CheckedLink(plain), CheckedLink(far)
    link.send(b"one")
    link.send_parts(b"head", memoryview(b"payload"))
    assert [bytes(other.receive(1) or b"") for _ in range(2)] == [b"one", b"headpayload"]
    other.send(b"back")
    assert bytes(link.receive(1) or b"") == b"back"
    far.send(b"no checksum")
    with pytest.raises(GarbledBytes):
        link.receive(1)


class TestCheckedLink(BlockingLinkConformance):
    """A ``CheckedLink`` is a ``BlockingLink``."""

    @pytest.fixture
    def open_pair(self) -> OpenPair:
        def open_pair(max_message_bytes: int = MAX_MESSAGE_BYTES) -> tuple[BlockingLink, FarEnd]:
            near, far = memory_pair(max_message_bytes=max_message_bytes + HEADER_BYTES)
            return CheckedLink(near), MemoryFarEnd(CheckedLink(far))

        return open_pair

    def test_a_message_over_the_limit_is_refused_and_ends_the_link(
        self, open_pair: OpenPair
    ) -> None:
        link, far = open_pair(max_message_bytes=1000)
        far.send(bytes(1000))
        assert take(link) == bytes(1000)
        far.send(bytes(1001))
        with pytest.raises(GarbledBytes, match="seen 1,010, allowed 1,009"):
            link.receive(PATIENCE_SECONDS)
        with pytest.raises(ConnectionLost, match="1009"):
            far.receive()


def test_a_checked_link_delivers_the_sent_frames() -> None:
    plain, _ = memory_pair()
    assert CheckedLink(plain).detects_corruption


def test_broken_framing_counts_as_garbled() -> None:
    plain, far = memory_pair(max_message_bytes=10)
    far.send(bytes(11))
    with pytest.raises(GarbledBytes, match="framing") as caught:
        CheckedLink(plain).receive(1)
    assert isinstance(caught.value.__cause__, LimitExceeded)


async def test_an_asynchronous_link_checks_both_directions() -> None:
    plain, far = async_memory_pair(max_message_bytes=100)
    await far.send(Checks().seal(b"first"))
    first = await plain.receive()
    assert is_checked(first)
    link, other = CheckedAsyncLink(plain), CheckedAsyncLink(far)
    assert bytes(link.open(first)) == b"first"
    await link.send(b"one")
    await link.send_parts(b"head", memoryview(b"payload"))
    assert [bytes(await other.receive()) for _ in range(2)] == [b"one", b"headpayload"]
    await far.send(b"no checksum")
    with pytest.raises(GarbledBytes):
        await link.receive()
    await far.send(bytes(101))
    with pytest.raises(GarbledBytes, match="framing"):
        await link.receive()


def test_a_frame_that_ctrl_c_loses_at_any_line_is_noticed_with_the_next_one() -> None:
    walk = Walk()
    for place in walk:
        near, far = Checks(), Checks()
        lost, following = far.seal(b"lost"), far.seal(b"following")
        interrupt = InterruptAt(place, frozenset({Checks.open.__code__}))
        with interrupt.watching():
            assert near.open(lost) == b"lost"
        if interrupt.has_come:
            with pytest.raises(GarbledBytes):
                near.open(following)
    walk.check(Checks.open)
