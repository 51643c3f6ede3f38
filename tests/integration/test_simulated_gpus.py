"""Collectives by NCCL between servers whose GPUs are simulated, and a member that is lost."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import pytest

import burn_remote as br
from support.servers import RunningServer, server

TESTS = Path(__file__).parents[1]
FLAGS = ("--backend", "numpy", "--nccl", "true")


def simulated(*flags: str) -> contextlib.AbstractContextManager[RunningServer]:
    environment = {"PYTHONPATH": str(TESTS), "SECONDS": "0.0002", "STATISTICS": "unused"}
    return server(*FLAGS, *flags, module="support.simulated_gpus", **environment)


def issued(group: br.distributed.Group, count: int) -> list[br.Tensor]:
    values = [br.ones((1024,), device=device) for device in group.devices]
    made = values
    for _ in range(count):
        made = group.all_reduce(values)
    return made


def test_many_collectives_of_two_devices_of_one_server_finish() -> None:
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(simulated("--device-count", "2")).address
        devices = [
            stack.enter_context(br.RemoteDevice(place)) for place in (address, f"{address}/1")
        ]
        group = stack.enter_context(br.distributed.Group(devices))
        assert group.engine == "nccl"
        for count in (1, 3, 100):
            assert [x.shape for x in br.read(issued(group, count))] == 2 * [(1024,)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_next_member_names_a_server_that_is_lost_between_collectives(
    number: signal.Signals,
) -> None:
    victim = 1
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(simulated()) for _ in range(3)]
        devices = [br.RemoteDevice(one.address) for one in running]
        for place, device in enumerate(devices):
            if place != victim:
                stack.enter_context(device)
        group = br.distributed.Group(devices, timeout_seconds=2.0)
        assert group.engine == "nccl"
        br.read(issued(group, 40))
        issued(group, 20)
        running[victim].process.send_signal(number)
        # The simulated NCCL does not wait for other servers, so only the next member waits.
        waiting = issued(group, 20)[(victim + 1) % 3]
        with pytest.raises(br.CollectiveFailed) as failed:
            waiting.numpy()
        assert failed.value.member == victim
        running[victim].process.kill()
        with contextlib.suppress(br.BurnRemoteError):
            devices[victim].close(timeout_seconds=0)
