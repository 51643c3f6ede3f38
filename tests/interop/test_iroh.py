"""Real Burn 0.22 programs over Iroh, their default transport, with our server and client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from support.burn_programs import burn_22_server, burn_client, program
from support.servers import RunningServer, server

pytestmark = pytest.mark.interop

CLIENT = "burn22-client"


@pytest.fixture(scope="module")
def ours() -> Iterator[RunningServer]:
    pytest.importorskip("iroh", reason="the package iroh has no wheel for this platform")
    program(CLIENT)
    with server("--device-count", "2", "--iroh-port", "0") as running:
        yield running


@pytest.fixture(scope="module")
def second() -> Iterator[RunningServer]:
    with server("--iroh-port", "0") as running:
        yield running


@pytest.fixture(scope="module")
def theirs() -> Iterator[str]:
    pytest.importorskip("iroh", reason="the package iroh has no wheel for this platform")
    with burn_22_server(0, "--iroh") as address:
        yield address


def run(command: str, address: str, *options: str) -> Any:
    return burn_client(command, address, *options, name=CLIENT)


@pytest.mark.parametrize("reading", [(), ("--read-each-step",)], ids=["at the end", "each step"])
def test_training_gives_the_losses_of_the_real_server(
    reading: tuple[str, ...], ours: RunningServer, theirs: str
) -> None:
    here, there = (run("train", each, *reading) for each in (ours.iroh[0], theirs))
    np.testing.assert_allclose(here["losses"], there["losses"], rtol=2e-3, atol=1e-4)
    assert here["losses"][-1] < 0.7 * here["losses"][0]


def test_each_operation_gives_the_result_that_it_has_over_a_websocket(ours: RunningServer) -> None:
    over_iroh = run("ops", ours.iroh[0])["results"]
    over_websocket = run("ops", ours.address)["results"]
    assert len(over_iroh) == 50
    assert over_iroh == over_websocket


def test_threads_share_a_device(ours: RunningServer) -> None:
    assert burn_client("threads", "4", ours.iroh[0], "--rounds", "10", name=CLIENT) == burn_client(
        "threads", "4", ours.address, "--rounds", "10", name=CLIENT
    )


def test_two_devices_are_two_streams_of_one_connection(ours: RunningServer) -> None:
    address = ours.iroh[0]
    moved = run("move", address, address, "--to", "1")
    assert moved == {"outcome": "value", "value": {"equal": True}}


@pytest.mark.parametrize("route", ["ours to ours", "ours to theirs", "theirs to ours"])
def test_moved_tensors_arrive(
    route: str, ours: RunningServer, second: RunningServer, theirs: str
) -> None:
    addresses = {
        "ours to ours": (ours.iroh[0], second.iroh[0]),
        "ours to theirs": (ours.iroh[0], theirs),
        "theirs to ours": (theirs, ours.iroh[0]),
    }[route]
    moved = run("move", *addresses)
    assert moved == {"outcome": "value", "value": {"equal": True}}


def test_a_failed_operation_is_reported_and_the_session_continues(ours: RunningServer) -> None:
    result = run("errors", ours.iroh[0])
    assert result["read"]["outcome"] == "value"
    assert "1000" in result["read"]["value"]["error"]
    assert result["usable_after"]


def test_our_client_finds_out_that_a_server_speaks_burn_0_22(theirs: str) -> None:
    values = np.random.default_rng(0).standard_normal((200, 300)).astype(np.float32)
    with br.RemoteDevice(theirs) as device:
        assert device.info == {"dialect": "burn-0.22"}
        x = br.asarray(values, device=device)
        np.testing.assert_allclose((x @ x.mT).numpy(), values @ values.T, rtol=1e-3, atol=1e-3)


def test_the_native_dialect_is_refused_by_the_real_server(theirs: str) -> None:
    with pytest.raises(br.ConnectionFailed, match="does not speak the protocol burn-remote/native"):
        br.RemoteDevice(theirs, dialect="native")


def test_our_client_uses_both_devices_of_the_real_server(theirs: str) -> None:
    second = theirs.replace("?", "/1?")
    with br.RemoteDevice(theirs) as one, br.RemoteDevice(second) as other:
        assert one != other
        assert (br.tensor([1.0], device=other) + 1).tolist() == [2.0]
