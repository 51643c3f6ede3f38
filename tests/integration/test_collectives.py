"""Collectives between real server processes."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme

import burn_remote as br
from burn_remote_protocol.collectives import CollectiveCall, CollectiveKind, GroupSpec, Reduction
from burn_remote_protocol.tensors import TensorSpec
from support.access import PEERS, certificate
from support.faults import FaultyProxy, bytes_to_open, faulty_proxy, random_cuts
from support.groups import Group, group_of
from support.servers import RunningServer, server
from support.waiting import PATIENCE_SECONDS, wait_until

Kind = CollectiveKind
BARRIER = CollectiveCall(Kind.BARRIER)


@pytest.fixture(scope="module")
def servers() -> Iterator[list[RunningServer]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(server()) for _ in range(3)]


# The server of each member.
SEVERAL = {
    "two servers": (0, 1),
    "three servers": (0, 1, 2),
    "two of four on one server": (0, 0, 1, 2),
}
PLACES = {**SEVERAL, "one": (0,)}


@pytest.fixture(params=PLACES)
def group(request: pytest.FixtureRequest, servers: list[RunningServer]) -> Iterator[Group]:
    """A group with neighbours over the network, in the memory of a server, and with one member."""
    with group_of(*[servers[place].address for place in PLACES[request.param]]) as found:
        yield found


def tensors(group: Group, shape: tuple[int, ...], dtype: Any = np.float32) -> list[Any]:
    """Return an array for each member, of small integers."""
    random = np.random.default_rng(len(group.devices))
    return [random.integers(0, 50, shape).astype(dtype) for _ in group.devices]


def uploaded(group: Group, arrays: list[Any]) -> list[list[br.Tensor]]:
    return [
        [br.tensor(array, device=each)] for each, array in zip(group.devices, arrays, strict=True)
    ]


def test_an_all_reduce_gives_every_member_the_sum(group: Group) -> None:
    arrays = tensors(group, (7, 3))
    outputs = group.issue(Kind.ALL_REDUCE, uploaded(group, arrays))
    for (output,) in outputs:
        np.testing.assert_array_equal(output.numpy(), sum(arrays))


def test_a_large_bucket_of_odd_tensors_is_reduced_without_a_concatenation(group: Group) -> None:
    shapes: list[tuple[int, ...]] = [(611, 1009), (), (5,), (0, 3), (300_001,)]
    buckets = [tensors(group, shape) for shape in shapes]
    inputs = [
        [br.tensor(bucket[rank], device=each) for bucket in buckets]
        for rank, each in enumerate(group.devices)
    ]
    for outputs in group.issue(Kind.ALL_REDUCE, inputs):
        for output, bucket in zip(outputs, buckets, strict=True):
            np.testing.assert_array_equal(output.numpy(), sum(bucket))


def test_every_kind_of_collective_gives_what_numpy_gives(group: Group) -> None:
    members = len(group.devices)
    arrays = tensors(group, (2 * members, 5))
    blocks = [np.split(array, members) for array in arrays]
    root = members - 1
    wanted: dict[Kind, list[Any]] = {
        Kind.ALL_REDUCE: [sum(arrays)] * members,
        Kind.REDUCE_SCATTER: np.split(sum(arrays), members),
        Kind.ALL_GATHER: [np.concatenate(arrays)] * members,
        Kind.BROADCAST: [arrays[root]] * members,
        Kind.REDUCE: [np.zeros(0)] * root + [sum(arrays)],
        Kind.ALL_TO_ALL: [
            np.concatenate([block[rank] for block in blocks]) for rank in range(members)
        ],
    }
    found = {kind: group.issue(kind, uploaded(group, arrays), root=root) for kind in wanted}
    for kind, expected in wanted.items():
        for (output,), array in zip(found[kind], expected, strict=True):
            np.testing.assert_array_equal(output.numpy(), array, err_msg=str(kind))


@pytest.mark.parametrize(
    ("reduction", "dtype"),
    [
        (reduction, dtype)
        for reduction in Reduction
        for dtype in ("float32", "float64", "float16", "bfloat16", "int32", "uint8")
        if reduction is not Reduction.MEAN or "int" not in dtype  # integers have no mean
    ],
    ids=str,
)
def test_every_reduction_of_every_dtype_has_the_same_bits_everywhere(
    servers: list[RunningServer], reduction: Reduction, dtype: str
) -> None:
    with group_of(*[each.address for each in servers]) as group:
        random = np.random.default_rng(3)
        arrays = [random.integers(1, 6, (1001,)).astype(np.float32) for _ in servers]
        inputs = [
            [br.astype(br.tensor(array, device=each), getattr(br, dtype))]
            for each, array in zip(group.devices, arrays, strict=True)
        ]
        outputs = [one.numpy() for (one,) in group.issue(Kind.ALL_REDUCE, inputs, reduction)]
    arrays = [array.astype(np.float64) for array in arrays]
    exact = {
        Reduction.SUM: sum(arrays),
        Reduction.MEAN: sum(arrays) / 3,
        Reduction.MIN: np.minimum.reduce(arrays),
        Reduction.MAX: np.maximum.reduce(arrays),
        Reduction.PRODUCT: np.multiply.reduce(arrays),
    }[reduction]
    assert len({output.tobytes() for output in outputs}) == 1
    tolerance = {"bfloat16": 2**-8, "float16": 2**-11, "float32": 2**-24}.get(dtype, 1e-15)
    np.testing.assert_allclose(outputs[0].astype(np.float64), exact, rtol=tolerance)


@pytest.mark.parametrize(("dtype", "unit"), [("float16", 2**-11), ("bfloat16", 2**-8)])
@pytest.mark.parametrize("reduction", [Reduction.SUM, Reduction.MEAN], ids=str)
def test_low_precision_sums_are_within_the_documented_bound(
    servers: list[RunningServer], reduction: Reduction, dtype: str, unit: float
) -> None:
    members = 6
    random = np.random.default_rng(7)
    arrays = [random.normal(size=30_000).astype(np.float32) for _ in range(members)]
    with group_of(*[servers[rank % 3].address for rank in range(members)]) as group:
        inputs = [
            [br.astype(br.tensor(array, device=each), getattr(br, dtype))]
            for each, array in zip(group.devices, arrays, strict=True)
        ]
        exact = [one.numpy().astype(np.float64) for (one,) in inputs]
        outputs = [one.numpy() for (one,) in group.issue(Kind.ALL_REDUCE, inputs, reduction)]
    assert len({output.tobytes() for output in outputs}) == 1
    # Each of the members - 1 additions is exact but for float32, and then rounded to the dtype.
    step = (1 + unit) * (1 + 2.0**-24)
    bound = (step ** (members - 1) * (1 + 2.0**-24) - 1) * sum(map(np.abs, exact))
    count = members if reduction is Reduction.MEAN else 1
    error = np.abs(outputs[0].astype(np.float64) - sum(exact) / count)
    assert (error <= bound / count).all()


def test_a_chain_of_collectives_runs_without_a_request(group: Group) -> None:
    members = len(group.devices)
    (before, *_) = [each.traffic for each in group.devices]
    values = [[br.ones((1000,), device=each)] for each in group.devices]
    for _ in range(5):
        values = group.issue(Kind.ALL_REDUCE, values)
        values = [[value / members + 1] for (value,) in values]
    assert (group.devices[0].traffic - before).requests == 0
    for (value,) in values:
        np.testing.assert_array_equal(value.numpy(), np.full(1000, 6, np.float32))


def test_a_sync_after_a_barrier_returns_once_all_members_have_issued_it(group: Group) -> None:
    tokens = [group.issue_one(rank, BARRIER) for rank in range(len(group.devices))]
    for each in group.devices:
        each.sync()
    assert all(token.numpy().size == 0 for (token,) in tokens)


# -- failures -------------------------------------------------------------------------------------


@contextlib.contextmanager
def own_group(count: int, bound_seconds: float = 10.0) -> Iterator[tuple[list[Any], Group]]:
    """Start servers that a test may kill, with a group of one session on each."""
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(server()) for _ in range(count)]
        addresses = [each.address for each in running]
        yield running, stack.enter_context(group_of(*addresses, bound_seconds=bound_seconds))


def ones(group: Group, ranks: range | list[int]) -> dict[int, list[br.Tensor]]:
    return {rank: [br.ones((200_000,), device=group.devices[rank])] for rank in ranks}


SUM = CollectiveCall(Kind.ALL_REDUCE, (TensorSpec((200_000,), br.float32),))


def failure_of(tensor: br.Tensor) -> br.CollectiveFailed:
    with pytest.raises(br.CollectiveFailed) as failed:
        tensor.numpy()
    return failed.value


def assert_blamed(group: Group, outputs: dict[int, list[br.Tensor]], culprit: int) -> None:
    for (output,) in outputs.values():
        error = failure_of(output)
        assert (error.member, error.address) == (culprit, group.addresses[culprit])
        assert f"member {culprit}" in str(error)


def regrouped_sum(group: Group, ranks: list[int]) -> None:
    """Form a new group of some of the members, and check that it works."""
    devices = [group.devices[rank] for rank in ranks]
    again = Group(devices)
    inputs = [[br.full((3,), float(rank), device=each)] for rank, each in enumerate(devices)]
    for (output,) in again.issue(Kind.ALL_REDUCE, inputs):
        assert output.tolist() == [sum(range(len(ranks)))] * 3


@pytest.mark.parametrize("culprit", [0, 2])
def test_every_other_member_names_a_member_that_was_killed(culprit: int) -> None:
    with own_group(4) as (running, group):
        others = [rank for rank in range(4) if rank != culprit]
        group.issue(Kind.ALL_REDUCE, [*ones(group, range(4)).values()])
        for rank in others:
            group.devices[rank].sync()
        inputs = ones(group, others)
        outputs = {rank: group.issue_one(rank, SUM, inputs[rank]) for rank in others}
        running[culprit].kill()
        assert_blamed(group, outputs, culprit)
        for rank in others:
            assert float((inputs[rank][0] + 1).sum().item()) == 400_000
        regrouped_sum(group, others)
        later = {rank: group.issue_one(rank, SUM, inputs[rank]) for rank in others}
        assert_blamed(group, later, culprit)


def test_every_other_member_names_a_member_that_was_stopped() -> None:
    with own_group(3, bound_seconds=3.0) as (running, group):
        group.issue(Kind.ALL_REDUCE, [*ones(group, range(3)).values()])
        for each in group.devices:
            each.sync()
        inputs = ones(group, [0, 2])
        outputs = {rank: group.issue_one(rank, SUM, inputs[rank]) for rank in (0, 2)}
        running[1].process.send_signal(signal.SIGSTOP)
        try:
            assert_blamed(group, outputs, 1)
            regrouped_sum(group, [0, 2])
        finally:
            running[1].process.send_signal(signal.SIGCONT)


def test_a_stopped_member_is_noticed_while_it_should_forward(servers: list[RunningServer]) -> None:
    with own_group(3, bound_seconds=3.0) as (running, group):
        big = [[br.ones((5_000_000,), device=each)] for each in group.devices]
        for each in group.devices:
            each.sync()
        outputs = group.issue(Kind.ALL_REDUCE, big)
        for each in group.devices:
            each.runners.session.flush()
        running[1].process.send_signal(signal.SIGSTOP)
        try:
            for rank in (0, 2):
                try:  # it may have been done before the signal came
                    outputs[rank][0].sum().item()
                except br.CollectiveFailed as error:
                    assert error.member == 1
            inputs = ones(group, [0, 2])
            later = {rank: group.issue_one(rank, SUM, inputs[rank]) for rank in (0, 2)}
            assert_blamed(group, later, 1)
        finally:
            running[1].process.send_signal(signal.SIGCONT)
        with contextlib.suppress(br.CollectiveFailed):
            outputs[1][0].sum().item()


@pytest.mark.parametrize("group", SEVERAL, indirect=True)
def test_a_member_that_issues_another_collective_is_named(group: Group) -> None:
    others = range(1, len(group.devices))
    inputs = ones(group, range(len(group.devices)))
    different = CollectiveCall(Kind.ALL_REDUCE, SUM.specs, Reduction.MAX)
    outputs = {0: group.issue_one(0, different, inputs[0])}
    outputs |= {rank: group.issue_one(rank, SUM, inputs[rank]) for rank in others}
    for (output,) in outputs.values():
        error = failure_of(output)
        assert "all_reduce by max" in str(error)
        assert "all_reduce by sum" in str(error)
    regrouped_sum(group, [*range(len(group.devices))])


@pytest.mark.parametrize(
    "spec", [TensorSpec((200_000,), br.int32), TensorSpec((200_001,), br.float32)], ids=str
)
def test_members_with_another_dtype_or_size_are_told_both_calls(
    servers: list[RunningServer], spec: TensorSpec
) -> None:
    with group_of(*[each.address for each in servers]) as group:
        inputs = ones(group, range(3))
        other = br.ones(spec.shape, dtype=spec.dtype, device=group.devices[1])
        calls = {0: SUM, 1: CollectiveCall(Kind.ALL_REDUCE, (spec,)), 2: SUM}
        outputs = {
            rank: group.issue_one(rank, call, [other] if rank == 1 else inputs[rank])
            for rank, call in calls.items()
        }
        for (output,) in outputs.values():
            text = str(failure_of(output))
            assert f"all_reduce by sum({spec})" in text
            assert f"all_reduce by sum({SUM.specs[0]})" in text
        regrouped_sum(group, [0, 1, 2])


def test_a_member_that_skips_a_collective_is_named(servers: list[RunningServer]) -> None:
    with group_of(*[each.address for each in servers]) as group:
        inputs = ones(group, range(3))
        session = group.devices[2].session
        session._sequences[group.numbers[2]] = 5
        outputs = {rank: group.issue_one(rank, SUM, inputs[rank]) for rank in range(3)}
        for rank in (0, 1):
            error = failure_of(outputs[rank][0])
            assert (
                error.member,
                "it issued collective 5; expected collective 0" in str(error),
            ) == (2, True)
        with pytest.raises(
            br.OperationFailed, match="it issued collective 5; expected collective 0"
        ):
            outputs[2][0].numpy()
        regrouped_sum(group, [0, 1, 2])


@pytest.mark.parametrize("rank", range(3))
def test_all_members_name_the_one_whose_certificate_is_not_trusted(
    tmp_path: Path, authority: trustme.CA, rank: int
) -> None:
    trusted = ["--peer-ca", str(tmp_path / "ca.pem")]
    flags = [*certificate(tmp_path, authority), *trusted]
    stranger = trustme.CA()
    (tmp_path / "other").mkdir()
    others = [*certificate(tmp_path / "other", stranger), *trusted]
    both = tmp_path / "both.pem"
    both.write_bytes(authority.cert_pem.bytes() + stranger.cert_pem.bytes())
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(server(*(others if place == rank else flags))) for place in range(3)
        ]
        addresses = [each.address for each in servers]
        group = stack.enter_context(group_of(*addresses, bound_seconds=5.0, tls=both))
        tokens = [group.issue_one(place, BARRIER)[0] for place in range(3)]
        errors = [failure_of(token) for token in tokens]
        assert all("certificate" in str(error) for error in errors), [*map(str, errors)]
        places = [(error.member, error.address) for error in errors]
        assert places == 3 * [(rank, group.addresses[rank])]


@pytest.fixture(scope="module")
def hasty() -> Iterator[list[str]]:
    """The addresses of servers that soon give up a member that does not join."""
    with (
        server("--handshake-timeout-seconds", "1.5") as first,
        server("--handshake-timeout-seconds", "1.5") as second,
    ):
        yield [first.address, second.address]


def test_members_with_another_secret_disturb_no_other_group(hasty: list[str]) -> None:
    with group_of(*hasty) as group, contextlib.ExitStack() as stack:
        regrouped_sum(group, [0, 1])
        addresses = group.addresses
        strangers = [stack.enter_context(br.RemoteDevice(each)) for each in addresses]
        apart = [
            each.runners.join_group(GroupSpec(bytes([rank]) * 32, rank, group.addresses, 1.0))
            for rank, each in enumerate(strangers)
        ]
        tokens = [
            each.runners.collective(number, BARRIER, [])
            for each, number in zip(strangers, apart, strict=True)
        ]
        regrouped_sum(group, [0, 1])
        for (token,) in tokens:
            assert "it did not join the group within 1.5 seconds" in str(
                failure_of(br.Tensor(token))
            )
        for (output,) in group.issue(Kind.ALL_REDUCE, [*ones(group, [0, 1]).values()]):
            assert float(output.sum().item()) == 400_000


def test_two_members_with_one_rank_fail_alone(servers: list[RunningServer]) -> None:
    addresses = [each.address for each in servers[:2]]
    with group_of(*addresses) as group, br.RemoteDevice(addresses[0]) as stranger:
        spec = GroupSpec(group.secret, 0, group.addresses, 1.0)
        number = stranger.runners.join_group(spec)
        (token,) = stranger.runners.collective(number, BARRIER, [])
        assert failure_of(br.Tensor(token)).member is not None
        for (output,) in group.issue(Kind.ALL_REDUCE, [*ones(group, [0, 1]).values()]):
            assert float(output.sum().item()) == 400_000


def test_a_failed_input_fails_the_collective_on_all_members(group: Group) -> None:
    inputs = [*ones(group, range(len(group.devices))).values()]
    huge = br.zeros((2**31, 2**12), device=group.devices[0])  # exceeds every quota
    inputs[0] = [br.reshape(huge, (-1,))[:200_000]]
    (own,), *others = group.issue(Kind.ALL_REDUCE, inputs)
    with pytest.raises(br.QuotaExceeded):
        own.numpy()
    for (output,) in others:
        error = failure_of(output)
        assert error.member == 0
        assert "tensor bytes" in str(error)
    with pytest.raises(br.QuotaExceeded):
        group.devices[0].sync()


def test_a_sync_raises_the_failure_of_a_barrier(hasty: list[str]) -> None:
    with group_of(*hasty) as group:
        number = group.devices[0].runners.join_group(GroupSpec(bytes(32), 0, group.addresses, 0.5))
        token = group.devices[0].runners.collective(number, BARRIER, [])
        with pytest.raises(br.CollectiveFailed):
            group.devices[0].sync()
        del token


def test_what_a_member_issued_is_done_although_its_session_has_ended(
    servers: list[RunningServer],
) -> None:
    with group_of(*[each.address for each in servers]) as group:
        inputs = [[br.ones((3_000_000,), device=each)] for each in group.devices]
        outputs = group.issue(Kind.ALL_REDUCE, inputs)
        group.devices[1].close()
        for rank in (0, 2):
            assert float(outputs[rank][0][0].item()) == 3
        again = CollectiveCall(Kind.ALL_REDUCE, (inputs[0][0].handle.spec,))
        late = {rank: group.issue_one(rank, again, inputs[rank]) for rank in (0, 2)}
        for (output,) in late.values():
            assert "member 1" in str(failure_of(output))
            assert "it left the group" in str(failure_of(output))


def test_a_group_can_be_left_and_formed_again_many_times(servers: list[RunningServer]) -> None:
    groups = 20
    with group_of(*[each.address for each in servers[:2]]) as group:
        group.devices[1].sync()
        threads = sum(each.threads for each in servers[:2])
        for _ in range(groups):
            group.leave()
            group = Group(group.devices)
            for (output,) in group.issue(Kind.ALL_REDUCE, [*ones(group, [0, 1]).values()]):
                assert float(output.sum().item()) == 400_000
        # The executor of an event loop keeps the threads that it has started, a few for each core.
        wait_until(lambda: sum(each.threads for each in servers[:2]) < threads + groups)


# -- clients and peers ----------------------------------------------------------------------------


def test_each_collective_runs_once_although_clients_resume(servers: list[RunningServer]) -> None:
    with contextlib.ExitStack() as stack:
        proxies = [
            stack.enter_context(
                faulty_proxy(
                    each.port, random_cuts(12, 100, 1_500, after_bytes=bytes_to_open(each.port))
                )
            )
            for each in servers[:2]
        ]
        group = stack.enter_context(group_of(*[each.address for each in proxies]))
        values = [[br.ones((3,), device=each)] for each in group.devices]
        for step in range(60):
            values = group.issue(Kind.ALL_REDUCE, values)
            values = [[value / 2 + 1] for (value,) in values]
            if step % 5 == 0:
                for each in group.devices:
                    each.sync()
        for (value,) in values:
            assert value.tolist() == [61.0] * 3
        assert all(each.cuts for each in proxies)


CUTS: dict[str, Callable[[FaultyProxy], None]] = {
    "end": FaultyProxy.cut_all,
    "reset": FaultyProxy.cut_all,
    "half-open": FaultyProxy.stall_all,
}
# The results of collectives of three members that have three elements each: 1, 2 and 4.
WANTED = {
    Kind.ALL_REDUCE: [7] * 3,
    Kind.REDUCE_SCATTER: [7],
    Kind.ALL_GATHER: [1] * 3 + [2] * 3 + [4] * 3,
    Kind.ALL_TO_ALL: [1, 2, 4],
    Kind.BROADCAST: [1] * 3,
}


@pytest.fixture(scope="module")
def pinging() -> Iterator[list[RunningServer]]:
    """Servers that notice half-open connections within a fraction of a second."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(server("--heartbeat-seconds", "0.2")) for _ in range(3)]


def are_connected(proxies: list[FaultyProxy], count: int) -> bool:
    return sum(proxy.connections for proxy in proxies) >= count


@pytest.mark.parametrize("cut", [(0, 1), (0,), (2,), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("fault", CUTS)
def test_collectives_that_wait_for_a_member_survive_cuts_of_the_clients_connections(
    pinging: list[RunningServer], fault: str, cut: tuple[int, ...]
) -> None:
    with contextlib.ExitStack() as stack:
        proxies = [
            stack.enter_context(faulty_proxy(each.port, resets=fault == "reset"))
            for each in pinging
        ]
        addresses = [each.address for each in proxies]
        group = stack.enter_context(group_of(*addresses, bound_seconds=30.0))
        values = [
            [br.full((3,), 2.0**rank, device=each)] for rank, each in enumerate(group.devices)
        ]
        spec = values[0][0].handle.spec

        def issue(rank: int) -> list[br.Tensor]:
            calls = [CollectiveCall(kind, (spec,)) for kind in WANTED]
            made = [
                group.issue_one(rank, c, values[rank][: len(c.input_specs(rank))]) for c in calls
            ]
            return [output for outputs in made for output in outputs]

        outputs = {rank: issue(rank) for rank in (0, 1)}
        for rank in (0, 1):  # a reply shows that the collectives before it have begun
            assert values[rank][0].tolist() == [2.0**rank] * 3
        pending = [output.read() for made in outputs.values() for output in made]
        for _ in range(3):
            before = sum(proxy.connections for proxy in proxies)
            for rank in cut:
                CUTS[fault](proxies[rank])
            wait_until(partial(are_connected, proxies, before + len(cut)))
            assert not any(one.done() for one in pending)
        outputs[2] = issue(2)
        for rank, made in outputs.items():
            found = [output.read().result(PATIENCE_SECONDS).tolist() for output in made]
            assert found == [*WANTED.values()], rank
        for one in pending:
            one.result(PATIENCE_SECONDS)
        for (output,) in group.issue(Kind.ALL_REDUCE, values):
            assert output.read().result(PATIENCE_SECONDS).tolist() == [7] * 3
        for device in group.devices:
            device.sync()


def test_a_collective_over_tls_needs_no_secret_on_a_plain_connection(
    tmp_path: Path, authority: trustme.CA
) -> None:
    flags = [*certificate(tmp_path, authority), "--peer-ca", str(tmp_path / "ca.pem")]
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(server(*flags, BURN_REMOTE_PEER_TOKEN=PEERS)) for _ in range(3)
        ]
        addresses = [each.address for each in running]
        assert all(address.startswith("wss://") for address in addresses)
        group = stack.enter_context(group_of(*addresses, tls=tmp_path / "ca.pem"))
        inputs = [[br.ones((1_000_003,), device=each)] for each in group.devices]
        for (output,) in group.issue(Kind.ALL_REDUCE, inputs):
            assert output.min().item() == output.max().item() == 3


@pytest.mark.parametrize("token", [{}, {"BURN_REMOTE_PEER_TOKEN": "another" * 6}])
def test_a_server_without_the_peer_token_takes_part_in_no_group(token: dict[str, str]) -> None:
    with (
        server(BURN_REMOTE_PEER_TOKEN=PEERS) as first,
        server(**token) as second,
        group_of(first.address, second.address, bound_seconds=5.0) as group,
    ):
        tokens = [group.issue_one(rank, BARRIER)[0] for rank in range(2)]
        errors = [failure_of(token) for token in tokens]
        assert any("BURN_REMOTE_PEER_TOKEN" in str(error) for error in errors)


def test_a_server_dials_only_members_that_its_operator_allows() -> None:
    with (
        server() as first,
        server("--peer", "node-b") as second,
        group_of(first.address, second.address, bound_seconds=5.0) as group,
    ):
        tokens = [group.issue_one(rank, BARRIER)[0] for rank in range(2)]
        errors = [failure_of(token) for token in tokens]
        assert all("may not fetch from" in str(error) for error in errors)


def test_several_devices_of_one_server_are_members_of_several_groups() -> None:
    with (
        server("--device-count", "2") as first,
        server() as second,
        contextlib.ExitStack() as stack,
    ):
        addresses = [first.address, f"{first.address}/1", second.address]
        groups = [stack.enter_context(group_of(*addresses)) for _ in range(2)]
        groups.append(Group(groups[0].devices[::-1]))
        outputs = [
            group.issue(
                Kind.ALL_REDUCE,
                [[br.full((5,), float(place), device=each)] for each in group.devices],
            )
            for place, group in enumerate(groups)
        ]
        for place, each in enumerate(outputs):
            for (output,) in each:
                assert output.tolist() == [3.0 * place] * 5


def test_the_memory_of_a_collective_counts_in_the_quota() -> None:
    with server("--max-session-bytes", "50MB") as first, server() as second:  # noqa: SIM117
        with group_of(first.address, second.address) as group:
            inputs = [[br.ones((4_000_000,), device=each)] for each in group.devices]
            (fits, *_) = group.issue(Kind.ALL_REDUCE, inputs)
            assert fits[0].max().item() == 2
            call = CollectiveCall(Kind.ALL_GATHER, (inputs[0][0].handle.spec,))
            outputs = [group.issue_one(rank, call, inputs[rank])[0] for rank in range(2)]
            with pytest.raises(br.QuotaExceeded):
                outputs[0].numpy()
            assert failure_of(outputs[1]).member == 0


def test_elements_that_wait_to_be_sent_count_in_the_quota() -> None:
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(server()) for _ in range(2)]
        running.append(stack.enter_context(server("--max-session-bytes", "15MB")))
        group = stack.enter_context(group_of(*[each.address for each in running]))
        inputs = [[br.ones((3_000_000,), device=each)] for each in group.devices]  # 12 MB
        outputs = group.issue(Kind.REDUCE, inputs, root=0)
        with pytest.raises(br.QuotaExceeded, match="session bytes"):
            outputs[2][0].numpy()
        assert failure_of(outputs[0][0]).member == 2
        with contextlib.suppress(br.CollectiveFailed):  # it only sends, and may have done so
            outputs[1][0].numpy()


def test_a_device_of_burns_dialect_joins_no_group(servers: list[RunningServer]) -> None:
    spec = GroupSpec(bytes(32), 0, ("ws://a:1",), 1.0)
    with br.RemoteDevice(servers[0].address, dialect="burn-0.21") as device:
        with pytest.raises(br.Unsupported, match="native dialect"):
            device.runners.join_group(spec)
        with pytest.raises(br.UsageError):
            device.runners.collective(0, BARRIER, [])
