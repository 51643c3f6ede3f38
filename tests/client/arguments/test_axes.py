"""Validation and normalization of axes and shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote.arguments.axes import normal_axes, normal_axis, normal_shape, sendable_shape


@pytest.mark.parametrize(("axis", "expected"), [(0, 0), (2, 2), (-1, 2), (-3, 0), (np.int8(-1), 2)])
def test_a_negative_axis_counts_from_the_end(axis: Any, expected: int) -> None:
    assert normal_axis(axis, 3) == expected


@pytest.mark.parametrize("axis", [3, -4, 10**30])
def test_an_axis_out_of_range_is_refused(axis: int) -> None:
    with pytest.raises(br.IndexOutOfRange, match="out of range for 3 axes"):
        normal_axis(axis, 3)


@pytest.mark.parametrize("axis", [0.0, "0", None, (0,)])
def test_an_axis_that_is_not_an_integer_is_refused(axis: Any) -> None:
    with pytest.raises(br.ArgumentMismatch, match="an axis must be an integer"):
        normal_axis(axis, 3)


@pytest.mark.parametrize(
    ("axes", "expected"),
    [(None, (0, 1, 2)), (1, (1,)), ((-1, 0), (2, 0)), ([1], (1,)), ((), ())],
)
def test_axes_keep_their_order_and_none_means_all(axes: Any, expected: tuple[int, ...]) -> None:
    assert normal_axes(axes, 3) == expected


def test_a_repeated_axis_is_refused_in_either_notation() -> None:
    with pytest.raises(
        br.ShapeMismatch, match=r"axes \[0, -3\] of a tensor with 3 axes name an axis twice"
    ):
        normal_axes((0, -3), 3)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [(3, (3,)), ((), ()), ([2, 3], (2, 3)), ((np.int64(2), 0), (2, 0)), (-1, (-1,))],
)
def test_shapes_become_tuples_of_integers(shape: Any, expected: tuple[int, ...]) -> None:
    found = normal_shape(shape)
    assert found == expected
    assert all(type(size) is int for size in found)


@pytest.mark.parametrize("shape", [1.0, (2, 1.5), "23", True, (2, False), None])
def test_other_shapes_are_refused(shape: Any) -> None:
    with pytest.raises(br.ArgumentMismatch, match="a shape must be an integer or a tuple"):
        normal_shape(shape)


@pytest.mark.parametrize("shape", [(1,) * 33, (2**60,)])
def test_a_shape_beyond_the_limits_of_tensors_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(br.ShapeMismatch, match="shape of the data"):
        sendable_shape(shape)
    assert sendable_shape((1,) * 32) == (1,) * 32
