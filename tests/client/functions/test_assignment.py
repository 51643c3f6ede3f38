"""``x[index] = value``: values, aliases, gradients, and what is refused."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import burn_remote as br
from burn_remote import functional as F


@given(data=st.data())
def test_assignments_are_numpys(device: br.Device, data: st.DataObject) -> None:
    expected = data.draw(npst.arrays(np.int64, npst.array_shapes(max_dims=3, max_side=4)))
    index = data.draw(npst.basic_indices(expected.shape, allow_newaxis=True))
    value = data.draw(st.integers(-5, 5))
    x = br.tensor(expected, device=device)
    x[index] = value
    expected[index] = value
    assert np.array_equal(x.numpy(), expected)
    x[index] += 2
    expected[index] += 2
    assert np.array_equal(x.numpy(), expected)


@given(data=st.data())
def test_assignments_with_masks_are_numpys(device: br.Device, data: st.DataObject) -> None:
    shape = data.draw(npst.array_shapes(max_dims=3, max_side=4))
    axes = data.draw(st.integers(1, len(shape)))
    expected = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    mask = data.draw(npst.arrays(np.bool_, shape[:axes]))
    rows = np.arange(1000, 1000 + expected[mask].size).reshape(expected[mask].shape)
    x, selector = br.tensor(expected, device=device), br.tensor(mask, device=device)
    x[selector] = rows
    expected[mask] = rows
    assert np.array_equal(x.numpy(), expected)
    x[selector] = br.tensor(-rows[None, None], device=device)
    expected[np.nonzero(mask)] = -rows[None, None]  # masks of all axes take no such values
    assert np.array_equal(x.numpy(), expected)
    x[selector] = 7
    expected[mask] = 7
    assert np.array_equal(x.numpy(), expected)


def test_a_wrong_number_of_values_for_a_mask_fails(device: br.Device) -> None:
    for count in (0, 2, 4):
        x = br.zeros((5,), device=device)
        x[br.tensor([True, False, True, True, False], device=device)] = np.ones(count, np.float32)
        with pytest.raises(br.OperationFailed):
            x.numpy()


@pytest.mark.parametrize(
    "index",
    [
        np.array([-1, 0, 2]),
        np.array([[0, -2], [-3, 1]]),
        (np.array([-1, 0]), np.array([1, -1])),
        (slice(None), np.array([-1, 0])),
        (np.array([-1, 0]), slice(1), np.array([0, -2])),
    ],
)
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int8])
def test_tensors_of_negative_indices_count_from_the_end(
    device: br.Device, index: Any, dtype: type
) -> None:
    expected = np.arange(60).reshape(3, 4, 5)

    def remote(one: Any) -> Any:
        return br.tensor(one.astype(dtype), device=device) if isinstance(one, np.ndarray) else one

    ours = tuple(map(remote, index)) if isinstance(index, tuple) else remote(index)
    x = br.tensor(expected, device=device)
    assert np.array_equal(x[ours].numpy(), expected[index])
    x[ours] = -1
    expected[index] = -1
    assert np.array_equal(x.numpy(), expected)


def test_negative_indices_of_take_count_from_the_end(device: br.Device) -> None:
    array = np.arange(400).reshape(2, 200)
    x = br.tensor(array, device=device)
    places = np.array([-1, -200, 5], np.int16)
    indices = br.tensor(places, device=device)
    assert np.array_equal(x.take(indices, axis=1).numpy(), array.take(places, axis=1))
    pairs = np.array([[-1], [0]])
    along = x.take_along_axis(br.tensor(pairs, device=device), axis=1)
    assert np.array_equal(along.numpy(), np.take_along_axis(array, pairs, 1))
    with pytest.raises(br.OperationFailed):
        x.take(br.tensor([-201], device=device), axis=1).numpy()


def test_what_was_computed_before_keeps_the_old_elements(device: br.Device) -> None:
    x = br.zeros((2, 2), device=device)
    row, same, clone, total = x[0], x.reshape(2, 2), x.clone(), x.sum()
    x[0] = 5
    assert x.numpy().tolist() == [[5, 5], [0, 0]]
    for old in (row, same, clone):
        assert not old.numpy().any()
    assert total.item() == 0


@pytest.mark.parametrize(
    "alias",
    [
        lambda x: x.reshape(2, 3), lambda x: x.squeeze(), lambda x: x.permute_dims((0, 1)),
        lambda x: x.broadcast_to((2, 3)), lambda x: x.clip(), lambda x: x.roll(0, 0),
        lambda x: x.tile(1), lambda x: x.sum(axis=()), lambda x: x.astype(br.float32), operator.pos,
        lambda x: F.pad(x, ()), lambda x: F.dropout(x, 0.5, training=False), lambda x: x[...],
        lambda x: x[:], lambda x: x[:, :3], lambda x: x.expand_dims(()), lambda x: br.diff(x, n=0),
        lambda x: br.broadcast_arrays(x, x)[0], lambda x: x.moveaxis(0, 0), lambda x: x.view(2, 3),
        lambda x: br.concat([x]), lambda x: br.asarray(x, copy=True), lambda x: br.from_dlpack(x),
    ],
)  # fmt: skip
def test_functions_without_an_effect_return_another_object(
    device: br.Device, alias: Callable[[br.Tensor], br.Tensor]
) -> None:
    x = br.zeros((2, 3), device=device)
    y = alias(x)
    x[0, 0] = 1
    assert not y.numpy().any()


def test_values_are_converted_only_if_the_dtype_holds_them(device: br.Device) -> None:
    x = br.zeros((2,), dtype=br.int32, device=device)
    x[0] = br.tensor(3, dtype=br.int16, device=device)
    x[1] = True
    assert x.numpy().tolist() == [3, 1]
    with pytest.raises(br.DTypeMismatch, match=r"value\.astype\(x\.dtype\)"):
        x[0] = br.tensor(2.5, device=device)
    with pytest.raises(br.DTypeMismatch):
        x[0] = 2.5
    with pytest.raises(br.DTypeMismatch, match=r"2\.5 .*is not a value of int32"):
        x[:] = [1, 2.5]
    with pytest.raises(br.ArgumentMismatch, match=r"stack\(\[y, z\]\)"):
        x[:] = [x[0], x[1]]
    half = br.zeros((2,), dtype=br.float16, device=device)
    half[:] = br.tensor([0.1, 2.0], dtype=br.float64, device=device)
    assert np.array_equal(half.numpy(), np.array([0.1, 2.0], np.float16))


def test_set_takes_arrays_and_lists(device: br.Device) -> None:
    x = br.zeros((2, 3), device=device)
    rows = np.array([[1, 2, 3]])
    assert x.set(0, [1, 2, 3]).tolist() == [[1, 2, 3], [0, 0, 0]]
    assert x.set(slice(None), rows).tolist() == [[1, 2, 3], [1, 2, 3]]
    assert x.set((slice(None), [0, 2]), rows[:, :2], update="add").tolist() == [[1, 0, 2]] * 2
    mask = br.tensor([True, False], device=device)
    assert x.set(mask, rows.astype(np.float64)).tolist() == [[1, 2, 3], [0, 0, 0]]
    small = br.zeros((2,), dtype=br.uint8, device=device)
    with pytest.raises(br.DTypeMismatch, match="300"):
        small.set(slice(None), [1, 300])
    with pytest.raises(br.ArgumentMismatch, match=r"write burn_remote\.stack"):
        x.set(0, [x[0, 0], x[0, 1], x[0, 2]])


def test_gradients_reach_assigned_values_and_kept_elements(device: br.Device) -> None:
    w = br.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
    v = br.tensor(4.0, device=device, requires_grad=True)
    h = w * 2
    h[1] = v * 3
    (h * br.tensor([1.0, 10.0, 100.0], device=device)).sum().backward()
    assert w.grad.numpy().tolist() == [2.0, 0.0, 200.0]
    assert v.grad.item() == 30.0


def test_a_tracked_leaf_is_assigned_to_only_inside_no_grad(device: br.Device) -> None:
    w = br.zeros((2,), device=device, requires_grad=True)
    with pytest.raises(br.UsageError, match=r"y = x\.set\(index, value\) for a new tensor"):
        w[0] = 1
    with br.no_grad():
        w[0] = 1
    assert w.requires_grad and w.is_leaf
    assert w.detach().numpy().tolist() == [1, 0]


def test_a_compiled_function_does_not_assign_to_an_argument(device: br.Device) -> None:
    @br.compile
    def assigns(x: br.Tensor) -> br.Tensor:
        x[0] = 1
        return x.sum()

    @br.compile
    def assigns_to_its_own(x: br.Tensor) -> br.Tensor:
        y = x * 2
        y[0] = 1
        return y

    with pytest.raises(br.UsageError, match="assigns to elements of an argument"):
        assigns(br.zeros((2,), device=device))
    for number in (3.0, 4.0):
        x = br.tensor([number, number], device=device)
        assert assigns_to_its_own(x).numpy().tolist() == [1.0, 2 * number]


def test_names_and_keywords_of_pytorch_are_accepted(device: br.Device) -> None:
    # Type checkers know our own keywords only.
    x: Any = br.tensor([[1.0, 5.0], [3.0, 2.0]], device=device)
    cat: Any = br.cat
    zeros: Any = br.zeros
    assert x.sum(dim=1, keepdim=True).shape == (2, 1)
    assert x.view(4).shape == (4,)
    assert x.unsqueeze(0).shape == (1, 2, 2)
    assert x.permute(1, 0).numpy().tolist() == [[1.0, 3.0], [5.0, 2.0]]
    assert x.clamp(min=2, max=3).numpy().tolist() == [[2.0, 3.0], [3.0, 2.0]]
    assert cat([x, x], dim=1).shape == (2, 4)
    assert zeros(3, 4, device=device).shape == (3, 4)
    assert x.flip(0, 1).numpy().tolist() == [[2.0, 3.0], [5.0, 1.0]]
    picked = x.gather(dim=1, index=br.tensor([[1], [0]], device=device))
    assert picked.numpy().tolist() == [[5.0], [3.0]]


def test_python_converts_tensors_by_its_protocols(device: br.Device) -> None:
    x = br.tensor([3, 4], device=device)
    assert (int(x[0]), float(x[1]), bool(x[0]), complex(x[1])) == (3, 4.0, True, 4 + 0j)
    assert (len(x), [int(one) for one in x], "abcde"[x[0] :]) == (2, [3, 4], "de")
    assert list(range(10))[operator.index(x[1])] == 4


@given(data=st.data())
def test_masks_select_what_numpy_selects(device: br.Device, data: st.DataObject) -> None:
    shape = data.draw(npst.array_shapes(max_dims=3, max_side=4))
    axes = data.draw(st.integers(1, len(shape)))
    expected = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    mask = data.draw(npst.arrays(np.bool_, shape[:axes]))
    x, selector = br.tensor(expected, device=device), br.tensor(mask, device=device)
    assert np.array_equal(x[selector].numpy(), expected[mask])
    x[selector] *= 3
    expected[mask] *= 3
    assert np.array_equal(x.numpy(), expected)


def test_selecting_by_a_mask_takes_one_round_trip(device: br.LocalDevice) -> None:
    x = br.arange(10, device=device)
    requests = device.traffic.requests
    selected = x[x > 6]
    assert device.traffic.requests - requests == 1
    assert selected.numpy().tolist() == [7, 8, 9]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="references are counted differently")
@pytest.mark.parametrize(
    "statement",
    ["x[0][1] = 5", "x[0][1] += 5", "x.T[0] = 5", "x.data[0] = 5", "br.zeros_like(x)[0] = 5"],
)
def test_an_assignment_to_a_temporary_tensor_warns(device: br.Device, statement: str) -> None:
    x = br.ones((2, 2), device=device)
    with pytest.warns(RuntimeWarning, match=r"has no effect.*write x\[0, 1\] = value") as caught:
        exec(compile(statement, "program.py", "exec"), {"br": br, "x": x})
    assert caught[0].filename == "program.py"
    assert x.tolist() == [[1, 1], [1, 1]]


def test_an_assignment_to_a_tensor_that_the_program_keeps_does_not_warn(
    device: br.Device,
) -> None:
    def assign(x: br.Tensor) -> None:
        x[0] = 5

    class Model:
        weight = br.ones((2,), device=device)

    weights = {"layers": [br.ones((2,), device=device)]}
    weights["layers"][0][0] = 5
    Model.weight[0] = 5
    assign(br.ones((2,), device=device))
    for x in [br.ones((2,), device=device)]:
        x[0] = 5
        assert x.tolist() == [5, 1]
    assert weights["layers"][0].tolist() == Model.weight.tolist() == [5, 1]


def test_a_value_of_the_wrong_shape_is_refused_with_both_shapes(device: br.Device) -> None:
    x = br.ones((2, 3), device=device)
    expected = r"the value float32\[7\] does not broadcast to \[3\], the shape that the index"
    with pytest.raises(br.ShapeMismatch, match=expected):
        x[0] = np.ones(7)
