"""Burn 0.22 programs, with and without fusion, on this project's servers and on the real one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from support.burn_programs import burn_22_server, burn_client, program, start_burn_client
from support.servers import RunningServer, server

pytestmark = pytest.mark.interop

CLIENTS = ["burn22-client", "burn22-client-fusion"]

# The CPU backend of Burn 0.22.1 has no such mode: a session on the real server ends.
ONLY_HERE = {"interpolate_nearest_exact"}
# With fusion, Burn 0.22.1's client declares a flip of floats as one of integers. A session on the
# real server ends; our server names the operation.
WRONG_WITH_FUSION = {"gradient_pad"}


@pytest.fixture(scope="module")
def ours() -> Iterator[RunningServer]:
    program("burn22-client")
    with server("--device-count", "2") as running:
        yield running


@pytest.fixture(scope="module")
def second() -> Iterator[RunningServer]:
    with server() as running:
        yield running


@pytest.fixture
def theirs() -> Iterator[str]:
    with burn_22_server() as address:
        yield address


def numbers(value: Any) -> list[float]:
    """Every number in a result, in order."""
    if isinstance(value, dict):
        return [number for key in sorted(value) for number in numbers(value[key])]
    if isinstance(value, list):
        return [number for item in value for number in numbers(item)]
    if isinstance(value, int | float) or value in ("NaN", "inf", "-inf"):
        return [float(value)]
    return []


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("reading", [(), ("--read-each-step",)], ids=["at the end", "each step"])
def test_training_gives_the_losses_and_weights_of_the_real_server(
    client: str, reading: tuple[str, ...], ours: RunningServer, theirs: str
) -> None:
    here = burn_client("train", ours.address, *reading, name=client)
    there = burn_client("train", theirs, *reading, name=client)
    np.testing.assert_allclose(numbers(here), numbers(there), rtol=2e-3, atol=1e-4)
    assert here["losses"][-1] < 0.7 * here["losses"][0]


@pytest.mark.parametrize("client", CLIENTS)
def test_each_of_50_operations_matches_the_real_server(
    client: str, ours: RunningServer, theirs: str
) -> None:
    here = burn_client("ops", ours.address, name=client)["results"]
    there = burn_client("ops", theirs, name=client)["results"]
    assert len(here) == len(there) == 50
    different = {}
    for name, expected in there.items():
        if name in ONLY_HERE:
            continue
        a, b = numbers(here[name]), numbers(expected)
        if len(a) != len(b) or not np.allclose(a, b, rtol=1e-3, atol=1e-4, equal_nan=True):
            different[name] = here[name], expected
    assert different == {}
    failed = {name for name in here if "panic" in here[name]}
    assert failed == (WRONG_WITH_FUSION if client == "burn22-client-fusion" else set())


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    "route",
    ["ours to ours", "ours to theirs", "theirs to ours", "between two devices of ours"],
)
def test_moved_tensors_arrive(
    client: str, route: str, ours: RunningServer, second: RunningServer, theirs: str
) -> None:
    addresses = {
        "ours to ours": (ours.address, second.address),
        "ours to theirs": (ours.address, theirs),
        "theirs to ours": (theirs, ours.address),
        "between two devices of ours": (ours.address, ours.address, "--to", "1"),
    }[route]
    moved = burn_client("move", *addresses, name=client)
    assert moved == {"outcome": "value", "value": {"equal": True}}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_failed_operation_is_reported_and_the_session_continues(
    client: str, ours: RunningServer
) -> None:
    result = burn_client("errors", ours.address, name=client)
    assert result["read"]["outcome"] == "value"
    assert "1000" in result["read"]["value"]["error"]
    assert result["usable_after"]


def test_after_a_failed_operation_the_real_server_ends_the_session(theirs: str) -> None:
    result = burn_client("errors", theirs, name="burn22-client")
    assert not result["usable_after"]


def test_two_clients_that_move_within_one_server_at_once_get_their_own_tensors(
    ours: RunningServer,
) -> None:
    # Both count transfers from 0, so the real server swaps their tensors or hangs.
    clients = [
        start_burn_client(
            "local-moves", ours.address, "--seconds", "2", "--salt", salt, name="burn22-client"
        )
        for salt in ("1", "2")
    ]
    outputs = [client.communicate(timeout=60)[0] for client in clients]
    results = [json.loads(output.splitlines()[-1]) for output in outputs]
    assert [result["outcome"] for result in results] == ["value", "value"]
    assert [result["value"]["wrong"] for result in results] == [0, 0]
    assert all(result["value"]["moves"] for result in results)


def test_moves_to_a_peer_that_was_restarted_arrive(ours: RunningServer) -> None:
    # The real server keeps the closed connection to its peer, and every later move panics.
    with burn_22_server() as address:
        port = int(address.rpartition(":")[2])
        before = burn_client("move", address, ours.address, name="burn22-client")
    with burn_22_server(port) as address:
        after = burn_client("move", address, ours.address, name="burn22-client")
    assert before == after == {"outcome": "value", "value": {"equal": True}}


@pytest.mark.parametrize("client", CLIENTS)
def test_threads_of_one_device_keep_their_order(client: str, ours: RunningServer) -> None:
    assert burn_client("threads", "4", ours.address, name=client) == {"wrong": 0}


def uniform(count: int, salt: int) -> Any:
    """Return the inputs of the programs; tests/interop/README.md describes them."""
    bits = np.arange(count, dtype=np.uint32) ^ np.uint32(salt * 0x9E3779B9 % 2**32)
    bits ^= bits >> np.uint32(16)
    bits *= np.uint32(0x85EBCA6B)
    bits ^= bits >> np.uint32(13)
    bits *= np.uint32(0xC2B2AE35)
    bits ^= bits >> np.uint32(16)
    return ((bits >> np.uint32(8)) / 2**24 - 0.5).astype(np.float32)


@pytest.mark.parametrize("client", CLIENTS)
def test_devices_of_one_server_agree_on_the_sum_and_the_mean_of_their_tensors(
    client: str, ours: RunningServer
) -> None:
    found = burn_client("all-reduce", ours.address, "--rounds", "3", name=client)

    assert found["outcome"] == "value", found
    for round_, reduced in enumerate(found["value"]):
        total = uniform(12, 10 * round_) + uniform(12, 10 * round_ + 1)
        for operation, expected in (("sum", 2 * total), ("mean", total)):
            for result in reduced[operation]:
                assert result["shape"] == [3, 4]
                np.testing.assert_array_equal(np.float32(result["values"]), expected)


def test_the_real_server_has_no_all_reduce_on_the_cpu(theirs: str) -> None:
    found = burn_client("all-reduce", theirs, "--rounds", "1", name="burn22-client")

    assert found["value"] == [{"sum": ["panic", "panic"], "mean": ["panic", "panic"]}]
