"""Peers of Burn 0.22 over Iroh, and the messages of their transfers."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.dialects.burn_0_21_responses import encode_data
from burn_remote_protocol.dialects.burn_0_22 import decode_messages
from burn_remote_protocol.dialects.burn_0_22_iroh import (
    bound_transfer,
    decode_tensor_request,
    decode_tensor_response,
    encode_denial,
    encode_tensor_request,
    read_iroh_address,
)
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import ProtocolViolation, TransferFailed
from burn_remote_protocol.ids import is_secret
from burn_remote_protocol.messages import Expose, Fetch
from burn_remote_protocol.tensors import TensorData

KEY = [*range(100, 132)]
NODE = bytes(KEY).hex()
CAPABILITY = [*range(200, 232)]
TENSOR = [[1], [[2]], "ReadOnly", "F32"]


def decoded(task: Any) -> list[Any]:
    return [*decode_messages(msgpack.packb([{"Task": task}]))]


@pytest.mark.parametrize(
    ("ways", "query"),
    [
        ([], ""),
        ([{"Ip": {"V4": [[127, 0, 0, 1], 4433]}}], "?addr=127.0.0.1:4433"),
        ([{"Ip": {"V6": [[0] * 15 + [1], 4433]}}], "?addr=[::1]:4433"),
        ([{"Relay": "https://relay.site./"}, {"Custom": [1, b"x"]}], "?relay=https://relay.site."),
        (
            [{"Ip": {"V4": [[10, 0, 0, n], 1]}} for n in range(12)],
            "?" + "&".join(f"addr=10.0.0.{n}:1" for n in range(8)),
        ),
    ],
)
def test_the_address_of_a_peer_is_its_key_with_the_ways_to_it(ways: Any, query: str) -> None:
    assert read_iroh_address([KEY, ways]) == f"iroh://{NODE}{query}"


@pytest.mark.parametrize(
    "address",
    [
        None,
        [KEY],
        [KEY[1:], []],
        [[256, *KEY[1:]], []],
        ["x" * 32, []],
        [KEY, None],
        [KEY, [{"Ip": {"V4": [[1, 2, 3], 1]}}]],
        [KEY, [{"Ip": {"V4": [[1, 2, 3, 4], 0]}}]],
        [KEY, [{"Ip": {"V4": [[1, 2, 3, "4"], 1]}}]],
        [KEY, [{"Ip": {"V5": [[1, 2, 3, 4], 1]}}]],
        [KEY, [{"Ip": "127.0.0.1:1"}]],
        [KEY, [{"Relay": 7}]],
        [KEY, [{"Relay": "ftp://relay"}]],
        [KEY, [{"Relay": "https://" + "r" * 600}]],
        [KEY, [{"Relay": "https://a"}] * 65],
    ],
)
def test_a_malformed_address_is_a_violation(address: Any) -> None:
    with pytest.raises(ProtocolViolation):
        read_iroh_address(address)


def test_an_expose_is_bound_to_the_key_of_its_target() -> None:
    (expose,) = decoded({"ExposeTensorRemote": [[0], TENSOR, 1, CAPABILITY, {"Iroh": KEY}]})
    assert isinstance(expose, Expose)
    assert expose.transfer == bound_transfer(bytes(CAPABILITY), bytes(KEY))
    assert expose.transfer != bound_transfer(bytes(CAPABILITY), bytes(KEY[::-1]))
    assert is_secret(expose.transfer)


def test_a_fetch_names_the_source_and_the_whole_capability() -> None:
    peer = {"Iroh": [KEY, [{"Ip": {"V4": [[127, 0, 0, 1], 4433]}}]]}
    (fetch,) = decoded({"RegisterTensorRemote": [[0], [CAPABILITY, peer], [9]]})
    assert isinstance(fetch, Fetch)
    assert fetch.address == f"iroh://{NODE}?addr=127.0.0.1:4433"
    assert isinstance(fetch.transfer, int)
    assert decode_tensor_request(encode_tensor_request(fetch.transfer)) == bytes(CAPABILITY)


def test_a_request_has_the_bytes_of_the_published_crate() -> None:
    # TransferMessage::Request(TransferCapability([u8; 32])) as rmp_serde writes it.
    capability = bytes(range(32))
    assert encode_tensor_request(int.from_bytes(capability, "little")) == (
        b"\x81\xa7Request\xdc\x00\x20" + capability
    )


def test_a_response_is_a_tensor_or_the_reason_of_a_denial() -> None:
    elements = np.arange(3, dtype=np.float32)
    frame = b"".join(encode_data(TensorData(elements.tobytes(), (3,), F32)))
    assert bytes(decode_tensor_response(frame).bytes) == elements.tobytes()
    with pytest.raises(TransferFailed, match="denied the tensor: not for you"):
        decode_tensor_response(encode_denial("not for you"))


@given(st.binary(max_size=200))
def test_garbage_is_a_violation(frame: bytes) -> None:
    for decode in (decode_tensor_request, decode_tensor_response):
        with pytest.raises((ProtocolViolation, TransferFailed)):
            decode(frame)
