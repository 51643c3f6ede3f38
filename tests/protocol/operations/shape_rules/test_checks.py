"""Tests of the checks of shapes and dtypes that rules share."""

from __future__ import annotations

import pytest

from burn_remote_protocol.dtypes import BOOL, BOOL_U8, I32, I64
from burn_remote_protocol.errors import DTypeMismatch, LimitExceeded, ShapeMismatch
from burn_remote_protocol.operations.row import Call
from burn_remote_protocol.operations.shape_rules.checks import (
    FLOATS,
    bool_dtype,
    broadcast_shapes,
    check_axis,
    check_rank,
    check_same_dtype,
    check_shape,
    declared,
    index_dtype,
    result,
)
from burn_remote_protocol.tensors import Shape
from support.specs import f16, f32, flags, i32, i64


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        (((2, 3), (2, 3)), (2, 3)),
        (((2, 1), (1, 3)), (2, 3)),
        (((4, 2, 3), (3,)), (4, 2, 3)),
        (((), (5,)), (5,)),
        (((), ()), ()),
        (((1,), (0,)), (0,)),
        (((2, 1, 1), (1, 3, 1), (1, 1, 4)), (2, 3, 4)),
    ],
)
def test_shapes_broadcast_from_the_last_axis(shapes: tuple[Shape, ...], expected: Shape) -> None:
    assert broadcast_shapes(*shapes) == expected


def test_shapes_that_do_not_broadcast_are_named_with_the_axis() -> None:
    with pytest.raises(ShapeMismatch) as caught:
        broadcast_shapes((2, 3), (4, 3))

    assert str(caught.value) == "shapes [2, 3], [4, 3] do not broadcast: axis -2 has 2 and 4"


def test_an_empty_axis_does_not_stretch() -> None:
    with pytest.raises(ShapeMismatch):
        broadcast_shapes((0,), (3,))


def test_a_different_dtype_is_named_with_advice() -> None:
    with pytest.raises(
        DTypeMismatch, match=r"rhs is float16\[2\].*float32 like the first argument$"
    ):
        check_same_dtype(f32(2), rhs=f16(2), bias=None)


def test_a_result_larger_than_any_tensor_is_refused() -> None:
    with pytest.raises(LimitExceeded, match="elements of a tensor"):
        result((2**40, 2**40), I64)


def test_the_caller_chooses_the_dtype_of_indices_and_of_stored_bools() -> None:
    assert index_dtype(Call((), {}), 0) is I64
    assert index_dtype(Call((), {}, (i32(2),)), 0) is I32
    assert bool_dtype(Call((), {}), 0) is BOOL
    assert bool_dtype(Call((), {}, (flags(2, dtype=BOOL_U8),)), 0) is BOOL_U8


def test_a_choice_of_another_category_is_refused() -> None:
    with pytest.raises(DTypeMismatch, match="must be int or uint"):
        index_dtype(Call((), {}, (f32(2),)), 0)
    with pytest.raises(DTypeMismatch, match="must be bool"):
        bool_dtype(Call((), {}, (i64(2),)), 0)
    with pytest.raises(DTypeMismatch, match="must be float"):
        declared(Call((), {}, (i64(2),)), FLOATS)


def test_what_fits_is_accepted_and_what_does_not_is_named() -> None:
    check_same_dtype(f32(2), rhs=f32(3), bias=None)
    check_rank("x", f32(2, 3), 2)
    check_axis("dim", 1, (2, 3))
    check_shape("x", f32(2, 3), [2, 3])
    with pytest.raises(ShapeMismatch, match=r"have 3 dimensions; x\[None\] adds one in front$"):
        check_rank("x", f32(2, 3), 3)
    with pytest.raises(ShapeMismatch, match=r"x is float32\[2, 3\], but must have 1 dimension$"):
        check_rank("x", f32(2, 3), 1)
    for axis in (-1, 2):
        with pytest.raises(ShapeMismatch, match=rf"dim={axis} is not an axis of shape \[2, 3\]"):
            check_axis("dim", axis, (2, 3))
    with pytest.raises(ShapeMismatch, match=r"x is float32\[2, 3\], but must have shape \[3, 2\]"):
        check_shape("x", f32(2, 3), [3, 2])


def test_an_output_that_follows_from_nothing_must_be_declared() -> None:
    with pytest.raises(ShapeMismatch, match="shape and dtype of the output must be given"):
        declared(Call((), {}), FLOATS)
