"""Tests of the rules for pooling, interpolation and grid sampling."""

from __future__ import annotations

from typing import Any

import pytest

from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch
from burn_remote_protocol.operations.families import floats, pooling_rows, sampling
from burn_remote_protocol.operations.row import Call, Row
from support.specs import f16, f32, i32, i64, made

LINE: dict[str, Any] = {"kernel_size": 3, "stride": 2, "padding": 0, "ceil_mode": False}
PLANE: dict[str, Any] = {
    "kernel_size": (3, 1),
    "stride": (1, 2),
    "padding": (1, 0),
    "ceil_mode": False,
}


@pytest.mark.parametrize(
    ("row", "parameters", "size"),
    [
        (pooling_rows.AVG_POOL1D, LINE, 2),
        (pooling_rows.AVG_POOL1D, LINE | {"ceil_mode": True}, 3),
        (pooling_rows.MAX_POOL1D, LINE | {"dilation": 2}, 1),
        (pooling_rows.ADAPTIVE_AVG_POOL1D, {"output_size": 4}, 4),
    ],
    ids=str,
)
def test_a_signal_is_pooled(row: Row, parameters: Any, size: int) -> None:
    assert made(row, f32(2, 5, 6), **parameters) == (f32(2, 5, size),)


@pytest.mark.parametrize(
    ("row", "parameters", "shape"),
    [
        (pooling_rows.AVG_POOL2D, PLANE, (6, 2)),
        (pooling_rows.MAX_POOL2D, PLANE | {"dilation": (1, 1)}, (6, 2)),
        (pooling_rows.ADAPTIVE_AVG_POOL2D, {"output_size": (4, 7)}, (4, 7)),
        (sampling.INTERPOLATE, {"output_size": (9, 1)}, (9, 1)),
    ],
    ids=str,
)
def test_an_image_is_pooled_or_resampled(row: Row, parameters: Any, shape: tuple[int, ...]) -> None:
    assert made(row, f32(2, 5, 6, 3), **parameters) == (f32(2, 5, *shape),)


def test_max_pooling_can_return_indices_with_the_maxima() -> None:
    parameters: dict[str, Any] = LINE | {"dilation": 1}
    x, grad = f32(2, 5, 6), f32(2, 5, 2)

    assert made(pooling_rows.MAX_POOL1D_WITH_INDICES, x, **parameters) == (grad, i64(2, 5, 2))
    assert made(
        pooling_rows.MAX_POOL1D_WITH_INDICES, x, requested=(grad, i32(2, 5, 2)), **parameters
    ) == (grad, i32(2, 5, 2))
    assert made(
        pooling_rows.MAX_POOL1D_WITH_INDICES_BACKWARD, x, grad, i64(2, 5, 2), **parameters
    ) == (x,)


@pytest.mark.parametrize(
    ("row", "grad", "parameters"),
    [
        (pooling_rows.AVG_POOL2D_BACKWARD, f32(2, 5, 6, 2), PLANE),
        (pooling_rows.ADAPTIVE_AVG_POOL2D_BACKWARD, f32(2, 5, 4, 4), {}),
        (sampling.INTERPOLATE_BACKWARD, f32(2, 5, 9, 1), {"output_size": (9, 1)}),
    ],
    ids=str,
)
def test_a_gradient_has_the_shape_of_the_input(row: Row, grad: Any, parameters: Any) -> None:
    x = f32(2, 5, 6, 3)

    assert made(row, x, grad, **parameters) == (x,)
    with pytest.raises(ShapeMismatch, match="grad is"):
        made(row, x, f32(2, 4, *grad.shape[2:]), **parameters)
    with pytest.raises(DTypeMismatch, match="grad is float16"):
        made(row, x, f16(*grad.shape), **parameters)


@pytest.mark.parametrize(
    ("row", "inputs", "parameters"),
    [
        (pooling_rows.AVG_POOL1D, (f32(2, 5),), LINE),
        (pooling_rows.AVG_POOL1D, (f32(2, 5, 2),), LINE),
        (pooling_rows.ADAPTIVE_AVG_POOL1D, (f32(2, 5, 0),), {"output_size": 4}),
        (sampling.INTERPOLATE, (f32(2, 5, 6, 0),), {"output_size": (9, 1)}),
        (
            pooling_rows.MAX_POOL1D_WITH_INDICES_BACKWARD,
            (f32(2, 5, 6), f32(2, 5, 2), i64(2, 5, 3)),
            LINE | {"dilation": 1},
        ),
    ],
    ids=str,
)
def test_an_image_that_does_not_fit_is_refused(row: Row, inputs: Any, parameters: Any) -> None:
    with pytest.raises(ShapeMismatch):
        made(row, *inputs, **parameters)


def test_the_grid_determines_the_shape_of_the_samples() -> None:
    assert made(floats.GRID_SAMPLE2D, f32(2, 3, 4, 5), f32(2, 6, 7, 2)) == (f32(2, 3, 6, 7),)


@pytest.mark.parametrize("grid", [f32(1, 6, 7, 2), f32(2, 6, 7, 3), f32(2, 6, 2)])
def test_a_grid_that_does_not_suit_the_image_is_refused(grid: Any) -> None:
    with pytest.raises(ShapeMismatch, match="grid is"):
        made(floats.GRID_SAMPLE2D, f32(2, 3, 4, 5), grid)


def test_a_pooling_costs_the_elements_in_its_windows_without_padding() -> None:
    def cost(kernel: int, padding: int) -> int:
        options = {"kernel_size": kernel, "padding": padding, "stride": 1, "ceil_mode": False}
        call = Call((f32(1, 1, 600),), options | {"dilation": 1})
        outputs = pooling_rows.MAX_POOL1D.rule(call)
        return pooling_rows.MAX_POOL1D.estimates.cost(call._replace(requested=outputs))

    assert cost(300, 0) > cost(3, 0) + 297 * 300
    assert cost(2**40, 2**39) < 10 * cost(600, 300)


@pytest.mark.parametrize(
    ("row", "inputs", "parameters", "reason"),
    [
        (pooling_rows.AVG_POOL1D, (i64(2, 5, 6),), LINE, "x is int64"),
        (
            pooling_rows.MAX_POOL1D_WITH_INDICES_BACKWARD,
            (f32(2, 5, 6), f32(2, 5, 2), f32(2, 5, 2)),
            LINE | {"dilation": 1},
            "indices is float32",
        ),
        (
            pooling_rows.MAX_POOL1D_WITH_INDICES_BACKWARD,
            (f32(2, 5, 6), f16(2, 5, 2), i64(2, 5, 2)),
            LINE | {"dilation": 1},
            "grad is float16",
        ),
        (floats.GRID_SAMPLE2D, (f32(2, 3, 4, 5), f16(2, 6, 7, 2)), {}, "grid is float16"),
    ],
    ids=str,
)
def test_images_are_floats_and_indices_integers(
    row: Row, inputs: Any, parameters: Any, reason: str
) -> None:
    with pytest.raises(DTypeMismatch, match=reason):
        made(row, *inputs, **parameters)


@pytest.mark.parametrize(
    ("row", "inputs", "parameters", "reason"),
    [
        (
            pooling_rows.MAX_POOL1D_WITH_INDICES_BACKWARD,
            (f32(2, 5, 6), f32(2, 5, 3), i64(2, 5, 2)),
            LINE | {"dilation": 1},
            "grad is",
        ),
        (
            pooling_rows.ADAPTIVE_AVG_POOL2D_BACKWARD,
            (f32(2, 5, 6, 3), f32(2, 5, 4)),
            {},
            "must have 4 dimensions",
        ),
        (floats.GRID_SAMPLE2D, (f32(2, 3, 4, 5), f32(2, 6, 2)), {}, "must have 4 dimensions"),
    ],
    ids=str,
)
def test_gradients_and_grids_have_the_axes_of_the_image(
    row: Row, inputs: Any, parameters: Any, reason: str
) -> None:
    with pytest.raises(ShapeMismatch, match=reason):
        made(row, *inputs, **parameters)
