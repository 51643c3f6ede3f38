"""Max pooling follows the definition; gradients go to the maximum's position."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from burn_remote_protocol.dtypes import I32, I64
from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch
from burn_remote_protocol.tensors import TensorSpec
from support.gradients import numeric_gradient
from support.layers import Pooling, poolings, reads
from support.module_kernels import BFLOAT16, Array, call_kernel, normal, run, spec_of


def pool(layer: Pooling) -> tuple[Array, Array]:
    """Return maxima and indices by definition: -inf and -1 where a window is empty."""
    shape = (*layer.x.shape[:2], *layer.outputs)
    best, where = np.full(shape, -np.inf), np.full(shape, -1)
    sizes = layer.x.shape[2:]
    for window, _, place in reads(sizes, layer.outputs, *layer.geometry):
        flat = int(np.ravel_multi_index(place, sizes))
        for plane in np.ndindex(*layer.x.shape[:2]):
            value, held = layer.x[plane + place], plane + window
            if where[held] < 0 or value > best[held]:
                best[held], where[held] = value, flat
    return best, where


@given(poolings())
@settings(deadline=None)
def test_maxima_and_indices_match_their_definition(layer: Pooling) -> None:
    best, where = pool(layer)
    plain = run(f"MaxPool{layer.rank}d", layer.x, **layer.options(dilated=True))
    np.testing.assert_array_equal(plain, best)
    requested = (spec_of(best), TensorSpec(best.shape, I32))
    name = f"MaxPool{layer.rank}dWithIndices"
    found, indices = run(name, layer.x, requested=requested, **layer.options(dilated=True))
    np.testing.assert_array_equal(found, best)
    np.testing.assert_array_equal(indices, where)


@given(poolings())
@settings(deadline=None, max_examples=40)
def test_gradients_match_finite_differences(layer: Pooling) -> None:
    # Differences exceed the step by far, so the maximum's position does not change.
    x = np.random.default_rng(1).permutation(layer.x.size).astype(float).reshape(layer.x.shape)
    name, options = f"MaxPool{layer.rank}d", layer.options(dilated=True)
    best = run(name, x, **options)
    grad = np.where(np.isfinite(best), normal(2, *best.shape), 0)
    requested = (spec_of(best), TensorSpec(best.shape, I64))
    _, indices = run(f"{name}WithIndices", x, requested=requested, **options)
    found = run(f"{name}WithIndicesBackward", x, grad, indices, **options)

    def finite(x: Array) -> Array:
        found: Array = np.nan_to_num(run(name, x, **options), neginf=0.0)
        return found

    np.testing.assert_allclose(found, numeric_gradient(finite, x, grad, 0.25), atol=1e-9)


def test_the_first_of_equal_elements_in_row_major_order_wins() -> None:
    x = np.array([[0, 1], [1, 1]], np.float32).reshape(1, 1, 2, 2)
    options = two_by_two()
    requested = (TensorSpec((1, 1, 1, 1), spec_of(x).dtype), TensorSpec((1, 1, 1, 1), I64))
    _, indices = run("MaxPool2dWithIndices", x, requested=requested, **options)
    assert indices.item() == 1


def test_a_nan_wins_over_numbers_with_and_without_indices() -> None:
    x = np.array([[5, np.nan], [7, np.inf]], np.float32).reshape(1, 1, 2, 2)
    requested = (TensorSpec((1, 1, 1, 1), spec_of(x).dtype), TensorSpec((1, 1, 1, 1), I64))
    best, indices = run("MaxPool2dWithIndices", x, requested=requested, **two_by_two())
    assert np.isnan(best).all()
    assert indices.item() == 1
    assert np.isnan(run("MaxPool2d", x, **two_by_two())).all()


def test_windows_far_larger_than_the_input_cost_no_more_than_it() -> None:
    x = normal(4, 2, 3, 8, 6, dtype=np.float32)
    huge: dict[str, Any] = {
        "kernel_size": (2**40, 2**40),
        "stride": (2**39, 2**40),
        "dilation": (1, 1),
    }
    options = huge | {"padding": (2**39, 2**39), "ceil_mode": False}
    best = run("MaxPool2d", x, **options)
    np.testing.assert_array_equal(best, x.max(axis=(2, 3), keepdims=True))
    requested = (spec_of(best), TensorSpec(best.shape, I64))
    found, indices = run("MaxPool2dWithIndices", x, requested=requested, **options)
    np.testing.assert_array_equal(found, best)
    flat = x.reshape(2, 3, -1).argmax(axis=2)
    np.testing.assert_array_equal(indices, flat[..., None, None])
    grad = run("MaxPool2dWithIndicesBackward", x, np.ones_like(best), indices, **options)
    np.testing.assert_array_equal(grad, x == best)


def test_an_empty_batch_costs_nothing_however_long_its_axes_are() -> None:
    x = np.zeros((0, 1, 2**33), np.float32)
    options: dict[str, Any] = {"kernel_size": 2**32, "stride": 1, "padding": 0, "dilation": 1}
    options["ceil_mode"] = False
    best = run("MaxPool1d", x, **options)
    assert best.shape == (0, 1, 2**32 + 1)
    requested = (spec_of(best), TensorSpec(best.shape, I64))
    assert run("MaxPool1dWithIndices", x, requested=requested, **options)[1].size == 0


def test_a_window_of_negative_infinities_has_an_index() -> None:
    x = np.full((1, 1, 2, 2), -np.inf, np.float32)
    requested = (TensorSpec((1, 1, 1, 1), spec_of(x).dtype), TensorSpec((1, 1, 1, 1), I64))
    _, indices = run("MaxPool2dWithIndices", x, requested=requested, **two_by_two())
    assert indices.item() == 0


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16])
def test_low_precision_maxima_are_elements_of_the_input(dtype: Any) -> None:
    x = normal(3, 1, 2, 4, 4, dtype=dtype)
    found = run("MaxPool2d", x, **two_by_two())
    assert set(found.reshape(-1).tolist()) <= set(x.reshape(-1).tolist())


@pytest.mark.parametrize("index", [-2, 4])
def test_an_index_outside_the_channel_is_refused(index: int) -> None:
    x, grad = np.zeros((1, 1, 2, 2)), np.zeros((1, 1, 1, 1))
    expected = rf"a value of indices is {index}, expected in -1\.\.3"
    with pytest.raises(ShapeMismatch, match=f"MaxPool2dWithIndicesBackward: {expected}"):
        call_kernel(
            "MaxPool2dWithIndicesBackward", x, grad, np.full((1, 1, 1, 1), index), **two_by_two()
        )


def test_indices_of_another_shape_or_dtype_are_refused() -> None:
    x, grad = np.zeros((1, 1, 2, 2)), np.zeros((1, 1, 1, 1))
    with pytest.raises(ShapeMismatch, match="shape of indices"):
        call_kernel(
            "MaxPool2dWithIndicesBackward", x, grad, np.zeros((1, 1, 1, 2), int), **two_by_two()
        )
    with pytest.raises(DTypeMismatch, match="indices has dtype float64, expected integers"):
        call_kernel("MaxPool2dWithIndicesBackward", x, grad, np.zeros((1, 1, 1, 1)), **two_by_two())


def two_by_two() -> dict[str, Any]:
    pairs = {"kernel_size": (2, 2), "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1)}
    return {**pairs, "ceil_mode": False}
