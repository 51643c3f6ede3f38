"""Collectives over servers, devices of this process and mixtures of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import burn_remote as br
from burn_remote.distributed import Group
from support.collectives import COMBINE, elements, same_bits
from support.servers import RunningServer, server

Devices = list[br.Device]


@pytest.fixture(scope="module")
def third_server() -> Iterator[RunningServer]:
    """A server with two devices."""
    with server("--device-count", "2") as running:
        yield running


@pytest.fixture
def addresses(
    first_server: RunningServer, second_server: RunningServer, third_server: RunningServer
) -> list[str]:
    """Devices on three servers, two of them on one."""
    third = third_server.address
    return [first_server.address, second_server.address, third, f"{third}/1"]


KINDS: dict[str, Callable[[str, int], br.Device]] = {
    "native": lambda address, member: br.RemoteDevice(address, dialect="native"),
    "burn": lambda address, member: br.RemoteDevice(address, dialect="burn-0.21"),
    "mixed": lambda address, member: (
        br.LocalDevice()
        if member == 1
        else br.RemoteDevice(address, dialect="burn-0.21" if member == 2 else "native")
    ),
}


@pytest.fixture(params=KINDS)
def members(request: pytest.FixtureRequest, addresses: list[str]) -> Iterator[Devices]:
    """Four devices: of native servers, of servers of Burn's dialect, and of several kinds."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(KINDS[request.param](address, member))
            for member, address in enumerate(addresses)
        ]


@pytest.mark.parametrize("op", COMBINE)
@pytest.mark.parametrize("count", [2, 3, 4])
def test_all_reduce_gives_each_member_the_same_bits(members: Devices, count: int, op: str) -> None:
    for shape, dtype in [((40_001,), "float32"), ((3, 5), "float16"), ((), "bfloat16")]:
        arrays = [elements(member, shape, dtype) for member in range(count)]
        given = [br.tensor(one, device=d) for one, d in zip(arrays, members, strict=False)]
        made = Group(members[:count]).all_reduce(given, op)
        wanted = COMBINE[op](arrays).astype(arrays[0].dtype)
        assert all(same_bits(one, wanted) for one in br.read(made))


def test_all_collectives_give_what_numpy_gives(members: Devices) -> None:
    count = len(members)
    arrays = [elements(member, (11, 3), "float32") for member in range(count)]
    given = [br.tensor(one, device=device) for one, device in zip(arrays, members, strict=True)]
    group = Group(members)
    parts = [np.array_split(one, count) for one in arrays]
    wanted = {
        "reduce_scatter": np.array_split(COMBINE["sum"](arrays), count),
        "all_gather": count * [np.concatenate(arrays)],
        "all_to_all": [np.concatenate([own[n] for own in parts]) for n in range(count)],
    }
    for name, arrays_wanted in wanted.items():
        made = getattr(group, name)(given)
        assert all(map(same_bits, br.read(made), arrays_wanted)), name
    assert all(same_bits(one, arrays[2]) for one in br.read(group.broadcast(given[2])))
    assert same_bits(group.reduce(given, root=3).numpy(), COMBINE["sum"](arrays))
    group.barrier()
    group.sync()


def test_collectives_between_servers_send_no_request_and_no_element_to_the_client(
    addresses: list[str],
) -> None:
    with contextlib.ExitStack() as stack:
        members = [stack.enter_context(br.RemoteDevice(one)) for one in addresses]
        group = stack.enter_context(Group(members))
        given = [br.ones((2**18,), device=device) for device in members]
        group.sync()
        before = [device.traffic for device in members]
        made = group.all_reduce(given, "mean")
        group.barrier()
        used = [d.traffic - past for d, past in zip(members, before, strict=True)]
        assert sum(one.requests for one in used) == 0
        group.sync()
        used = [d.traffic - past for d, past in zip(members, before, strict=True)]
        # For 4 MiB of elements.
        assert sum(one.bytes_sent + one.bytes_received for one in used) < 16 * 1024
        assert [float(x.sum().item()) for x in made] == 4 * [2**18]


def test_a_failed_operation_fails_the_results_and_nothing_else(addresses: list[str]) -> None:
    with br.RemoteDevice(addresses[0]) as a, br.RemoteDevice(addresses[1]) as b:
        group = Group([a, b])
        good = br.ones((3,), device=a)
        bad = br.ones((3,), device=b).take(br.tensor([7, 8, 9], device=b), axis=0)
        made = group.all_reduce([good, bad])
        for x in made:
            with pytest.raises(br.OperationFailed):
                x.numpy()
        with contextlib.suppress(br.OperationFailed):
            group.sync()
        again = group.all_reduce([good, br.ones((3,), device=b)])
        assert [x.tolist() for x in again] == [[2, 2, 2], [2, 2, 2]]


def test_a_killed_member_fails_the_others_and_they_regroup(addresses: list[str]) -> None:
    with server() as doomed, contextlib.ExitStack() as stack:
        rest = [stack.enter_context(br.RemoteDevice(one)) for one in addresses[:2]]
        lost = br.RemoteDevice(doomed.address)
        members = [*rest, lost]
        given = [br.ones((2**16,), device=device) for device in members]
        group = Group(members)
        group.sync()
        doomed.kill()
        for member in range(2):
            with pytest.raises(br.BurnRemoteError):
                group.all_reduce(given)[member].sum().item()
        with contextlib.suppress(br.OperationFailed):
            Group(rest).sync()
        again = Group(rest).all_reduce(given[:2])
        assert [float(x.sum().item()) for x in again] == 2 * [2**17]
        with contextlib.suppress(br.BurnRemoteError):
            lost.close(0)


def test_collectives_leave_no_tensors_behind(
    first_server: RunningServer, second_server: RunningServer
) -> None:
    servers = [first_server, second_server]
    with contextlib.ExitStack() as stack:
        members = [stack.enter_context(br.RemoteDevice(one.address)) for one in servers]
        group = stack.enter_context(Group(members))
        given = [[br.ones((9, 4), device=d), br.ones((2**14,), device=d)] for d in members]
        names = ("burn_remote_tensors", "burn_remote_transfers_open")

        def held() -> list[float]:
            group.sync()
            return [one.metric(name) for one in servers for name in names]

        before = held()
        made = group.all_reduce(given)
        assert held() != before
        del made
        group.barrier()
        group.reduce_scatter(given)
        group.all_gather(given)
        # The second sync carries the drops of what the first one waited for.
        group.sync()
        assert held() == before
