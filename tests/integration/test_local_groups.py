"""Groups of devices of this process."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote.distributed import Group
from burn_remote_protocol.collectives import CollectiveCall, CollectiveKind
from burn_remote_server.collectives.groups import SessionGroups
from support.servers import RunningServer
from support.waiting import wait_until

Devices = list[br.LocalDevice]


@pytest.fixture
def members() -> Iterator[Devices]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(br.LocalDevice()) for _ in range(3)]


def member_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("member-")}


def ones(devices: Devices) -> list[br.Tensor]:
    return [br.ones((4,), device=device) for device in devices]


def test_local_devices_reduce_in_the_memory_of_this_process(members: Devices) -> None:
    with Group(members) as group:
        assert group.engine == "memory"
        made = group.all_reduce(ones(members))
        group.barrier()
        assert [x.tolist() for x in made] == 3 * [[3.0] * 4]
        assert group.failure() is None


def test_a_group_of_local_devices_and_servers_moves_its_elements_and_has_no_ring(
    members: Devices, first_server: RunningServer
) -> None:
    with br.RemoteDevice(first_server.address) as remote:
        devices = [members[0], remote]
        with Group(devices) as group:
            assert group.engine == "moves"
            made = group.all_reduce([br.ones((4,), device=device) for device in devices])
            assert [x.tolist() for x in made] == 2 * [[2.0] * 4]
        for engine in ("ring", "memory"):
            with pytest.raises(br.UsageError, match=r"is in this process, .* 'moves'"):
                Group(devices, engine=engine)


def test_a_compiled_step_trains_local_devices_as_one_device(members: Devices) -> None:
    x = np.random.default_rng(0).normal(size=(31, 3)).astype(np.float32)
    y = x @ np.array([[1], [2], [3]], np.float32)

    def loss_of(w: br.Tensor, x: br.Tensor, y: br.Tensor) -> br.Tensor:
        return (x @ w - y).square().mean()

    found = []
    cases: tuple[tuple[Devices, dict[str, Any]], ...] = (
        (members[:1], {}),
        (members, {}),
        (members, {"compiles": True}),
        (members, {"shards_state": True}),
    )
    for devices, options in cases:
        start = np.zeros((3, 1), np.float32)
        optimizer = br.optim.Adam(lr=0.1)
        with br.DataParallel(loss_of, start, devices, optimizer=optimizer, **options) as trainer:
            for _ in range(10):
                trainer.step(x, y)
            replicas = [each.numpy() for each in trainer.replicas]
        assert all(np.array_equal(replicas[0], each) for each in replicas)
        found.append(replicas[0])
    for each in found[1:]:
        np.testing.assert_allclose(each, found[0], atol=1e-5)


def test_a_closed_member_fails_later_collectives_of_the_others(members: Devices) -> None:
    group = Group(members)
    values = ones(members)
    members[1].close()
    numbers = [group._engine._numbers[rank] for rank in (0, 2)]  # type: ignore[attr-defined]
    call = CollectiveCall(CollectiveKind.BARRIER)
    for rank, number in zip((0, 2), numbers, strict=True):
        (token,) = members[rank].runners.collective(number, call, ())
        with pytest.raises(br.CollectiveFailed, match="member 1") as caught:
            br.Tensor(token).numpy()
        assert caught.value.member == 1
    assert values[0].tolist() == [1.0] * 4
    group.close()


@pytest.mark.parametrize("has_begun", [False, True])
def test_an_interrupted_collective_fails_for_all_members_and_the_group_can_rejoin(
    members: Devices, monkeypatch: pytest.MonkeyPatch, has_begun: bool
) -> None:
    submit = SessionGroups.submit
    interrupted: list[SessionGroups] = []

    def submitted(groups: SessionGroups, *arguments: Any) -> None:
        if interrupted:
            submit(groups, *arguments)
            return
        interrupted.append(groups)
        if has_begun:
            submit(groups, *arguments)
        raise KeyboardInterrupt

    with Group(members) as group:
        values = ones(members)
        monkeypatch.setattr(SessionGroups, "submit", submitted)
        with pytest.raises(KeyboardInterrupt):
            group.all_reduce(values)
        failure = group.failure()
        assert failure is not None
        assert "interrupted" in str(failure)
        group.rejoin()
        assert group.all_reduce(values)[2].tolist() == [3.0] * 4
    for device in members:
        device.session.take_failures()


def test_the_threads_of_a_group_end_with_it_and_with_forgotten_devices() -> None:
    others = member_threads()  # of earlier tests, which may end meanwhile
    with br.LocalDevice() as a, br.LocalDevice() as b:
        group = Group([a, b])
        assert group.all_reduce(ones([a, b]))[0].tolist() == [2.0] * 4
        assert member_threads() - others
        group.close()
        a.sync()
        b.sync()
        wait_until(lambda: not member_threads() - others)
    devices = [br.LocalDevice(), br.LocalDevice()]
    group = Group(devices)
    assert group.all_reduce(ones(devices))[0].tolist() == [2.0] * 4
    del group, devices
    gc.collect()
    with br.LocalDevice():  # leaves the groups of forgotten devices
        wait_until(lambda: not member_threads() - others)
