"""Servers of Burn 0.22's clients exchange tensors over Iroh, if the rules and the keys allow it."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import numpy as np
import pytest

from burn_remote_protocol.dialects.burn_0_22_iroh import encode_tensor_request
from burn_remote_protocol.errors import ConnectionLost
from burn_remote_protocol.links.addresses import parse_address
from burn_remote_protocol.links.iroh import endpoints
from burn_remote_protocol.links.transport_registry import connect
from support.servers import RunningServer, server
from support.socket_replay_0_22 import STREAM, Socket22
from support.waiting import PATIENCE_SECONDS

Dial = Callable[[str], Socket22]


@pytest.fixture(scope="module")
def source() -> Iterator[RunningServer]:
    with server("--iroh-port", "0", "--fetch-timeout-seconds", "1") as running:
        yield running


@pytest.fixture(scope="module")
def target() -> Iterator[RunningServer]:
    with server("--iroh-port", "0", "--fetch-timeout-seconds", "1") as running:
        yield running


@pytest.fixture(scope="module")
def patient() -> Iterator[list[RunningServer]]:
    """A source and a target that wait for a tensor as long as by default."""
    with server("--iroh-port", "0") as first, server("--iroh-port", "0") as second:
        yield [first, second]


@pytest.fixture
def dial() -> Iterator[Dial]:
    with contextlib.ExitStack() as stack:

        def opened(address: str) -> Socket22:
            socket = Socket22.opened(address)
            stack.callback(socket.close)
            return socket

        yield opened


def key(running: RunningServer) -> list[int]:
    return [*bytes.fromhex(parse_address(running.iroh[0]).host)]


def peer(running: RunningServer) -> dict[str, Any]:
    port = int(parse_address(running.iroh[0]).direct[0].rpartition(":")[2])
    return {"Iroh": [key(running), [{"Ip": {"V4": [[127, 0, 0, 1], port]}}]]}


def tensor(number: int, size: int = 2) -> Any:
    return [[number], [[size]], "ReadOnly", "F32"]


def upload(socket: Socket22, number: int, values: Any) -> None:
    data = np.asarray(values, np.float32)
    socket.task("RegisterTensor", [STREAM, [number], [data.tobytes(), [*data.shape], "F32"]])


def expose(socket: Socket22, number: int, to: list[int], size: int = 2) -> list[int]:
    capability = [*secrets.token_bytes(32)]
    socket.task("ExposeTensorRemote", [STREAM, tensor(number, size), 1, capability, {"Iroh": to}])
    return capability


def fetch(socket: Socket22, number: int, capability: list[int], remote: Any) -> None:
    socket.task("RegisterTensorRemote", [STREAM, [capability, remote], [number]])


def reason(outcome: Any) -> str:
    (text,) = outcome["Err"]["Generic"]
    return str(text)


@pytest.mark.parametrize("size", [2, 3_000_000])
def test_a_tensor_moves_between_two_servers(
    patient: list[RunningServer], dial: Dial, size: int
) -> None:
    source, target = patient
    first, second = dial(source.iroh[0]), dial(target.iroh[0])
    values = np.arange(size, dtype=np.float32)
    upload(first, 1, values)
    capability = expose(first, 1, key(target), size)
    fetch(second, 5, capability, peer(source))
    assert second.read(5, [size], 1)["Ok"][0] == values.tobytes()


def test_only_the_server_that_the_client_named_gets_the_tensor(
    source: RunningServer, target: RunningServer, dial: Dial
) -> None:
    first, second = dial(source.iroh[0]), dial(target.iroh[0])
    upload(first, 1, [1, 2])
    capability = expose(first, 1, [*secrets.token_bytes(32)])
    fetch(second, 5, capability, peer(source))
    assert "the source denied the tensor" in reason(second.read(5, [2], 1))


def test_a_failed_tensor_is_denied_with_its_reason(
    source: RunningServer, target: RunningServer, dial: Dial
) -> None:
    first, second = dial(source.iroh[0]), dial(target.iroh[0])
    capability = expose(first, 99, key(target))  # there is no tensor 99
    fetch(second, 5, capability, peer(source))
    assert "denied the tensor" in reason(second.read(5, [2], 1))


def test_a_source_that_the_rules_do_not_allow_is_not_dialled(
    target: RunningServer, dial: Dial
) -> None:
    second = dial(target.iroh[0])
    away = {"Iroh": [[*bytes(31), 1], [{"Ip": {"V4": [[192, 0, 2, 7], 4433]}}]]}
    fetch(second, 5, [*secrets.token_bytes(32)], away)
    assert "may not fetch from iroh://" in reason(second.read(5, [2], 1))


def test_a_source_that_does_not_answer_fails_only_the_tensor(dial: Dial) -> None:
    with server("--iroh-port", "0", "--handshake-timeout-seconds", "1") as impatient:
        second = dial(impatient.iroh[0])
        node = [*bytes.fromhex(endpoints.node_id(bytes(range(32))))]
        dead = {"Iroh": [node, [{"Ip": {"V4": [[127, 0, 0, 1], 9]}}]]}
        fetch(second, 5, [*secrets.token_bytes(32)], dead)
        assert "cannot fetch from iroh://" in reason(second.read(5, [2], 1))
        upload(second, 6, [3, 4])
        assert second.read(6, [2], 2)["Ok"][0] == np.asarray([3, 4], np.float32).tobytes()


def test_a_source_whose_key_is_none_fails_only_the_tensor(
    target: RunningServer, dial: Dial
) -> None:
    second = dial(target.iroh[0])
    no_key = {"Iroh": [[2, *bytes(31)], [{"Ip": {"V4": [[127, 0, 0, 1], 9]}}]]}
    fetch(second, 5, [*secrets.token_bytes(32)], no_key)
    assert "names no public key" in reason(second.read(5, [2], 1))


@pytest.mark.parametrize("frame", [b"", b"\xc1", msgpack.packb({"Tensor": []}), bytes(60_000)])
def test_a_malformed_request_for_a_tensor_ends_its_stream(
    source: RunningServer, frame: bytes
) -> None:
    link = connect(source.iroh[0], "/tensor", speaks_burn=True)
    link.send(frame)
    with pytest.raises(ConnectionLost):
        link.receive(PATIENCE_SECONDS)
    link.close()


def test_a_request_for_an_unknown_tensor_is_denied(source: RunningServer) -> None:
    link = connect(source.iroh[0], "/tensor", speaks_burn=True)
    link.send(encode_tensor_request(secrets.randbits(255)))
    denial = link.receive(PATIENCE_SECONDS)
    assert denial is not None
    assert "Denied" in msgpack.unpackb(denial)
    link.close()


def test_no_websocket_and_no_native_client_reaches_the_streams_for_tensors(
    source: RunningServer,
) -> None:
    for address in (source.address, source.iroh[0]):
        with pytest.raises(Exception, match="404"):
            connect(address, "/tensor")
