"""Collectives between real server processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote_protocol.collectives import CollectiveCall, CollectiveKind, Reduction
from support.groups import Group, group_of
from support.servers import RunningServer, server

Kind = CollectiveKind
BARRIER = CollectiveCall(Kind.BARRIER)


@pytest.fixture(scope="module")
def servers() -> Iterator[list[RunningServer]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(server()) for _ in range(3)]


@pytest.fixture(params=["two servers", "three servers", "two of four on one server", "one"])
def group(request: pytest.FixtureRequest, servers: list[RunningServer]) -> Iterator[Group]:
    """A group in which members are neighbours over the network, in memory, and of themselves."""
    places = {
        "two servers": (0, 1),
        "three servers": (0, 1, 2),
        "two of four on one server": (0, 0, 1, 2),
        "one": (0,),
    }[request.param]
    with group_of(*[servers[place].address for place in places]) as found:
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


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "uint8"])
@pytest.mark.parametrize("reduction", [*Reduction], ids=str)
def test_every_reduction_of_every_dtype_has_the_same_bits_everywhere(
    servers: list[RunningServer], reduction: Reduction, dtype: str
) -> None:
    if reduction is Reduction.MEAN and "int" in dtype:
        pytest.skip("integers have no mean")
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
