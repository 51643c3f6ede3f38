"""Servers in a real Ray cluster on this machine: placement, collectives, restarts and the end."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

import burn_remote as br
from support.waiting import wait_until

ray = pytest.importorskip("ray")

from burn_remote.ray import Servers, _room  # noqa: E402 it needs Ray

pytestmark = [
    pytest.mark.ray,
    # Ray's own warnings, and the sockets that it leaves to the end of the process.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PAGE = Path(__file__).parents[2] / "docs" / "ray.md"
TIMEOUT_SECONDS = 60.0


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """Run a cluster with processors and GPUs that exist only in its accounts."""
    ray.init(num_cpus=4, num_gpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def processes() -> dict[str, psutil.Process]:
    """Return the running servers of this machine that Ray started, by port."""
    found = {}
    for process in psutil.process_iter():
        try:
            if "burn_remote_server" in process.cmdline() and "--peer" in process.cmdline():
                for connection in process.net_connections("tcp"):
                    if connection.status == psutil.CONN_LISTEN:
                        found[str(connection.laddr.port)] = process
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def process_of(address: str) -> psutil.Process:
    return processes()[address.rsplit(":", 1)[1]]


def test_servers_reduce_in_a_ring_and_move_tensors_to_each_other() -> None:
    with Servers(2) as servers:
        devices = servers.connect()
        with br.distributed.Group(devices) as group:
            assert group.engine == "ring"
            values = [br.ones((1000,), device=device) * (1 + n) for n, device in enumerate(devices)]
            for x in group.all_reduce(values):
                np.testing.assert_array_equal(x.numpy(), np.full(1000, 3, np.float32))
            moved = values[0].to(devices[1])
            assert moved.sum().item() == 1000
        for device in devices:
            device.close()


def test_a_server_that_was_killed_is_started_again_elsewhere() -> None:
    with Servers(2) as servers:
        before = servers.addresses()
        assert servers.addresses() == before
        process_of(before[0]).kill()
        wait_until(lambda: before[0].rsplit(":", 1)[1] not in processes(), TIMEOUT_SECONDS)
        after = servers.addresses()
        assert after[0] != before[0] and after[1] == before[1]
        with br.RemoteDevice(after[0], token=servers.token) as device:
            assert br.ones((3,), device=device).sum().item() == 3


def test_an_actor_that_ray_lost_is_restarted_with_its_server() -> None:
    with Servers(1) as servers:
        (before,) = servers.addresses()
        server = process_of(before)
        actor = server.parent()
        assert actor is not None
        actor.kill()
        server.wait(TIMEOUT_SECONDS)  # it ends with its actor
        (after,) = servers.addresses()
        assert process_of(after).is_running()


def test_each_server_sees_the_gpus_that_ray_assigned_to_it() -> None:
    # The backend that needs no GPU: the later of two flags counts.
    with Servers(2, gpus=1, flags=("--backend", "numpy")) as servers:
        seen = [
            process_of(address).environ()["CUDA_VISIBLE_DEVICES"] for address in servers.addresses()
        ]
        assert sorted(seen) == ["0", "1"]


def test_a_stranger_without_the_token_is_refused() -> None:
    with Servers(1) as servers:
        (address,) = servers.addresses()
        with pytest.raises(br.HandshakeRefused, match="token"):
            br.RemoteDevice(address)


def test_too_many_servers_for_the_cluster_are_refused_with_what_it_has() -> None:
    with (
        pytest.warns(UserWarning, match=r"room for 4 of 9 .*machines have 4 CPU, 2 GPU;") as warned,
        pytest.raises(br.ConnectionFailed, match=r"no room for 9 servers .* 'CPU': 4"),
    ):
        Servers(9, timeout_seconds=1.0)
    assert warned[0].filename == __file__
    with Servers(4):  # nothing of the attempt is reserved any more
        pass


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(br.ConnectionFailed, match="no-such-flag"):
        Servers(1, flags=("--no-such-flag",))


def test_the_end_stops_the_servers_and_gives_their_resources_back() -> None:
    servers = Servers(2)
    ports = {address.rsplit(":", 1)[1] for address in servers.addresses()}
    servers.close()
    servers.close()
    wait_until(lambda: not ports & set(processes()), TIMEOUT_SECONDS)
    wait_until(lambda: ray.available_resources().get("CPU") == 4, TIMEOUT_SECONDS)
    with pytest.raises(br.UsageError, match="closed"):
        servers.addresses()


def test_wrong_arguments_are_refused_before_anything_starts() -> None:
    with pytest.raises(br.UsageError, match="at least one"):
        Servers(0)
    with pytest.raises(br.UsageError, match="strategy"):
        Servers(1, strategy="NEAR")


def test_the_program_of_the_page_prints_what_its_comments_say() -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    expected = re.findall(r"print\(.*\)\s+# (.*)", program)
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=110
    )
    assert run.returncode == 0, run.stderr
    assert expected
    assert run.stdout.splitlines()[-len(expected) :] == expected


def test_arguments_of_another_type_are_refused_with_what_to_write() -> None:
    with pytest.raises(br.UsageError, match="takes the number of servers, not '2'"):
        Servers("2")  # type: ignore[arg-type]
    with pytest.raises(br.UsageError, match=r"write flags=\('--nccl', 'true'\)"):
        Servers(1, flags="--nccl true")


@pytest.mark.parametrize(
    ("bundle", "strategy", "room"),
    [
        ({"CPU": 1.0}, "SPREAD", 6),
        ({"CPU": 1.0}, "STRICT_SPREAD", 3),
        ({"CPU": 1.0}, "STRICT_PACK", 4),
        ({"CPU": 1.0, "GPU": 1.0}, "PACK", 2),
        ({"GPU": 2.0}, "PACK", 1),
        ({"GPU": 0.5}, "STRICT_SPREAD", 1),
        ({"CPU": 8.0}, "SPREAD", 0),
    ],
)
def test_the_room_for_servers_depends_on_each_machine(
    bundle: dict[str, float], strategy: str, room: int
) -> None:
    machines = [{"CPU": 4.0, "GPU": 2.0}, {"CPU": 1.0, "memory": 1e9}, {"CPU": 1.0}]
    assert _room(bundle, machines, strategy) == room
