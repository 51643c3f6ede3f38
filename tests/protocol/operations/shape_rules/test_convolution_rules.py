"""Tests of the rules for convolutions, and of their costs."""

from __future__ import annotations

from typing import Any

import pytest

from burn_remote_protocol.errors import (
    DTypeMismatch,
    LimitExceeded,
    ShapeMismatch,
    Unsupported,
)
from burn_remote_protocol.operations.families import convolution_rows, layers
from burn_remote_protocol.operations.row import Call, Row
from burn_remote_protocol.operations.shape_rules.convolution_rules import window_count
from support.specs import f16, f32, i64, made

PLAIN: dict[str, Any] = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
DEFORMED: dict[str, Any] = {
    "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "weight_groups": 1, "offset_groups": 1,
}  # fmt: skip


def cost_of(row: Row, inputs: tuple[Any, ...], parameters: Any) -> int:
    """Return the estimated cost of a call with the outputs that the rule gives."""
    call = Call(inputs, parameters)
    return row.estimates.cost(call._replace(requested=row.rule(call)))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((5, 3, 1, 0, 1), 3),
        ((5, 3, 2, 1, 1), 3),
        ((6, 3, 2, 0, 1), 2),
        ((5, 3, 1, 0, 2), 1),
        ((1, 1, 7, 0, 9), 1),
    ],
)
def test_windows_are_counted(arguments: tuple[int, ...], expected: int) -> None:
    size, kernel, stride, padding, dilation = arguments

    assert window_count(size, kernel, stride, padding, dilation) == expected


def test_a_last_window_that_reaches_over_the_end_counts_when_rounding_up() -> None:
    assert window_count(6, 3, 2, 0, 1, ceil=True) == 3
    assert window_count(7, 3, 2, 0, 1, ceil=True) == 3


@pytest.mark.parametrize(
    "arguments",
    [(2, 3, 1, 0, 1), (0, 1, 1, 0, 1), (5, 0, 1, 0, 1), (5, 3, 0, 0, 1), (5, 3, 1, 0, 0)],
)
def test_a_window_that_does_not_fit_is_refused(arguments: tuple[int, ...]) -> None:
    size, kernel, stride, padding, dilation = arguments

    with pytest.raises(ShapeMismatch):
        window_count(size, kernel, stride, padding, dilation)


def test_a_convolution_has_its_shape_and_costs_its_products() -> None:
    inputs = (f32(2, 4, 8, 9), f32(6, 2, 3, 3), f32(6))
    parameters: dict[str, Any] = {
        "stride": (2, 1),
        "padding": (1, 0),
        "dilation": (1, 2),
        "groups": 2,
    }

    assert made(convolution_rows.CONV2D, *inputs, **parameters) == (f32(2, 6, 4, 5),)
    assert cost_of(convolution_rows.CONV2D, inputs, parameters) >= 2 * (2 * 6 * 4 * 5) * (2 * 3 * 3)


def test_gradients_have_the_shapes_of_their_inputs() -> None:
    x, weight, grad = f32(2, 4, 8, 9), f32(6, 4, 3, 3), f32(2, 6, 6, 7)

    assert made(convolution_rows.CONV2D_X_BACKWARD, x, weight, grad, **PLAIN) == (x,)
    assert made(convolution_rows.CONV2D_WEIGHT_BACKWARD, x, weight, grad, **PLAIN) == (weight,)
    assert made(convolution_rows.CONV2D_BIAS_BACKWARD, x, f32(6), grad) == (f32(6),)
    with pytest.raises(ShapeMismatch, match="output_grad"):
        made(convolution_rows.CONV2D_X_BACKWARD, x, weight, f32(2, 6, 6, 6), **PLAIN)
    with pytest.raises(ShapeMismatch, match="bias"):
        made(convolution_rows.CONV2D_BIAS_BACKWARD, x, f32(5), grad)


@pytest.mark.parametrize(
    ("inputs", "changes"),
    [
        ((f32(2, 4, 8), f32(6, 4, 3, 3), None), {}),
        ((f32(2, 4, 8, 9), f32(6, 4, 3), None), {}),
        ((f32(2, 5, 8, 9), f32(6, 4, 3, 3), None), {}),
        ((f32(2, 4, 8, 9), f32(6, 4, 3, 3), f32(4)), {}),
        ((f32(2, 4, 8, 9), f32(6, 4, 3, 3), None), {"groups": 0}),
        ((f32(2, 16, 8, 9), f32(6, 4, 3, 3), None), {"groups": 4}),
        ((f32(2, 4, 2, 9), f32(6, 4, 3, 3), None), {}),
        ((f32(2, 4, 8, 9), f32(6, 4, 3, 3), None), {"stride": (0, 1)}),
    ],
)
def test_shapes_that_cannot_be_convolved_are_refused(inputs: Any, changes: Any) -> None:
    with pytest.raises(ShapeMismatch):
        made(convolution_rows.CONV2D, *inputs, **(PLAIN | changes))


def test_padding_beyond_any_tensor_is_refused() -> None:
    parameters: dict[str, Any] = PLAIN | {"padding": (2**63, 0)}

    with pytest.raises(LimitExceeded):
        made(convolution_rows.CONV2D, f32(1, 1, 3, 3), f32(1, 1, 3, 3), None, **parameters)


def test_a_kernel_of_another_dtype_is_refused() -> None:
    with pytest.raises(DTypeMismatch, match="weight is float16"):
        made(convolution_rows.CONV2D, f32(1, 1, 3, 3), f16(1, 1, 3, 3), None, **PLAIN)


def test_a_transposed_convolution_has_its_shape_and_costs_its_products() -> None:
    inputs = (f32(1, 4, 10, 10), f32(4, 1, 2, 3), f32(2))
    parameters: dict[str, Any] = {
        "stride": (2, 3), "padding": (1, 2), "padding_out": (1, 2), "dilation": (1, 2), "groups": 2,
    }  # fmt: skip

    assert made(convolution_rows.CONV_TRANSPOSE2D, *inputs, **parameters) == (f32(1, 2, 19, 30),)
    assert cost_of(convolution_rows.CONV_TRANSPOSE2D, inputs, parameters) >= 2 * 400 * 6


@pytest.mark.parametrize(
    ("inputs", "changes"),
    [
        ((f32(1, 3, 5), f32(4, 1, 2), None), {}),
        ((f32(1, 4, 5), f32(4, 1, 2), None), {"groups": 3}),
        ((f32(1, 4, 5), f32(4, 1, 2), f32(3)), {}),
        ((f32(1, 4, 0), f32(4, 1, 2), None), {}),
        ((f32(1, 4, 1), f32(4, 1, 2), None), {"padding": (2,)}),
    ],
)
def test_shapes_that_cannot_be_transposed_are_refused(inputs: Any, changes: Any) -> None:
    parameters: dict[str, Any] = {
        "stride": (1,), "padding": (0,), "padding_out": (0,), "dilation": (1,), "groups": 1,
    }  # fmt: skip

    with pytest.raises(ShapeMismatch):
        made(convolution_rows.CONV_TRANSPOSE1D, *inputs, **(parameters | changes))


def test_a_deformable_convolution_has_its_shape_and_costs_its_products() -> None:
    inputs = (f32(1, 2, 4, 4), f32(1, 18, 2, 2), f32(3, 2, 3, 3), f32(1, 9, 2, 2), f32(3))

    assert made(convolution_rows.DEFORMABLE_CONV2D, *inputs, **DEFORMED) == (f32(1, 3, 2, 2),)
    assert cost_of(convolution_rows.DEFORMABLE_CONV2D, inputs, DEFORMED) >= 2 * 12 * 18


def test_a_deformable_convolution_has_gradients_of_the_inputs_that_were_given() -> None:
    x, offset, weight = f32(1, 2, 4, 4), f32(1, 18, 2, 2), f32(3, 2, 3, 3)
    mask, bias, grad = f32(1, 9, 2, 2), f32(3), f32(1, 3, 2, 2)
    row = convolution_rows.DEFORMABLE_CONV2D_BACKWARD

    assert made(row, x, offset, weight, mask, bias, grad, **DEFORMED) == (
        x, offset, weight, mask, bias,
    )  # fmt: skip
    assert made(row, x, offset, weight, None, bias, grad, **DEFORMED) == (x, offset, weight, bias)


@pytest.mark.parametrize(
    ("position", "spec", "changes"),
    [
        (1, f32(1, 9, 2, 2), {}),
        (3, f32(1, 18, 2, 2), {}),
        (0, f32(1, 2, 4, 4), {"offset_groups": 3}),
    ],
)
def test_offsets_and_masks_must_suit_the_kernel(position: int, spec: Any, changes: Any) -> None:
    inputs: list[Any] = [f32(1, 2, 4, 4), f32(1, 18, 2, 2), f32(3, 2, 3, 3), f32(1, 9, 2, 2), None]
    inputs[position] = spec

    with pytest.raises(ShapeMismatch):
        made(convolution_rows.DEFORMABLE_CONV2D, *inputs, **(DEFORMED | changes))


TRANSPOSED: dict[str, Any] = {
    "stride": (1,), "padding": (0,), "padding_out": (0,), "dilation": (1,), "groups": 1,
}  # fmt: skip
WINDOWS: dict[str, Any] = {
    "kernel_size": (3, 3), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1),
}  # fmt: skip
X, WEIGHT, GRAD = f32(2, 4, 8, 9), f32(6, 4, 3, 3), f32(2, 6, 6, 7)
DEFORMED_INPUTS = (f32(1, 2, 4, 4), f32(1, 18, 2, 2), f32(3, 2, 3, 3), f32(1, 9, 2, 2), f32(3))


@pytest.mark.parametrize(
    ("row", "inputs", "parameters", "reason"),
    [
        (convolution_rows.CONV2D, (i64(2, 4, 8, 9), i64(6, 4, 3, 3), None), PLAIN, "x is int64"),
        (convolution_rows.CONV2D_X_BACKWARD, (X, f16(6, 4, 3, 3), GRAD), PLAIN, "weight is"),
        (convolution_rows.CONV2D_X_BACKWARD, (X, WEIGHT, f16(2, 6, 6, 7)), PLAIN, "output_grad is"),
        (convolution_rows.CONV2D_BIAS_BACKWARD, (i64(1), i64(6), i64(2, 6, 6, 7)), {}, "x is"),
        (convolution_rows.CONV2D_BIAS_BACKWARD, (X, f16(6), GRAD), {}, "bias is"),
        (convolution_rows.CONV2D_BIAS_BACKWARD, (X, f32(6), f16(2, 6, 6, 7)), {}, "output_grad is"),
        (
            convolution_rows.CONV_TRANSPOSE1D,
            (f32(1, 4, 5), f16(4, 1, 2), None),
            TRANSPOSED,
            "weight is",
        ),
        (
            convolution_rows.CONV_TRANSPOSE1D_WEIGHT_BACKWARD,
            (f32(1, 4, 5), f16(4, 1, 2), f32(1, 1, 6)),
            TRANSPOSED,
            "weight is",
        ),
        (
            convolution_rows.CONV_TRANSPOSE1D_WEIGHT_BACKWARD,
            (f32(1, 4, 5), f32(4, 1, 2), f16(1, 1, 6)),
            TRANSPOSED,
            "output_grad is",
        ),
        (layers.UNFOLD4D, (i64(1, 2, 4, 4),), WINDOWS, "x is int64"),
    ],
    ids=str,
)
def test_tensors_of_other_dtypes_are_refused(
    row: Row, inputs: Any, parameters: Any, reason: str
) -> None:
    with pytest.raises(DTypeMismatch, match=reason):
        made(row, *inputs, **parameters)


@pytest.mark.parametrize(
    ("row", "inputs", "parameters", "reason"),
    [
        (
            convolution_rows.CONV2D_WEIGHT_BACKWARD,
            (f32(2, 3, 8, 9), WEIGHT, GRAD),
            PLAIN,
            "x .* has 3 channels",
        ),
        (convolution_rows.CONV2D_BIAS_BACKWARD, (X, f32(6), f32(2, 6)), {}, "must have 4 dim"),
        (
            convolution_rows.CONV_TRANSPOSE1D_WEIGHT_BACKWARD,
            (f32(1, 4, 5), f32(4, 1, 2), f32(1, 1, 5)),
            TRANSPOSED,
            "output_grad is",
        ),
        (layers.UNFOLD4D, (f32(2, 4, 4),), WINDOWS, "must have 4 dim"),
    ],
    ids=str,
)
def test_gradients_and_windows_of_other_shapes_are_refused(
    row: Row, inputs: Any, parameters: Any, reason: str
) -> None:
    with pytest.raises(ShapeMismatch, match=reason):
        made(row, *inputs, **parameters)


def test_windows_are_copied_with_all_their_channels() -> None:
    assert made(layers.UNFOLD4D, f32(1, 2, 4, 5), **WINDOWS) == (f32(1, 18, 6),)


def test_different_padding_of_both_ends_is_refused() -> None:
    with pytest.raises(Unsupported, match="axis 0 is padded with 1 before and 2 after"):
        made(convolution_rows.CONV2D, X, WEIGHT, None, **PLAIN | {"padding": ((1, 2), (0, 0))})


@pytest.mark.parametrize(
    ("position", "spec", "reason"),
    [
        (2, f16(3, 2, 3, 3), "weight is float16"),
        (1, f16(1, 18, 2, 2), "offset is float16"),
        (3, f16(1, 9, 2, 2), "mask is float16"),
    ],
)
def test_a_deformable_convolution_has_one_dtype(position: int, spec: Any, reason: str) -> None:
    inputs: list[Any] = [*DEFORMED_INPUTS]
    inputs[position] = spec
    with pytest.raises(DTypeMismatch, match=reason):
        made(convolution_rows.DEFORMABLE_CONV2D, *inputs, **DEFORMED)


@pytest.mark.parametrize(
    ("weight", "changes", "reason"),
    [
        (f32(3, 3, 3, 3), {}, "x .* has 2 channels"),
        (f32(3, 2, 3, 3), {"offset_groups": 0}, "0 offset groups must divide its channels"),
        (f32(3, 2, 3, 3), {"offset_groups": 3}, "3 offset groups must divide its channels"),
    ],
)
def test_channels_of_a_deformable_convolution_suit_its_groups(
    weight: Any, changes: Any, reason: str
) -> None:
    inputs: list[Any] = [*DEFORMED_INPUTS]
    inputs[2] = weight
    with pytest.raises(ShapeMismatch, match=reason):
        made(convolution_rows.DEFORMABLE_CONV2D, *inputs, **(DEFORMED | changes))


def test_the_gradient_of_a_deformable_convolution_is_like_its_result() -> None:
    row = convolution_rows.DEFORMABLE_CONV2D_BACKWARD
    with pytest.raises(DTypeMismatch, match="out_grad is float16"):
        made(row, *DEFORMED_INPUTS, f16(1, 3, 2, 2), **DEFORMED)
    with pytest.raises(ShapeMismatch, match="out_grad is"):
        made(row, *DEFORMED_INPUTS, f32(1, 3, 2, 3), **DEFORMED)
