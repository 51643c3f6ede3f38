"""WebSocket frame headers and masks, against the examples of RFC 6455."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from burn_remote_protocol.links.websocket.frames import (
    BINARY,
    CONTINUATION,
    CONTROL_BIT,
    FINAL_BIT,
    LENGTH_16_LIMIT,
    MASK_BIT,
    MAX_OPCODE,
    OPCODE_BITS,
    RESERVED_BITS,
    TEXT,
    apply_mask,
    frame_header,
)

FINAL_BINARY = FINAL_BIT | BINARY


@pytest.mark.parametrize(
    ("length", "header"),
    [
        (0, "82 00"),
        (125, "82 7d"),
        (126, "82 7e 007e"),
        (256, "82 7e 0100"),  # section 5.7
        (65_535, "82 7e ffff"),
        (65_536, "82 7f 0000000000010000"),  # section 5.7
        (2**63 - 1, "82 7f 7fffffffffffffff"),
    ],
)
def test_the_length_takes_the_fewest_bytes(length: int, header: str) -> None:
    assert frame_header(FINAL_BINARY, length) == bytes.fromhex(header)


def test_a_masked_frame_has_the_mask_bit() -> None:
    assert frame_header(FINAL_BIT | TEXT, 5, MASK_BIT) == b"\x81\x85"  # section 5.7
    assert frame_header(BINARY, 126, MASK_BIT) == bytes.fromhex("02 fe 007e")


def test_the_mask_matches_the_rfcs_example() -> None:
    key, masked = bytes.fromhex("37fa213d"), bytes.fromhex("7f9f4d5158")
    assert apply_mask(b"Hello", key) == masked
    assert apply_mask(masked, key) == b"Hello"


@given(st.integers(0, 200_000), st.sampled_from([(Opcode.BINARY, True), (Opcode.CONT, False)]))
def test_headers_match_those_of_websockets(length: int, kind: tuple[Opcode, bool]) -> None:
    opcode, is_final = kind
    first = (FINAL_BIT if is_final else 0) | opcode
    written = Frame(opcode, bytes(length), fin=is_final).serialize(mask=False)
    assert written[: len(written) - length] == frame_header(first, length)


def test_the_parts_of_the_first_byte_do_not_overlap() -> None:
    assert FINAL_BIT ^ RESERVED_BITS ^ OPCODE_BITS == 0xFF
    assert all(not opcode & CONTROL_BIT for opcode in (CONTINUATION, TEXT, BINARY))
    assert [int(opcode) for opcode in Opcode if opcode & CONTROL_BIT] == [8, 9, MAX_OPCODE]
    assert LENGTH_16_LIMIT == 65_536
