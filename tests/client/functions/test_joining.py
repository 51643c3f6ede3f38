"""Joining, splitting and turning along named axes agree with NumPy's functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import burn_remote as br

SHAPES = [(6,), (4, 6), (4, 6, 8), (2, 4, 6, 3)]


def counted(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(float(np.prod(shape))).reshape(shape)


@pytest.mark.parametrize("shape", [(), *SHAPES[:3]])
@pytest.mark.parametrize("name", ["hstack", "vstack", "dstack", "column_stack"])
def test_tensors_are_joined_as_arrays_are(
    name: str, shape: tuple[int, ...], device: br.Device
) -> None:
    arrays = [counted(*shape), -counted(*shape)]
    found = getattr(br, name)([br.tensor(one, device=device) for one in arrays])
    np.testing.assert_array_equal(found.numpy(), getattr(np, name)(arrays), strict=True)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sections", [1, 2, [1, 3], [0, 5, 9]])
@pytest.mark.parametrize("name", ["hsplit", "vsplit", "dsplit"])
def test_tensors_are_split_as_arrays_are(
    name: str, sections: Any, shape: tuple[int, ...], device: br.Device
) -> None:
    array = counted(*shape)
    x = br.tensor(array, device=device)
    try:
        expected = getattr(np, name)(array, sections)
    except ValueError:
        with pytest.raises(br.ShapeMismatch):
            getattr(br, name)(x, sections)
        return
    found = getattr(br, name)(x, sections)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs, strict=True)


@pytest.mark.parametrize("sections", [1, 3, 4, 9, [2, 3], np.int64(3), np.array([2, 3])])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_parts_may_differ_by_one(sections: Any, axis: int, device: br.Device) -> None:
    array = counted(7, 5)
    found = br.array_split(br.tensor(array, device=device), sections, axis)
    expected = np.array_split(array, sections, axis)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs, strict=True)


@pytest.mark.parametrize("turns", [-5, -1, 0, 1, 2, 3, 6])
@pytest.mark.parametrize("axes", [(0, 1), (1, 0), (2, 0), (-1, 1)])
def test_turns_are_those_of_numpy(turns: int, axes: tuple[int, int], device: br.Device) -> None:
    array = counted(2, 3, 4)
    found = br.rot90(br.tensor(array, device=device), turns, axes)
    np.testing.assert_array_equal(found.numpy(), np.rot90(array, turns, axes), strict=True)


def test_left_and_right_and_up_and_down_are_exchanged(device: br.Device) -> None:
    array = counted(2, 3)
    x = br.tensor(array, device=device)
    np.testing.assert_array_equal(br.fliplr(x).numpy(), np.fliplr(array))
    np.testing.assert_array_equal(br.flipud(x).numpy(), np.flipud(array))
    with pytest.raises(br.ShapeMismatch, match="fewer than the required 2 axes"):
        br.fliplr(x[0])


def test_transpose_takes_axes_one_by_one(device: br.Device) -> None:
    array = counted(2, 3, 4)
    x = br.tensor(array, device=device)
    np.testing.assert_array_equal(x.transpose(2, 0, 1).numpy(), array.transpose(2, 0, 1))
    np.testing.assert_array_equal(x.transpose(-1, 1, 0).numpy(), array.transpose(-1, 1, 0))
    assert x.transpose().shape == (4, 3, 2)
    with pytest.raises(br.ArgumentMismatch, match=r"swapaxes\(0, 1\) .* x\.transpose\(\(0, 1\)\)"):
        x.transpose(0, 1)
