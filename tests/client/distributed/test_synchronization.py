"""The names of Burn's distributed backend, with semantics in which no device waits forever."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import burn_remote as br
from burn_remote import distributed as ds
from support.waiting import PATIENCE_SECONDS

Devices = list[br.Device]
W, B = ds.DistributedParams("w"), ds.DistributedParams("b")


@pytest.fixture
def pair(devices: Devices) -> Iterator[Devices]:
    """Two devices whose gradients are synchronized by sums."""
    members = devices[:2]
    ds.start_communication_server(members, ds.DistributedConfig(ds.ReduceOperation.SUM))
    yield members
    ds.close_distributed_sync_server()
    assert not ds.get_backend_client_map()


def ref(device: br.Device, *numbers: float) -> ds.TensorRef:
    return ds.TensorRef(br.tensor([*numbers], dtype=br.float32, device=device))


def values(*refs: ds.TensorRef) -> list[Any]:
    return [ds.float_from_ref(one).tolist() for one in refs]


def test_gradients_are_reduced_when_all_devices_that_registered_them_submitted(
    pair: Devices,
) -> None:
    refs = [ref(pair[0], 1, 2), ref(pair[1], 10, 20)]
    for device in pair:
        ds.register_sync_parameters(device, [W])
    ds.submit_gradient_sync(refs[0], W)
    assert values(*refs) == [[1, 2], [10, 20]]
    ds.submit_gradient_sync(refs[1], W)
    assert values(*refs) == [[11, 22], [11, 22]]
    assert [ds.comm_device(one) for one in refs] == pair
    for device in pair:
        ds.submit_sync_collective(device)
        ds.sync_collective(pair[0] if device is pair[1] else pair[1])


def test_an_empty_registration_counts_and_contributes_zeros(devices: Devices) -> None:
    members = devices[:3]
    ds.start_communication_server(members, name="mean of three")  # the default is the mean
    given = ref(members[0], 3, 6)
    ds.register_sync_parameters(members[0], [W])
    ds.submit_gradient_sync(given, W)
    ds.register_sync_parameters(members[1], [])
    assert values(given) == [[3, 6]]
    ds.register_sync_parameters(members[2])
    assert values(given) == [[1, 2]]  # divided by the group
    ds.close_communication_server(members[0])


def test_a_device_that_registers_nothing_and_ends_its_pass_contributes_zeros(
    pair: Devices,
) -> None:
    given = ref(pair[0], 5)
    ds.register_sync_parameters(pair[0], [W, B])
    ds.submit_gradient_sync(given, W)
    ds.submit_sync_collective(pair[0])
    with pytest.raises(br.UsageError, match=r"because member 1 \(local:numpy\) did not end it"):
        ds.sync_collective(pair[0])
    ds.submit_sync_collective(pair[1])
    ds.sync_collective(pair[0])
    assert values(given) == [[5]]


def test_a_registered_parameter_without_a_gradient_counts_as_zeros_at_the_end(
    pair: Devices,
) -> None:
    given = ref(pair[1], 4)
    for device in pair:
        ds.register_sync_parameters(device, [W])
    ds.submit_gradient_sync(given, W)
    for device in pair:
        ds.submit_sync_collective(device)
    assert values(given) == [[4]]


def test_devices_may_run_their_passes_one_after_the_other(pair: Devices) -> None:
    made = []
    for number, device in enumerate(pair):
        for count in range(3):
            given = ref(device, 10**number * (count + 1))
            ds.register_sync_parameters(device, [W])
            ds.submit_gradient_sync(given, W)
            ds.submit_sync_collective(device)
            made.append(given)
    assert values(*made) == 2 * [[11], [22], [33]]


def test_two_gradients_of_one_device_do_not_count_as_two_devices(pair: Devices) -> None:
    first, second, other = ref(pair[0], 1), ref(pair[0], 2), ref(pair[1], 100)
    for device in pair:
        ds.register_sync_parameters(device, [W])
    ds.submit_gradient_sync(first, W)
    ds.submit_gradient_sync(second, W)
    assert values(first, second) == [[1], [2]]
    ds.submit_gradient_sync(other, W)
    assert values(first, second, other) == [[101], [2], [101]]
    for device in pair:
        ds.submit_sync_collective(device)
    assert values(second) == [[2]]


def test_gradients_accumulate_without_sync(pair: Devices) -> None:
    with ds.no_sync():
        for device in pair:
            ds.register_sync_parameters(device, [W])
            ds.submit_gradient_sync(ref(device, 1), W)
            ds.submit_gradient_sync(ref(device, 2), W)
            ds.submit_sync_collective(device)
    given = ref(pair[0], 10)
    for device in pair:
        ds.register_sync_parameters(device, [W])
    ds.submit_gradient_sync(given, W)
    for device in pair:
        ds.submit_sync_collective(device)
    assert values(given) == [[16]]
    again = ref(pair[0], 10)
    ds.register_sync_parameters(pair[0], [W])
    ds.submit_gradient_sync(again, W)
    for device in pair:
        ds.submit_sync_collective(device)
    assert values(again) == [[10]]


def test_threads_of_several_devices_synchronize(devices: Devices) -> None:
    ds.start_communication_server(devices, ds.DistributedConfig(ds.ReduceOperation.SUM))
    made: dict[int, list[ds.TensorRef]] = {}
    together = threading.Barrier(len(devices))

    def train(member: int) -> None:
        device = devices[member]
        together.wait(PATIENCE_SECONDS)
        for number in range(20):
            pair = [ref(device, member + number), ref(device, 1)]
            ds.register_sync_parameters(device, [W, B])
            for one, param in zip(pair, (W, B), strict=True):
                ds.submit_gradient_sync(one, param)
            ds.submit_sync_collective(device)
            made.setdefault(member, []).extend(pair)

    threads = [threading.Thread(target=train, args=(member,)) for member in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    ds.close_distributed_sync_server()
    for member in range(5):
        assert values(*made[member]) == [
            one for number in range(20) for one in ([10 + 5 * number], [5])
        ]


def test_all_reduce_resolves_once_all_members_have_called(pair: Devices) -> None:
    one = ds.all_reduce(br.tensor([1.0], device=pair[0]), "max")
    two = ds.all_reduce(br.tensor([7.0], device=pair[0]), ds.ReduceOperation.SUM, pair)
    with pytest.raises(br.UsageError, match=r"member 1 \(local:numpy\) did not call it"):
        one.resolve()
    ds.all_reduce(br.tensor([3.0], device=pair[1]), "max")
    assert one.resolve().tolist() == [3]
    assert ds.all_reduce(br.tensor([2.0], device=pair[1])).assume_resolved().tolist() == [9]
    assert two.resolve().tolist() == [9]


def test_members_that_issue_other_collectives_are_told(pair: Devices) -> None:
    ds.all_reduce(br.ones((2,), device=pair[0]), "sum")
    with pytest.raises(br.UsageError, match="is a max, but another member's is a sum"):
        ds.all_reduce(br.ones((2,), device=pair[1]), "max")
    with pytest.raises(br.ShapeMismatch, match=r"is float32\[3\], but another one is float32\[2\]"):
        ds.all_reduce(br.ones((3,), device=pair[1]), "sum")
    assert ds.all_reduce(br.ones((2,), device=pair[1])).resolve().tolist() == [2, 2]


def test_a_conflicting_second_start_is_refused(pair: Devices, devices: Devices) -> None:
    config = ds.DistributedConfig(ds.ReduceOperation.SUM)
    running = ds.get_distributed_sync_client()
    assert ds.start_communication_server(pair, config) is running
    with pytest.raises(br.UsageError, match="'default' is in use for <Group 'default' of"):
        ds.start_communication_server(devices, config)
    with pytest.raises(br.UsageError, match=r"or start this one with another name="):
        ds.start_distributed_sync_server(pair)
    other = ds.start_distributed_sync_server(devices[1:3], name="other")
    assert {*ds.get_backend_client_map()} == {"default", "other"}
    with pytest.raises(br.UsageError, match="takes part in 'default', 'other'; choose one"):
        ds.register_sync_parameters(devices[1])
    ds.register_sync_parameters(devices[1], name="other")
    assert other.group.name == "other"
    ds.close_communication_server(devices[2])
    ds.close_communication_server(devices[2])
    assert {*ds.get_backend_client_map()} == {"default"}


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda d: ds.register_sync_parameters(d), "no communication server with this device was"),
        (lambda d: ds.submit_sync_collective(d, name="x"), "no communication server named 'x' was"),
        (lambda d: ds.all_reduce(br.ones((1,), device=d)), r"call start_communication_server\("),
        (lambda d: ds.no_sync(), "was started as 'default'"),
    ],
)
def test_calls_before_the_start_are_refused(devices: Devices, call: Any, text: str) -> None:
    with pytest.raises(br.UsageError, match=text):
        call(devices[0])


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda d: ds.submit_gradient_sync(ref(d, 1), B),
            br.UsageError,
            r"'b' is not registered on member 0 \(local:numpy\) in this pass",
        ),
        (
            lambda d: ds.submit_gradient_sync(br.ones((1,), device=d), W),  # type: ignore[arg-type]
            br.ArgumentMismatch,
            "expected a TensorRef",
        ),
        (
            lambda d: ds.register_sync_parameters(d, ["w"]),  # type: ignore[list-item]
            br.ArgumentMismatch,
            r"DistributedParams\(param_id\), not 'w'",
        ),
        (
            lambda d: ds.all_reduce([br.ones((1,), device=d)]),  # type: ignore[arg-type]
            br.ArgumentMismatch,
            "group.all_reduce of a Group takes a list",
        ),
        (
            lambda d: ds.all_reduce(br.ones((1,), device=d), "sum", [d]),
            br.UsageError,
            "the devices are not those of",
        ),
        (
            lambda d: ds.all_reduce(br.ones((1,), device=d).requires_grad_()),
            br.UsageError,
            r"pass x\.detach\(\)",
        ),
        (
            lambda d: ds.TensorRef(1.0),  # type: ignore[arg-type]
            br.ArgumentMismatch,
            "takes a tensor, not 1.0",
        ),
    ],
)
def test_invalid_calls_are_refused(
    pair: Devices, call: Any, error: type[Exception], text: str
) -> None:
    ds.register_sync_parameters(pair[0], [W])
    with pytest.raises(error, match=text):
        call(pair[0])


def test_gradients_of_other_shapes_are_refused(pair: Devices) -> None:
    for device in pair:
        ds.register_sync_parameters(device, [W])
    ds.submit_gradient_sync(ref(pair[0], 1), W)
    with pytest.raises(br.ShapeMismatch, match=r"w: .* is float32\[2\], but another one is"):
        ds.submit_gradient_sync(ref(pair[1], 1, 2), W)
    given = ref(pair[1], 5)
    ds.submit_gradient_sync(given, W)
    assert values(given) == [[6]]


def test_a_closed_client_is_refused(devices: Devices) -> None:
    client = ds.start_communication_server(devices[:2])
    for device in devices[:2]:
        client.register_sync_parameters(device, [W])
    client.submit_gradient_sync(ref(devices[0], 1), W)
    ds.close_communication_server(devices[0])
    with pytest.raises(br.UsageError, match="was closed"):
        client.all_reduce(br.ones((1,), device=devices[0]))
