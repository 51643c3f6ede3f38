"""Groups over servers, devices of this process and mixtures of them, by each engine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import burn_remote as br
from burn_remote.distributed import Group
from burn_remote_protocol.collectives import (
    CollectiveCall,
    CollectiveKind,
    EngineKind,
    GroupSpec,
)
from support.collectives import (
    COMBINE,
    FLOATS,
    INTEGERS,
    all_reduced_in_ring,
    elements,
    reduced_in_ring,
    same_bits,
)
from support.servers import RunningServer, server

Devices = list[br.Device]


@pytest.fixture(scope="module")
def addresses(first_server: RunningServer, second_server: RunningServer) -> Iterator[list[str]]:
    """Five devices on three servers."""
    with server("--device-count", "3") as third:
        yield [
            first_server.address,
            third.address,
            second_server.address,
            f"{third.address}/1",
            f"{third.address}/2",
        ]


# Native servers and devices of this process by each engine, servers of Burn's dialect, and several
# kinds of devices.
KINDS = ("ring", "memory", "local", "local ring", "moves", "burn", "mixed")


@pytest.fixture(scope="module")
def one_server() -> Iterator[list[str]]:
    """Five devices of one server."""
    with server("--device-count", "5") as running:
        yield [f"{running.address}/{index}" for index in range(5)]


def opened(kind: str, address: str, member: int) -> br.Device:
    if kind.startswith("local") or (kind == "mixed" and member == 1):
        return br.LocalDevice()
    is_burn = kind == "burn" or (kind == "mixed" and member == 2)
    return br.RemoteDevice(address, dialect="burn-0.21" if is_burn else "native")


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of the members."""
    return str(request.param)


@pytest.fixture(scope="module")
def members(kind: str, addresses: list[str], one_server: list[str]) -> Iterator[Devices]:
    """Five devices of one kind, or of several."""
    addresses = one_server if kind == "memory" else addresses
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(opened(kind, address, member))
            for member, address in enumerate(addresses)
        ]


@pytest.fixture(scope="module")
def engine(kind: str) -> str:
    """The engine for these members."""
    engines = {"ring": "ring", "memory": "memory", "local": "memory", "local ring": "ring"}
    return engines.get(kind, "moves")


@given(
    count=st.integers(2, 5),
    shape=st.sampled_from([(), (0,), (1,), (3,), (7, 3), (4, 1, 5), (40_001,), (300_000,)]),
    dtype=st.sampled_from([*FLOATS, *INTEGERS]),
    op=st.sampled_from([*COMBINE]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=40)
def test_all_reduce_gives_each_member_the_same_bits(
    members: Devices,
    engine: str,
    count: int,
    shape: tuple[int, ...],
    dtype: str,
    op: str,
    seed: int,
) -> None:
    assume(op != "mean" or dtype in FLOATS)
    arrays = [elements(seed + member, shape, dtype) for member in range(count)]
    values = [br.tensor(one, device=d) for one, d in zip(arrays, members, strict=False)]
    with Group(members[:count], engine=engine) as group:
        made = group.all_reduce(values, op)
        assert [x.device for x in made] == members[:count]
        if engine == "ring":
            wanted = all_reduced_in_ring(op, arrays)
        else:
            wanted = COMBINE[op](arrays).astype(arrays[0].dtype)
        assert all(same_bits(one, wanted) for one in br.read(made))


@pytest.mark.parametrize("op", COMBINE)
@pytest.mark.parametrize("shape", [(60,), (120, 3), (11, 3), (0, 2)])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_all_collectives_give_what_numpy_gives(
    members: Devices, engine: str, count: int, shape: tuple[int, ...], op: str
) -> None:
    arrays = [elements(member, shape, "float32") for member in range(count)]
    parts = [np.array_split(one, count) for one in arrays]
    values = [br.tensor(one, device=d) for one, d in zip(arrays, members, strict=False)]
    reduced = COMBINE[op](arrays)
    scattered = np.array_split(reduced, count)
    if engine == "ring":
        reduced = reduced_in_ring(op, arrays, 2 % count)
        if shape[0] % count == 0:  # unequal parts are scattered by moves
            scattered = [
                reduced_in_ring(op, [own[part] for own in parts], (part + 1) % count)
                for part in range(count)
            ]
    with Group(members[:count], engine=engine) as group:
        made = {
            "reduce_scatter": (group.reduce_scatter(values, op), scattered),
            "all_gather": (group.all_gather(values), count * [np.concatenate(arrays)]),
            "all_to_all": (
                group.all_to_all(values),
                [np.concatenate([own[n] for own in parts]) for n in range(count)],
            ),
            "broadcast": (group.broadcast(values[1]), count * [arrays[1]]),
            "reduce": ([group.reduce(values, op, root=1)], [reduced]),
        }
        group.barrier()
        for name, (tensors, wanted) in made.items():
            assert all(map(same_bits, br.read(tensors), wanted)), name


def test_values_of_other_sizes_and_dtypes_are_gathered_and_exchanged(
    members: Devices, engine: str
) -> None:
    arrays = [elements(member, (2 * member, 3), "float32") > 0 for member in range(3)]
    values = [br.tensor(one, device=d) for one, d in zip(arrays, members, strict=False)]
    parts = [np.array_split(one, 3) for one in arrays]
    with Group(members[:3], engine=engine) as group:
        for x in group.all_gather(values):
            assert same_bits(x.numpy(), np.concatenate(arrays))
        for member, x in enumerate(group.all_to_all(values)):
            assert same_bits(x.numpy(), np.concatenate([own[member] for own in parts]))
        quantized = br.quantize(br.ones((64,), device=members[2]))
        for x in group.broadcast(quantized):
            assert same_bits(x.dequantize().numpy(), np.ones(64, np.float32))


def test_buckets_have_tensors_of_several_dtypes(members: Devices, engine: str) -> None:
    shapes: list[tuple[tuple[int, ...], str]] = [
        ((3, 2), "float32"),
        ((5,), "int32"),
        ((), "float32"),
        ((0,), "float16"),
    ]
    arrays = [[elements(member, *one) for one in shapes] for member in range(3)]
    values = [
        br.tree.map(lambda one, device=device: br.tensor(one, device=device), value)
        for value, device in zip(arrays, members, strict=False)
    ]
    with Group(members[:3], engine=engine) as group:
        for value in group.all_reduce(values, "max"):
            columns = zip(*arrays, strict=True)
            wanted = [COMBINE["max"](column).astype(column[0].dtype) for column in columns]
            assert all(map(same_bits, br.read(value), wanted))
        assert group.all_reduce([[], [], []]) == [[], [], []]


def test_several_groups_work_at_once(members: Devices, engine: str) -> None:
    with (
        Group(members[:3], engine=engine) as rows,
        Group([members[2], members[0]], engine=engine) as columns,
    ):
        for _ in range(3):
            first = rows.all_reduce([br.ones((2,), device=device) for device in members[:3]])
            second = columns.all_reduce([first[2], first[0]], "product")
        assert [x.tolist() for x in second] == [[9, 9], [9, 9]]


ENGINES = pytest.mark.parametrize("chosen", ["ring", "moves"])


@ENGINES
def test_collectives_between_servers_send_no_request_and_no_element_to_the_client(
    addresses: list[str], chosen: str
) -> None:
    with contextlib.ExitStack() as stack:
        members = [stack.enter_context(br.RemoteDevice(one)) for one in addresses[:4]]
        group = stack.enter_context(Group(members, engine=chosen))
        values = [br.ones((2**18,), device=device) for device in members]
        group.sync()
        before = [device.traffic for device in members]
        made = group.all_reduce(values, "mean")
        group.barrier()
        used = [d.traffic - past for d, past in zip(members, before, strict=True)]
        assert sum(one.requests for one in used) == 0
        group.sync()
        used = [d.traffic - past for d, past in zip(members, before, strict=True)]
        # For 4 MiB of elements.
        assert sum(one.bytes_sent + one.bytes_received for one in used) < (
            1024 if chosen == "ring" else 16 * 1024
        )
        assert [float(x.sum().item()) for x in made] == 4 * [2**18]


@ENGINES
def test_a_member_passes_a_barrier_after_the_earlier_work_of_all_members(chosen: str) -> None:
    with server() as first, server() as second, contextlib.ExitStack() as stack:
        a, b = [stack.enter_context(br.RemoteDevice(one.address)) for one in (first, second)]
        group = stack.enter_context(Group([a, b], engine=chosen))
        x = br.ones((500, 500), device=b)
        group.sync()
        before = second.metric("burn_remote_operations_total")
        for _ in range(60):
            x = x @ x
        group.barrier()
        assert (br.ones((), device=a) + 1).item() == 2
        assert second.metric("burn_remote_operations_total") - before >= 60


@ENGINES
def test_a_failed_operation_fails_the_results_and_nothing_else(
    addresses: list[str], chosen: str
) -> None:
    with br.RemoteDevice(addresses[0]) as a, br.RemoteDevice(addresses[1]) as b:
        group = Group([a, b], engine=chosen)
        good = br.ones((3,), device=a)
        bad = br.ones((3,), device=b).take(br.tensor([7, 8, 9], device=b), axis=0)
        for x in group.all_reduce([good, bad]):
            with pytest.raises(br.OperationFailed):
                x.numpy()
        with contextlib.suppress(br.OperationFailed):
            group.sync()
        group.rejoin()
        again = group.all_reduce([good, br.ones((3,), device=b)])
        assert [x.tolist() for x in again] == [[2, 2, 2], [2, 2, 2]]


@ENGINES
def test_a_killed_member_fails_the_others_and_they_regroup(
    addresses: list[str], chosen: str
) -> None:
    with server() as doomed, contextlib.ExitStack() as stack:
        rest = [stack.enter_context(br.RemoteDevice(one)) for one in addresses[:1] + addresses[2:3]]
        lost = br.RemoteDevice(doomed.address)
        members = [*rest, lost]
        values = [br.ones((2**16,), device=device) for device in members]
        group = Group(members, engine=chosen)
        group.all_reduce(values)
        group.sync()
        doomed.kill()
        for member in range(2):
            with pytest.raises(br.BurnRemoteError):
                group.all_reduce(values)[member].sum().item()
        group.close()
        for device in rest:
            with contextlib.suppress(br.OperationFailed):
                device.sync()
        again = Group(rest, engine=chosen).all_reduce(values[:2])
        assert [float(x.sum().item()) for x in again] == 2 * [2**17]
        with contextlib.suppress(br.BurnRemoteError):
            lost.close(0)


def test_a_member_whose_client_does_not_send_its_collective_is_named_with_its_earlier_work(
    addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.ExitStack() as stack:
        devices = [stack.enter_context(br.RemoteDevice(address)) for address in addresses[:3]]
        with Group(devices, engine="ring", issue_timeout_seconds=2.0) as group:
            assert group.failure() is None
            for name in ("flush_waiting", "_send_promptly"):
                monkeypatch.setattr(devices[1].session, name, lambda: None)
            results = group.all_reduce([br.ones((3,), device=device) for device in devices])
            with pytest.raises(br.CollectiveFailed, match="its client sent") as failed:
                results[0].numpy()
            assert failed.value.member == 1
            assert "did not issue collective 1, all_reduce by sum" in str(failed.value)
            for device in devices:
                device.session.fence().result()
                device.session.take_failures()


@ENGINES
def test_a_reduction_to_which_not_all_members_contribute_disturbs_no_later_one(
    addresses: list[str], chosen: str
) -> None:
    with contextlib.ExitStack() as stack:
        members = [stack.enter_context(br.RemoteDevice(one)) for one in addresses[:3]]
        group = stack.enter_context(Group(members, engine=chosen))
        values = [br.ones((5,), device=device) for device in members]
        for begin in (group.reduce_buckets, group.reduce_scatter_buckets):
            reduction = begin()
            reduction.give(1, [values[1]])
            reduction.abandon()
        assert [x.tolist() for x in group.all_reduce(values)] == 3 * [[3] * 5]


@ENGINES
def test_collectives_leave_no_tensors_behind(
    first_server: RunningServer, second_server: RunningServer, chosen: str
) -> None:
    servers = [first_server, second_server]
    with contextlib.ExitStack() as stack:
        members = [stack.enter_context(br.RemoteDevice(one.address)) for one in servers]
        group = stack.enter_context(Group(members, engine=chosen))
        values = [[br.ones((9, 4), device=d), br.ones((2**14,), device=d)] for d in members]
        names = ("burn_remote_tensors", "burn_remote_transfers_open")

        def held() -> list[float]:
            group.sync()
            return [one.metric(name) for one in servers for name in names]

        before = held()
        made = group.all_reduce(values)
        assert held() != before
        del made
        group.barrier()
        group.reduce_scatter(values)
        group.all_gather(values)
        # The second sync sends the drops of the tensors for which the first one waited.
        group.sync()
        assert held() == before


@ENGINES
def test_results_can_be_used_moved_and_dropped_before_they_arrive(
    addresses: list[str], chosen: str
) -> None:
    with contextlib.ExitStack() as stack:
        members = [stack.enter_context(br.RemoteDevice(one)) for one in addresses[:3]]
        group = stack.enter_context(Group(members, engine=chosen))
        made = []
        for number in range(10):
            values = [br.full((2**14,), number, dtype=br.float32, device=d) for d in members]
            parts = group.reduce_scatter(group.all_reduce(values))
            made.append(group.all_gather(parts)[0].to(members[1]).to(members[2]).max())
            del values, parts
        assert [x.item() for x in made] == [9 * number for number in range(10)]


def test_groups_that_the_program_forgets_are_left(addresses: list[str]) -> None:
    with br.RemoteDevice(addresses[0]) as a, br.RemoteDevice(addresses[2]) as b:
        most = a.session.welcome.limits["groups"]
        values = [br.ones((2,), device=a), br.ones((2,), device=b)]
        made = [Group([a, b], engine="ring").all_reduce(values)[0] for _ in range(most + 2)]
        assert all(x.tolist() == [2, 2] for x in made)


def test_the_fastest_engine_of_all_members_is_chosen(addresses: list[str]) -> None:
    with contextlib.ExitStack() as stack:
        native = [stack.enter_context(br.RemoteDevice(one)) for one in addresses[:2]]
        burn = stack.enter_context(br.RemoteDevice(addresses[2], dialect="burn-0.21"))
        for devices, wanted in [(native, "ring"), ([*native, burn], "moves")]:
            with Group(devices) as group:
                assert group.engine == wanted
        with pytest.raises(br.UsageError, match=r"needs native servers: .* no collectives"):
            Group([*native, burn], engine="ring")


def test_members_on_one_server_read_each_others_elements_in_its_memory(
    addresses: list[str],
) -> None:
    with server("--device-count", "3") as running, contextlib.ExitStack() as stack:
        several = [f"{running.address}/{index}" for index in range(3)]
        devices = [stack.enter_context(br.RemoteDevice(one)) for one in several]
        with Group(devices) as group:
            assert group.engine == "memory"
            made = group.all_reduce([br.ones((2**18,), device=device) for device in devices])
            assert [float(x.sum().item()) for x in made] == 3 * [3 * 2**18]
        assert running.metric('burn_remote_bytes_total{direction="sent",kind="peer"}') == 0
        elsewhere = stack.enter_context(br.RemoteDevice(addresses[0]))
        with pytest.raises(br.UsageError, match=r"all on one native server: .* on 2 servers"):
            Group([*devices, elsewhere], engine="memory")


def test_a_server_refuses_to_reduce_in_memory_with_members_elsewhere(addresses: list[str]) -> None:
    with br.RemoteDevice(addresses[0]) as a, br.RemoteDevice(addresses[1]) as b:
        given = tuple(device.session.peer_address for device in (a, b))
        spec = GroupSpec(bytes(32), 0, given, 5.0, engine=EngineKind.MEMORY)
        number = a.runners.join_group(spec)
        (token,) = a.runners.collective(number, CollectiveCall(CollectiveKind.BARRIER), [])
        with pytest.raises(br.CollectiveFailed, match="members that are all on one server"):
            br.Tensor(token).numpy()
        a.runners.leave_group(number)
        a.session.take_failures()
