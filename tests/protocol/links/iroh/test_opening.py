"""The first frames of a stream are read as what they are, and refused otherwise."""

from __future__ import annotations

import asyncio

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.errors import ProtocolViolation
from burn_remote_protocol.links.iroh.framing import HEADER_BYTES, frame_header
from burn_remote_protocol.links.iroh.opening import (
    ACCEPTED,
    MAX_OPENING_BYTES,
    burn_header,
    read_burn_header,
    read_opening,
    read_reply,
    read_request,
    reply,
    request,
)
from burn_remote_protocol.links.transport_interface import Response


def payload(frame: bytes) -> bytes:
    return frame[HEADER_BYTES:]


class Stream:
    """Bytes that have arrived."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.asked: list[int] = []

    async def read_exact(self, size: int) -> bytes:
        self.asked.append(size)
        part, self.data = self.data[:size], self.data[size:]
        return part


def test_burns_headers_are_those_of_the_published_crate() -> None:
    # StreamHeader { version: 1, kind } as rmp_serde writes it.
    assert payload(burn_header("/session")) == bytes.fromhex("9201a753657373696f6e")
    assert payload(burn_header("/tensor")) == bytes.fromhex("9201ae54656e736f725472616e73666572")
    assert burn_header("/session")[:HEADER_BYTES] == bytes([10, 0, 0, 0, 0, 0, 0, 0])


@pytest.mark.parametrize("route", ["/session", "/tensor"])
def test_a_header_of_burns_leads_to_its_route(route: str) -> None:
    assert read_burn_header(payload(burn_header(route))).path == route


def test_a_request_arrives_with_its_path_and_headers() -> None:
    arrived = read_request(payload(request("/1/session", {"authorization": "x"})))
    assert (arrived.path, arrived.headers, arrived.refusal) == (
        "/1/session",
        {"Authorization": "x"},
        "",
    )


def test_an_answer_arrives_with_its_status_and_phrase() -> None:
    assert read_reply(payload(reply(None))) == (ACCEPTED, "")
    refused = Response(421, "there is no device /7", {}, b"")
    assert read_reply(payload(reply(refused))) == (421, "there is no device /7")


@pytest.mark.parametrize(
    "value",
    [
        [2, "Session"],
        [1, "Sessions"],
        [1],
        None,
        [1, "/session", {}],
        {"version": 1},
        [1, b"Session"],
    ],
)
def test_another_header_is_not_one_of_burns(value: object) -> None:
    with pytest.raises(ProtocolViolation, match="header of Burn's"):
        read_burn_header(msgpack.packb(value))


@pytest.mark.parametrize(
    "value",
    [[1, "/x"], [2, "/x", {}], [1, 7, {}], [1, "/x", {1: "a"}], [1, "/x", {"a": None}],
     [1, "/x", {str(n): "" for n in range(17)}], "GET / HTTP/1.1"],
)  # fmt: skip
def test_another_frame_is_not_a_request(value: object) -> None:
    with pytest.raises(ProtocolViolation, match="the first frame of a stream"):
        read_request(msgpack.packb(value))


@given(st.binary(max_size=200))
def test_garbage_is_a_violation(data: bytes) -> None:
    for read in (read_request, read_burn_header, read_reply):
        try:
            read(data)
        except ProtocolViolation:
            continue


@given(st.integers(MAX_OPENING_BYTES + 1, 2**64 - 1))
def test_a_long_first_frame_is_refused_before_it_is_read(claim: int) -> None:
    stream = Stream(claim.to_bytes(8, "little"))
    with pytest.raises(ProtocolViolation, match="are allowed"):
        asyncio.run(read_opening(stream))
    assert stream.asked == [HEADER_BYTES]


def test_an_empty_first_frame_is_read() -> None:
    assert asyncio.run(read_opening(Stream(frame_header(0)))) == b""
