"""Invalid collectives raise an error that names the member, and issue nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import burn_remote as br
from burn_remote.distributed import Group

Devices = list[br.Device]


def ones(devices: Devices, shape: tuple[int, ...] = (2,), **options: Any) -> list[br.Tensor]:
    return [br.ones(shape, device=device, **options) for device in devices]


@pytest.mark.parametrize(
    ("values", "error", "text"),
    [
        (lambda d: ones(d)[0], br.ArgumentMismatch, "each of the 2 members, not one tensor"),
        (lambda d: ones(d)[:1], br.ArgumentMismatch, "each of the 2 members, not 1; they are in"),
        (lambda d: [*ones(d), *ones(d)], br.ArgumentMismatch, "2 members, not 4"),
        (lambda d: 7, br.ArgumentMismatch, "2 members, not 7"),
        (lambda d: [1.0, 2.0], br.ArgumentMismatch, "of member 0 is of type float, not a tensor"),
        (
            lambda d: ones(d)[::-1],
            br.DeviceMismatch,
            r"the tensor of member 0, .* write x\.to\(group\.devices\[0\]\)",
        ),
        (
            lambda d: [[x, *ones(d[:1])] for x in ones(d)],
            br.DeviceMismatch,
            r"the tensor at 1 of member 1, .*, is on local:numpy, but member 1 of the group",
        ),
        (
            lambda d: [br.ones((2,), device=d[0]), br.ones((3,), device=d[1])],
            br.ShapeMismatch,
            r"the tensor of member 1 is float32\[3\], but that of member 0 is float32\[2\]",
        ),
        (
            lambda d: [{"w": ones(d)[0]}, {"w": ones(d, dtype=br.float64)[1]}],
            br.DTypeMismatch,
            r"at w of member 1 is float64\[2\], .* convert it with x\.astype\(dtype\)",
        ),
        (
            lambda d: [[ones(d)[0]], [ones(d)[1]] * 2],
            br.ArgumentMismatch,
            "the containers differ: expected a list of 1, not of 2",
        ),
        (
            lambda d: ones(d, dtype=br.bool),
            br.DTypeMismatch,
            r"collectives compute no sum of bool tensors; .*int32",
        ),
        (
            lambda d: ones(d, dtype=br.complex64),
            br.DTypeMismatch,
            r"collectives compute no sum of complex64 tensors; reduce burn_remote\.real",
        ),
        (
            lambda d: [x.requires_grad_() for x in ones(d)],
            br.UsageError,
            r"is tracked, and gradients do not pass through collectives; pass x\.detach\(\)",
        ),
    ],
)
def test_values_that_do_not_fit_are_refused(
    devices: Devices, values: Callable[[Devices], Any], error: type[Exception], text: str
) -> None:
    members = devices[:2]
    given = values(members)
    before = [device.traffic.operations for device in members]
    with pytest.raises(error, match=text):
        Group(members).all_reduce(given)
    assert [device.traffic.operations for device in members] == before


@pytest.mark.parametrize(
    ("op", "error", "text"),
    [
        ("median", br.ArgumentMismatch, "one of 'sum', 'mean', 'min', 'max', 'product', not 'med"),
        ("summ", br.ArgumentMismatch, "did you mean 'sum'?"),
        (None, br.ArgumentMismatch, "not None"),
        ("mean", br.DTypeMismatch, r"a mean of int32 tensors would round; use 'sum', or .*float32"),
    ],
)
def test_a_reduction_that_does_not_exist_is_refused(
    devices: Devices, op: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Group(devices[:2]).all_reduce(ones(devices[:2], dtype=br.int32), op)


@pytest.mark.parametrize("name", ["reduce_scatter", "all_to_all"])
def test_tensors_without_an_axis_cannot_be_cut(devices: Devices, name: str) -> None:
    with pytest.raises(br.ShapeMismatch, match=r"float32\[\], which has no axis to cut"):
        getattr(Group(devices[:2]), name)(ones(devices[:2], ()))


def test_only_broadcast_takes_quantized_tensors(devices: Devices) -> None:
    given = [br.quantize(x) for x in ones(devices[:2])]
    with pytest.raises(br.DTypeMismatch, match=r"cannot be cut or joined; .*x\.dequantize\(\)"):
        Group(devices[:2]).all_gather(given)
    with pytest.raises(br.DTypeMismatch, match=r"compute no sum of .*; .*x\.dequantize\(\)"):
        Group(devices[:2]).all_reduce(given)


@pytest.mark.parametrize("name", ["all_gather", "all_to_all"])
def test_gathered_values_may_differ_along_axis_0_only(devices: Devices, name: str) -> None:
    given = [br.ones((2, 3), device=devices[0]), br.ones((2, 4), device=devices[1])]
    with pytest.raises(br.ShapeMismatch, match="they may differ along axis 0 only"):
        getattr(Group(devices[:2]), name)(given)


@pytest.mark.parametrize(
    ("members", "error", "text"),
    [
        (lambda d: [], br.UsageError, "a group needs at least one device"),
        (lambda d: [d[0], d[1], d[0]], br.UsageError, "members 0 and 2 .* are the same device"),
        (lambda d: d[0], br.ArgumentMismatch, "a list of devices, not one device"),
        (lambda d: "ws://a:3000", br.ArgumentMismatch, "a list of devices, not 'ws://a:3000'"),
        (lambda d: ["cuda"], br.UsageError, "write 'ws://host:3000'"),
    ],
)
def test_a_group_of_other_than_different_devices_is_refused(
    devices: Devices, members: Callable[[Devices], Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Group(members(devices))


def test_an_engine_that_the_devices_do_not_have_is_refused(devices: Devices) -> None:
    with pytest.raises(br.UsageError, match="the engine 'nccl' needs GPUs of native servers"):
        Group(devices[:2], engine="nccl")
    with pytest.raises(br.ArgumentMismatch, match="'nccl' or 'moves', not 'gloo'"):
        Group(devices[:2], engine="gloo")
    assert Group(devices[:2]).engine == "memory"


def test_a_group_of_one_returns_what_it_is_given(devices: Devices) -> None:
    group = Group(devices[:1])
    x = br.tensor([1.0, 2.0], device=devices[0])
    results = [
        group.all_reduce([x], "mean"),
        group.reduce_scatter([x]),
        group.all_gather([x]),
        group.all_to_all([x]),
        group.broadcast(x),
        [group.reduce([x])],
    ]
    assert [[one.tolist() for one in made] for made in results] == 6 * [[[1, 2]]]
    group.barrier()


def test_a_closed_device_is_named(devices: Devices) -> None:
    other = br.LocalDevice()
    group = Group([devices[0], other], name="pair")
    given = ones([devices[0], other])
    other.close()
    with pytest.raises(br.ClosedDevice, match="member 1 of the group 'pair', local:numpy, is clos"):
        group.all_reduce(given)
    with pytest.raises(br.ClosedDevice, match="member 1 of a group, local:numpy, is closed"):
        Group([devices[0], other])


def test_a_closed_group_is_refused_and_its_devices_stay_open(devices: Devices) -> None:
    with Group(devices[:2], name="pair") as group:
        pass
    group.close()
    with pytest.raises(br.UsageError, match=r"<Group 'pair' of .*> was closed; make another group"):
        group.all_reduce(ones(devices[:2]))
    assert ones(devices[:2])[1].tolist() == [1, 1]


def test_a_collective_inside_a_compiled_function_is_refused(devices: Devices) -> None:
    group = Group(devices[:2])
    other = br.ones((2,), device=devices[1])

    @br.compile
    def compiled(x: br.Tensor) -> br.Tensor:
        made: br.Tensor = group.all_reduce([x, other])[0]
        return made

    with pytest.raises(br.UsageError, match="all_reduce cannot be called inside a compiled functi"):
        compiled(br.ones((2,), device=devices[0]))


def test_tracked_tensors_are_reduced_inside_no_grad(devices: Devices) -> None:
    given = [x.requires_grad_() for x in ones(devices[:2])]
    with br.no_grad():
        made = Group(devices[:2]).all_reduce(given)
    assert [x.tolist() for x in made] == [[2, 2], [2, 2]]
    assert not made[0].requires_grad


def test_broadcast_names_a_device_that_is_no_member(devices: Devices) -> None:
    group = Group(devices[:2], name="pair")
    x = br.ones((2,), device=devices[2])
    with pytest.raises(br.DeviceMismatch, match=r"which is no member of <Group 'pair'"):
        group.broadcast(x)
    with pytest.raises(br.DeviceMismatch, match=r"of member 1, .* member 1 of the group 'pair' is"):
        group.broadcast(x, root=1)


@pytest.mark.parametrize(
    ("root", "error", "text"),
    [
        (2, br.UsageError, "has the members 0 to 1, not 2"),
        (-1, br.UsageError, "has the members 0 to 1, not -1"),
        ("first", br.ArgumentMismatch, "one of group.devices or its position, not 'first'"),
    ],
)
def test_a_root_that_is_no_member_is_refused(
    devices: Devices, root: Any, error: type[Exception], text: str
) -> None:
    group = Group(devices[:2])
    with pytest.raises(error, match=text):
        group.reduce(ones(devices[:2]), root=root)
    with pytest.raises(br.UsageError, match="local:numpy is no member of"):
        group.reduce(ones(devices[:2]), root=devices[4])


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("psum", r"in burn_remote: group\.all_reduce\("),
        ("init_process_group", r"in burn_remote: burn_remote\.distributed\.Group\(devices\)"),
        ("get_world_size", r"in burn_remote: group\.size"),
        ("Grup", r"did you mean 'Group'\?"),
    ],
)
def test_names_of_other_libraries_give_ours(typed: str, text: str) -> None:
    with pytest.raises(AttributeError, match=text):
        getattr(br.distributed, typed)


def test_names_of_other_libraries_for_members_of_a_group_give_ours(devices: Devices) -> None:
    group = Group(devices[:2])
    for typed, text in [("pmean", "'mean'"), ("world_size", "size"), ("al_reduce", "all_reduce")]:
        with pytest.raises(AttributeError, match=text):
            getattr(group, typed)
