"""Tests of the rules for reshapes, permutations, slices, repetitions and concatenations."""

from __future__ import annotations

from typing import Any

import pytest

from burn_remote_protocol.errors import DTypeMismatch, LimitExceeded, ShapeMismatch
from burn_remote_protocol.operations.families import base, numeric
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.operations.shape_rules.movement_rules import slice_ranges
from burn_remote_protocol.tensors import Slice, TensorSpec
from support.specs import f16, f32, flags, i64, made


@pytest.mark.parametrize(
    ("row", "spec", "parameters", "expected"),
    [
        (base.SWAP_DIMS, f32(2, 3, 4), {"dim1": 0, "dim2": 2}, f32(4, 3, 2)),
        (base.PERMUTE, f32(2, 3, 4), {"axes": (2, 0, 1)}, f32(4, 2, 3)),
        (base.FLIP, f32(2, 3), {"axes": (0, 1)}, f32(2, 3)),
        (base.UNFOLD, f32(2, 6, 6), {"dim": 1, "size": 3, "step": 2}, f32(2, 2, 6, 3)),
        (base.UNFOLD, f32(2), {"dim": 0, "size": 5, "step": 1}, f32(0, 5)),
        (base.REPEAT_DIM, f32(2, 3), {"dim": 1, "times": 4}, f32(2, 12)),
        (base.REPEAT_DIM, f32(2, 3), {"dim": 0, "times": 0}, f32(0, 3)),
    ],
    ids=str,
)
def test_axes_move(row: Row, spec: TensorSpec, parameters: Any, expected: TensorSpec) -> None:
    assert made(row, spec, **parameters) == (expected,)


@pytest.mark.parametrize(
    ("row", "spec", "parameters"),
    [
        (base.SWAP_DIMS, f32(2, 3), {"dim1": 0, "dim2": 2}),
        (base.SWAP_DIMS, f32(2, 3), {"dim1": 2, "dim2": 0}),
        (base.PERMUTE, f32(2, 3), {"axes": (0, 0)}),
        (base.PERMUTE, f32(2, 3), {"axes": (0,)}),
        (base.FLIP, f32(2, 3), {"axes": (2,)}),
        (base.UNFOLD, f32(2), {"dim": 1, "size": 1, "step": 1}),
        (base.UNFOLD, f32(2), {"dim": 0, "size": 1, "step": 0}),
        (base.REPEAT_DIM, f32(), {"dim": 0, "times": 1}),
    ],
    ids=str,
)
def test_an_axis_out_of_range_is_refused(row: Row, spec: TensorSpec, parameters: Any) -> None:
    with pytest.raises(ShapeMismatch):
        made(row, spec, **parameters)


def test_a_window_larger_than_any_tensor_is_refused() -> None:
    with pytest.raises(LimitExceeded):
        made(base.UNFOLD, f32(2**40), dim=0, size=2**39, step=1)


@pytest.mark.parametrize("target", [(6,), (3, 2), (1, 6, 1), (2, 3)])
def test_a_reshape_to_as_many_elements_is_allowed(target: tuple[int, ...]) -> None:
    assert made(base.RESHAPE, f32(2, 3), requested=(f32(*target),)) == (f32(*target),)


def test_a_reshape_to_another_number_of_elements_is_refused_with_both_counts() -> None:
    with pytest.raises(ShapeMismatch, match=r"6 elements, but shape \[4\] has 4"):
        made(base.RESHAPE, f32(2, 3), requested=(f32(4),))


@pytest.mark.parametrize("target", [(2, 3), (4, 2, 3), (0, 2, 3)])
def test_a_tensor_expands_to_shapes_that_it_broadcasts_to(target: tuple[int, ...]) -> None:
    assert made(base.EXPAND, f32(2, 1), requested=(f32(*target),)) == (f32(*target),)


@pytest.mark.parametrize("target", [(3,), (1, 1), (3, 1), (2, 1, 3)])
def test_a_tensor_does_not_expand_to_other_shapes(target: tuple[int, ...]) -> None:
    with pytest.raises(ShapeMismatch, match=r"float32\[2, 1\] does not expand"):
        made(base.EXPAND, f32(2, 1), requested=(f32(*target),))


@pytest.mark.parametrize(
    ("item", "indices"),
    [
        (Slice(0, None, 1), [0, 1, 2, 3, 4]),
        (Slice(1, 3, 1), [1, 2]),
        (Slice(-3, -1, 1), [2, 3]),
        (Slice(-9, 9, 1), [0, 1, 2, 3, 4]),
        (Slice(3, 1, 1), []),
        (Slice(9, None, 1), []),
        (Slice(0, None, 2), [0, 2, 4]),
        (Slice(1, None, 3), [1, 4]),
        (Slice(0, None, -1), [4, 3, 2, 1, 0]),
        (Slice(1, 4, -2), [3, 1]),
        (Slice(0, None, -3), [4, 1]),
        (Slice(-1, None, 1), [4]),
        (Slice(-(2**63), 2**63 - 1, 2**63 - 1), [0]),
    ],
)
def test_a_slice_takes_the_indices_of_burns_rule(item: Slice, indices: list[int]) -> None:
    (taken,) = slice_ranges((5,), (item,))

    assert list(taken) == indices
    assert made(base.SLICE, f32(5, 2), ranges=(item,)) == (f32(len(indices), 2),)


def test_a_slice_with_step_0_is_refused() -> None:
    with pytest.raises(ShapeMismatch, match="step 0 takes nothing"):
        made(base.SLICE, f32(5), ranges=(Slice(0, None, 0),))


@pytest.mark.parametrize(
    ("spec", "padding", "mode", "reason"),
    [
        (f32(2, 3), ((0, 0), (3, 0)), "Reflect", "axis 1 .* is too short to reflect 3 elements"),
        (f32(0, 3), ((0, 1), (0, 0)), "Edge", "axis 0 .* is empty, so it has no edge to repeat"),
        (f32(2, 3), ((0, 1),), "Constant", "padding has 1 pairs, but must have one per axis"),
    ],
)
def test_padding_that_the_elements_cannot_give_is_refused(
    spec: TensorSpec, padding: Any, mode: str, reason: str
) -> None:
    with pytest.raises(ShapeMismatch, match=reason):
        made(numeric.PAD, spec, padding=padding, mode=(mode, 0.0))


def test_padding_within_the_elements_is_added() -> None:
    reflected = made(numeric.PAD, f32(2, 3), padding=((1, 0), (2, 1)), mode=("Reflect",))
    assert reflected == (f32(3, 6),)
    assert made(numeric.PAD, f32(1), padding=((4, 4),), mode=("Edge",)) == (f32(9),)
    assert made(numeric.PAD, f32(0), padding=((0, 0),), mode=("Edge",)) == (f32(0),)
    assert made(numeric.PAD, f32(0), padding=((1, 1),), mode=("Constant", 0.0)) == (f32(2),)


def test_more_slices_than_axes_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match="2 slices for the 1 axes"):
        made(base.SLICE, f32(5), ranges=(Slice(0, None, 1),) * 2)


def test_a_value_must_have_the_shape_of_the_slices_it_replaces() -> None:
    ranges = (Slice(0, None, 2),)

    assert made(base.SLICE_ASSIGN, f32(5, 2), f32(3, 2), ranges=ranges) == (f32(5, 2),)
    with pytest.raises(ShapeMismatch, match=r"value is float32\[1, 2\].*shape \[3, 2\]"):
        made(base.SLICE_ASSIGN, f32(5, 2), f32(1, 2), ranges=ranges)
    with pytest.raises(DTypeMismatch):
        made(base.SLICE_ASSIGN, f32(5, 2), f16(3, 2), ranges=ranges)


def test_concatenation_sums_the_sizes_of_one_axis() -> None:
    specs = (f32(2, 1), f32(2, 0), f32(2, 3))

    assert made(base.CAT, specs, dim=1) == (f32(2, 4),)


@pytest.mark.parametrize(
    ("specs", "dim", "error"),
    [
        ((), 0, ShapeMismatch),
        ((f32(2, 1), f32(3, 1)), 1, ShapeMismatch),
        ((f32(2, 1), f32(2)), 1, ShapeMismatch),
        ((f32(2, 1),), 2, ShapeMismatch),
        ((f32(2), i64(2)), 0, DTypeMismatch),
    ],
)
def test_tensors_that_differ_elsewhere_are_not_concatenated(
    specs: Any, dim: int, error: type[Exception]
) -> None:
    with pytest.raises(error):
        made(base.CAT, specs, dim=dim)


def test_a_tensor_does_not_expand_to_fewer_axes() -> None:
    with pytest.raises(ShapeMismatch, match=r"float32\[3, 2\] does not expand to shape \[3\]"):
        made(base.EXPAND, f32(3, 2), requested=(f32(3),))


def test_bools_are_not_padded() -> None:
    with pytest.raises(DTypeMismatch, match="input is bool"):
        made(numeric.PAD, flags(2), padding=((1, 1),), mode=("Constant", 0.0))
