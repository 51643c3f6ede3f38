"""Burn 0.21 programs on this project's servers get the results of the real server."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from support.burn_programs import burn_client, burn_server, program, start_burn_client
from support.servers import RunningServer, server
from support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def ours() -> Iterator[RunningServer]:
    program("burn-client")
    with server("--device-count", "2") as running:
        yield running


@pytest.fixture(scope="module")
def second() -> Iterator[RunningServer]:
    with server() as running:
        yield running


@pytest.fixture
def theirs() -> Iterator[str]:
    with burn_server() as address:
        yield address


def numbers(value: Any) -> Iterator[float]:
    """Every number in a result, in order."""
    if isinstance(value, dict):
        for key in sorted(value):
            if key != "crc32":
                yield from numbers(value[key])
    elif isinstance(value, list):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, int | float) or value in ("NaN", "inf", "-inf"):
        yield float(value)


@pytest.mark.parametrize("model", ["digits", "mlp"])
def test_training_with_autodiff_gives_the_losses_and_weights_of_the_real_server(
    model: str, ours: RunningServer, theirs: str
) -> None:
    flags = ("--model", model, "--steps", "10")
    here, there = burn_client("train", ours.address, *flags), burn_client("train", theirs, *flags)
    np.testing.assert_allclose([*numbers(here)], [*numbers(there)], rtol=2e-3, atol=1e-4)
    assert here["losses"][-1] < here["losses"][0]


def test_each_of_288_operations_matches_the_real_server(ours: RunningServer, theirs: str) -> None:
    here, there = burn_client("ops", ours.address), burn_client("ops", theirs)
    assert here["count"] == there["count"] == 288
    different = {}
    for name, expected in there["results"].items():
        seen = here["results"][name]
        a, b = [*numbers(seen)], [*numbers(expected)]
        if len(a) != len(b) or not np.allclose(a, b, rtol=1e-3, atol=1e-4, equal_nan=True):
            different[name] = seen, expected
    assert different == {}


def moves(source: str, target: str, pattern: str) -> Any:
    """Move tensors between two servers with a real client; return the outcome."""
    options = ("--pattern", pattern, "--wait", str(PATIENCE_SECONDS))
    return burn_client("move", source, target, *options)[pattern]


def test_a_device_behind_a_path_prefix_is_another_device(ours: RunningServer) -> None:
    moved = moves(ours.address, f"{ours.address}/1", "sequential")
    assert moved["outcome"] == "value"


def test_tensors_moved_by_four_threads_at_once_each_arrive_once(
    ours: RunningServer, second: RunningServer
) -> None:
    # The client gives all four moves one transfer id. Whose expose is first on the one socket and
    # whose fetch on the other is up to its threads, so each may get another's tensor.
    moved = moves(ours.address, second.address, "threads")
    assert moved["outcome"] == "value", moved
    sent, arrived = zip(*moved["value"]["pairs"], strict=True)
    assert sorted(arrived) == sorted(sent)


@pytest.mark.parametrize("pattern", ["sequential", "overlapping"])
def test_moves_on_which_the_real_server_hangs_arrive(
    pattern: str, ours: RunningServer, second: RunningServer
) -> None:
    moved = moves(ours.address, second.address, pattern)
    assert moved["outcome"] == "value", moved
    assert '"equal": false' not in json.dumps(moved)


@pytest.mark.parametrize("to_theirs", [True, False], ids=["to the real one", "from the real one"])
def test_tensors_move_between_a_real_server_and_ours(
    to_theirs: bool, ours: RunningServer, theirs: str
) -> None:
    addresses = (ours.address, theirs) if to_theirs else (theirs, ours.address)
    moved = moves(*addresses, "sequential")
    assert moved["outcome"] == "value", moved
    assert '"equal": false' not in json.dumps(moved)


def test_a_failed_operation_fails_its_read_and_the_session_continues(
    ours: RunningServer,
) -> None:
    cases = burn_client("errors", ours.address)["cases"]
    assert all(case["usable_after"] for case in cases)
    # The client itself refuses some cases; the others return the server's error.
    told = [case["read"]["value"]["error"] for case in cases if case["read"]["outcome"] == "value"]
    assert any("Base.Select" in text and "1000" in text for text in told)
    # After a failure, the real server responds to no client.
    assert burn_client("threads", "1", ours.address)["wrong"] == 0


@pytest.mark.parametrize("share", [(), ("--share",)], ids=["apart", "handing tensors on"])
def test_operations_of_eight_threads_execute_in_the_order_of_each_thread(
    share: tuple[str, ...], ours: RunningServer
) -> None:
    result = burn_client("threads", "8", ours.address, *share)
    assert (result["panicked"], result["wrong"]) == (0, 0)
    assert result["shared_is_right"] in (None, True)


@pytest.mark.parametrize("megabytes", ["20", "300"])
def test_an_upload_over_the_real_servers_limit_arrives(megabytes: str, ours: RunningServer) -> None:
    assert burn_client("upload", megabytes, ours.address)["equal"]


def test_two_clients_with_equal_tensor_ids_do_not_interfere(ours: RunningServer) -> None:
    clients = [start_burn_client("two-clients", ours.address, "--seconds", "2") for _ in range(2)]
    outputs = [client.communicate(timeout=60)[0] for client in clients]
    results = [json.loads(output.splitlines()[-1]) for output in outputs]
    assert [result["wrong"] for result in results] == [0, 0]


@pytest.mark.parametrize("command", ["hold", "upload-loop"])
def test_a_killed_client_leaves_no_tensors_and_disturbs_no_other_client(
    command: str, ours: RunningServer
) -> None:
    client = start_burn_client(command, "32", ours.address)
    assert client.stdout is not None  # started with a pipe
    client.stdout.readline()  # it has begun
    client.kill()
    client.communicate()
    assert burn_client("threads", "2", ours.address)["wrong"] == 0
    for _ in itertools.count():
        if ours.metric("burn_remote_tensor_bytes") == 0:
            break
    assert ours.metric("burn_remote_sessions") == 0


def test_integers_of_every_width_and_casts_between_them_work(ours: RunningServer) -> None:
    # The real server panics on BaseInt(Cast) and loses uploads of U8 to U64.
    results = burn_client("ops", ours.address, "--only", "cast")["results"]
    assert results


def test_the_interop_programs_use_burn_0_21() -> None:
    command = [program("burn-client")]
    usage = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert usage.returncode == 2
