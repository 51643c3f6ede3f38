"""Collectives give every member what NumPy computes, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import burn_remote as br
from burn_remote.distributed import Group
from support.collectives import COMBINE, FLOATS, INTEGERS, elements, same_bits

Shape = tuple[int, ...]

COUNTS = st.integers(1, 5)
# Without an axis, empty, shorter and longer than a group, and large enough to be sent in parts.
SHAPES = st.sampled_from([(), (0,), (1,), (3,), (5, 0, 2), (7, 3), (4, 1, 5), (11,), (40_001,)])
WITH_AXIS = SHAPES.filter(bool)
# The engines that combine the members' tensors in their order. A ring begins each part with another
# member, so its sums have other bits: tests/integration compares them with NumPy's in that order.
ENGINES = st.sampled_from(["memory", "moves"])


def spread(arrays: list[Any], devices: list[br.Device]) -> list[br.Tensor]:
    return [br.tensor(one, device=device) for one, device in zip(arrays, devices, strict=False)]


@given(
    engine=ENGINES,
    count=COUNTS,
    shape=SHAPES,
    dtype=st.sampled_from(FLOATS),
    op=st.sampled_from([*COMBINE]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=150)
def test_all_reduce_of_floats_gives_each_member_the_same_bits_as_numpy(
    devices: list[br.Device], engine: str, count: int, shape: Shape, dtype: str, op: str, seed: int
) -> None:
    arrays = [elements(seed + member, shape, dtype) for member in range(count)]
    made = Group(devices[:count], engine=engine).all_reduce(spread(arrays, devices), op)
    wanted = COMBINE[op](arrays).astype(arrays[0].dtype)
    assert [x.device for x in made] == devices[:count]
    assert all(same_bits(one, wanted) for one in br.read(made))


@given(
    engine=ENGINES,
    count=COUNTS,
    shape=SHAPES,
    dtype=st.sampled_from(INTEGERS),
    op=st.sampled_from(["sum", "min", "max", "product"]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=60)
def test_all_reduce_of_integers_wraps_around(
    devices: list[br.Device], engine: str, count: int, shape: Shape, dtype: str, op: str, seed: int
) -> None:
    arrays = [elements(seed + member, shape, dtype) for member in range(count)]
    made = Group(devices[:count], engine=engine).all_reduce(spread(arrays, devices), op)
    wanted = COMBINE[op](arrays)
    assert all(same_bits(one, wanted) for one in br.read(made))


@given(
    engine=ENGINES,
    count=COUNTS,
    shape=WITH_AXIS,
    op=st.sampled_from([*COMBINE]),
    dtype=st.sampled_from(FLOATS),
)
@settings(max_examples=60)
def test_reduce_scatter_gives_each_member_its_part(
    devices: list[br.Device], engine: str, count: int, shape: Shape, op: str, dtype: str
) -> None:
    arrays = [elements(member, shape, dtype) for member in range(count)]
    made = Group(devices[:count], engine=engine).reduce_scatter(spread(arrays, devices), op)
    wanted = np.array_split(COMBINE[op](arrays).astype(arrays[0].dtype), count)
    assert [x.device for x in made] == devices[:count]
    assert all(map(same_bits, br.read(made), wanted))


@given(engine=ENGINES, count=COUNTS, shape=SHAPES, op=st.sampled_from([*COMBINE]), data=st.data())
@settings(max_examples=40)
def test_reduce_gives_the_root_the_result(
    devices: list[br.Device], engine: str, count: int, shape: Shape, op: str, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, count - 1))
    arrays = [elements(member, shape, "float32") for member in range(count)]
    made = Group(devices[:count], engine=engine).reduce(
        spread(arrays, devices), op, root=devices[root]
    )
    assert made.device == devices[root]
    assert same_bits(made.numpy(), COMBINE[op](arrays))


@given(
    engine=ENGINES,
    count=COUNTS,
    shape=WITH_AXIS,
    dtype=st.sampled_from([*FLOATS, *INTEGERS, "bool"]),
    sizes=st.lists(st.integers(0, 6), min_size=5, max_size=5),
)
@settings(max_examples=60)
def test_all_gather_and_all_to_all_move_parts_of_any_size(
    devices: list[br.Device], engine: str, count: int, shape: Shape, dtype: str, sizes: list[int]
) -> None:
    kind = "uint8" if dtype == "bool" else dtype
    arrays = [elements(n, (sizes[n], *shape[1:]), kind) for n in range(count)]
    if dtype == "bool":
        arrays = [one > 100 for one in arrays]
    group = Group(devices[:count], engine=engine)
    gathered = group.all_gather(spread(arrays, devices))
    assert all(same_bits(one, np.concatenate(arrays)) for one in br.read(gathered))
    exchanged = group.all_to_all(spread(arrays, devices))
    parts = [np.array_split(one, count) for one in arrays]
    wanted = [np.concatenate([own[member] for own in parts]) for member in range(count)]
    assert [x.device for x in exchanged] == devices[:count]
    assert all(map(same_bits, br.read(exchanged), wanted))


def test_all_gather_joins_tensors_without_an_axis(devices: list[br.Device]) -> None:
    made = Group(devices[:3]).all_gather(spread([np.float32(n) for n in range(3)], devices))
    assert [one.tolist() for one in made] == 3 * [[0, 1, 2]]


@given(
    engine=ENGINES,
    count=COUNTS,
    shape=SHAPES,
    dtype=st.sampled_from([*FLOATS, *INTEGERS]),
    data=st.data(),
)
@settings(max_examples=40)
def test_broadcast_gives_each_member_the_tensor(
    devices: list[br.Device], engine: str, count: int, shape: Shape, dtype: str, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, count - 1))
    array = elements(1, shape, dtype)
    made = Group(devices[:count], engine=engine).broadcast(br.tensor(array, device=devices[root]))
    assert [x.device for x in made] == devices[:count]
    assert all(same_bits(one, array) for one in br.read(made))


def test_broadcast_takes_quantized_tensors(devices: list[br.Device]) -> None:
    x = br.quantize(br.tensor(np.linspace(-1, 1, 64, dtype="f4"), device=devices[1]))
    made = Group(devices[:3]).broadcast(x)
    wanted = x.dequantize().numpy()
    assert all(same_bits(one.dequantize().numpy(), wanted) for one in made)


@given(engine=ENGINES, count=COUNTS, large=st.booleans())
@settings(max_examples=20)
def test_buckets_are_nested_containers_of_several_dtypes(
    devices: list[br.Device], engine: str, count: int, large: bool
) -> None:
    rows = 4_000 if large else 2
    arrays: list[Any] = [
        {
            "a": elements(member, (rows, 3), "float32"),
            "b": [elements(member + 9, (), "float32"), None, elements(member, (5,), "int32")],
            "c": (elements(member + 7, (0, 2), "float16"), elements(member, (3, 3), "float32")),
        }
        for member in range(count)
    ]
    given_values = [
        br.tree.map(lambda one, device=device: br.tensor(one, device=device), value)
        for value, device in zip(arrays, devices, strict=False)
    ]
    made = Group(devices[:count], engine=engine).all_reduce(given_values)
    columns = zip(*map(br.tree.leaves, arrays), strict=True)
    wanted = [COMBINE["sum"](column).astype(column[0].dtype) for column in columns]
    for value in made:
        assert value["b"][1] is None
        assert all(map(same_bits, br.read(br.tree.leaves(value)), wanted))


def test_several_groups_share_devices_and_have_names(devices: list[br.Device]) -> None:
    with (
        Group(devices[:3], name="rows") as rows,
        Group([devices[2], devices[0]], name="columns") as columns,
    ):
        first = rows.all_reduce([br.ones((2,), device=device) for device in devices[:3]])
        second = columns.all_reduce([first[2], first[0]], "product")
        assert [x.tolist() for x in second] == [[9, 9], [9, 9]]
        assert (rows.name, columns.name, rows.size, len(columns)) == ("rows", "columns", 3, 2)
        assert repr(columns) == f"<Group 'columns' of local:numpy, local:numpy by {columns.engine}>"


def test_not_a_number_and_signed_zeros_are_as_in_numpy(devices: list[br.Device]) -> None:
    arrays = [
        np.array([np.nan, -0.0, 0.0, np.inf], "f4"),
        np.array([1, 0.0, -0.0, -np.inf], "f4"),
    ]
    group = Group(devices[:2])
    with np.errstate(invalid="ignore"):
        for op, combine in COMBINE.items():
            made = br.read(group.all_reduce(spread(arrays, devices), op))
            np.testing.assert_array_equal(made[0], combine(arrays))
            assert same_bits(*made)


@pytest.mark.parametrize("given_op", ["SUM", "ReduceOp.SUM", br.distributed.ReduceOp.SUM, "sum"])
def test_names_of_other_libraries_for_reductions_are_accepted(
    devices: list[br.Device], given_op: Any
) -> None:
    group = Group(devices[:2])
    made = group.all_reduce([br.ones((1,), device=device) for device in devices[:2]], given_op)
    assert made[1].tolist() == [2]
    assert group.all_reduce(made, "avg")[0].tolist() == [2]
