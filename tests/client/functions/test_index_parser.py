"""Indices select the same elements as in NumPy; invalid ones are refused."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, basic_indices

import burn_remote as br
from burn_remote.functions.index_parser import selection_of
from burn_remote_protocol.operations.shape_rules.movement_rules import slice_ranges
from support.runners import RecordingDevice


@pytest.fixture
def device() -> RecordingDevice:
    return RecordingDevice()


def select_with_numpy(array: np.ndarray, index: Any) -> np.ndarray:
    """Apply a selection to an array as a server would."""
    selection = selection_of(index, array.shape)
    taken = slice_ranges(array.shape, selection.ranges)
    sliced = array[np.ix_(*[list(one) for one in taken])] if taken else array
    assert sliced.shape == selection.sliced
    return sliced.reshape(selection.shape)


@given(st.data())
def test_basic_indices_select_what_numpy_selects(data: st.DataObject) -> None:
    shape = data.draw(array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    index = data.draw(basic_indices(shape, allow_newaxis=True, max_dims=6))
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    np.testing.assert_array_equal(select_with_numpy(array, index), array[index])


INDICES = [
    [0, 2], ([0, -1], [1, 2]), (slice(None), [0, 0]), np.array([[0, 1], [2, 0]]),
    (0, slice(None), [1, 2]), (slice(None), 0, [1, 2]), ([0, 1], slice(None), [1, 2]),
    (slice(1, None), [2, 0], slice(None, None, -1)), (None, [1], ...), (..., [1, 2]),
    (slice(None), [[0], [1]], [0, 1, 2]), np.array(2), np.int64(1), [], ([1, 0], None, 0),
    np.arange(4) % 2 == 0, (slice(None), np.array([True, False, True])),
    (np.ones((4, 3), bool), slice(1, 3)), (0, [1, 2], slice(None)), ([1], 0, [2]),
    # An ellipsis that stands for no axes separates advanced indices.
    (slice(None), [0, 1], ..., [1, 2]), (slice(None), [0, 1], ..., 2), (slice(None), 0, ..., [1]),
    (slice(None), np.array([True, False, True]), ..., 2), (..., [0, 1], 2), ([0, 1], [0, 1], ...),
    (slice(None), 0, None, ..., [1, 2]), (slice(None), ..., [0, 1], [0, 1]),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_indices_give_the_shape_that_numpy_gives(device: RecordingDevice, index: Any) -> None:
    x = br.zeros((4, 3, 5), device=device)
    assert x[index].shape == np.zeros((4, 3, 5))[index].shape
    if not isinstance(index, list) or index:
        assert x.set(index, 1.0).shape == (4, 3, 5)


def test_index_tensors_give_the_shapes_of_index_arrays(device: RecordingDevice) -> None:
    x = br.zeros((4, 3, 5), device=device)
    i = br.zeros((2, 3), dtype=br.int32, device=device)
    j = br.zeros((3,), dtype=br.int64, device=device)
    assert x[i].shape == (2, 3, 3, 5)
    assert x[:, i].shape == (4, 2, 3, 5)
    assert x[i, j].shape == (2, 3, 5)
    assert x[i, :, j].shape == (2, 3, 3)
    assert x[:, i, j].shape == (4, 2, 3)
    assert x[br.zeros((), dtype=br.int64, device=device)].shape == (3, 5)
    assert device.runner.reads == []


@pytest.mark.parametrize(
    "index, error, text",
    [
        (4, IndexError, "index 4"), (-5, IndexError, "index -5"),
        ((0, 0, 0, 0), IndexError, "too many indices: 4"),
        ((..., ...), br.ShapeMismatch, "ellipsis"),
        ([0, 9], IndexError, "index 9"), (1.5, br.DTypeMismatch, "float"),
        ("a", br.DTypeMismatch, "str"), ([0.5], br.DTypeMismatch, "float64"),
        (True, br.UsageError, "None"), (slice(None, None, 0), br.ShapeMismatch, "step"),
        (np.ones(3, bool), br.ShapeMismatch, "mask"),
        (([0, 1], [0, 1, 2]), br.ShapeMismatch, "do not broadcast"),
    ],
)  # fmt: skip
def test_an_invalid_index_is_refused(
    device: RecordingDevice, index: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        br.zeros((4, 3, 5), device=device)[index]


def test_an_assignment_to_a_mask_beside_other_indices_is_refused_with_advice(
    device: RecordingDevice,
) -> None:
    x = br.zeros((4,), device=device)
    with pytest.raises(br.UsageError, match=r"where\(mask.*set\(mask"):
        x.set((None, x > 0), 1.0)
    with pytest.raises(br.DTypeMismatch, match="integers"):
        x[x]


def test_the_cache_of_indices_holds_no_tensor(device: RecordingDevice) -> None:
    x = br.zeros((4,), device=device)
    bound = RememberedBound()
    assert x[bound:].shape == (3,)
    assert x[1:].shape == x[1:].shape == (3,)
    reference = weakref.ref(bound)
    del bound
    assert reference() is None


class RememberedBound:
    """A slice bound with ``__index__``, like a tensor."""

    def __index__(self) -> int:
        return 1


def test_true_does_not_hit_the_cache_entry_of_one(device: RecordingDevice) -> None:
    x = br.zeros((4, 3), device=device)
    assert x[1].shape == (3,)
    with pytest.raises(br.UsageError):
        x[True]
    assert x[1, 0].shape == ()
    with pytest.raises(br.UsageError):
        x[1, False]


def test_set_does_not_change_the_tensor(device: RecordingDevice) -> None:
    x = br.zeros((4, 3), device=device)
    y = x.set((slice(1, 3), 0), br.ones((2,), device=device))
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    assert y is not x


def test_set_issues_only_the_necessary_operations(device: RecordingDevice) -> None:
    x = br.zeros((4, 3), device=device)
    before = len(device.runner.names)
    x.set(0, 1)
    assert device.runner.names[before:] == ["NumericFloat.Full", "BaseFloat.SliceAssign"]
    before = len(device.runner.names)
    x.set(x > 0, 1)
    assert device.runner.names[before + 1 :] == ["BaseFloat.MaskFill"]


def test_invalid_calls_of_set_are_refused(device: RecordingDevice) -> None:
    x = br.zeros((4, 3), device=device)
    with pytest.raises(br.ShapeMismatch):
        x.set(slice(0, 2), br.ones((5,), device=device))
    with pytest.raises(br.DTypeMismatch):
        x.set(..., br.ones((4, 3), dtype=br.int64, device=device))
    with pytest.raises(br.UsageError, match="update"):
        x.set(0, 1, update="subtract")  # type: ignore[arg-type]
    with pytest.raises(br.ShapeMismatch, match="mask"):
        x.set(br.ones((3,), dtype=br.bool, device=device), 1)
    with pytest.raises(br.DeviceMismatch):
        x.set(..., br.ones((4, 3), device=RecordingDevice("other")))
