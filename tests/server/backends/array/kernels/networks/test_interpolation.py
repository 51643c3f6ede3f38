"""Interpolation follows Burn's rule for each mode, pixel by pixel."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burn_remote_protocol.errors import OperationFailed, ShapeMismatch
from support.gradients import numeric_gradient
from support.module_kernels import Array, call_kernel, normal, run

MODES = ("Nearest", "Bilinear", "Bicubic", "Lanczos3")
SIZES = st.tuples(*[st.integers(1, 6)] * 2, *[st.integers(1, 8)] * 2)


def cubic(t: float) -> float:
    a, t = -0.75, abs(t)
    if t < 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a if t < 2 else 0.0


def lanczos(t: float) -> float:
    if t == 0:
        return 1.0
    x = math.pi * t
    return 3 * math.sin(x) * math.sin(x / 3) / x**2 if abs(t) < 3 else 0.0


def weights(mode: str, size: int, n: int, o: int, aligned: bool) -> Iterator[tuple[int, float]]:
    """Yield (input, weight) of one output along one axis, unscaled for Lanczos."""
    if mode == "Nearest":
        yield o * size // n, 1.0
        return
    place = o * (size - 1) / max(n - 1, 1) if aligned else (o + 0.5) * size / n - 0.5
    low = math.floor(place)
    if mode == "Bilinear":
        low = max(low, 0)
        part = max(place - low, 0.0)
        yield low, 1 - part
        yield min(low + 1, size - 1), part
    elif mode == "Bicubic":
        for at in range(low - 1, low + 3):
            yield min(max(at, 0), size - 1), cubic(place - at)
    else:
        for at in range(low - 2, low + 4):
            if 0 <= at < size:
                yield at, lanczos(place - at)


def resize(x: Array, outputs: tuple[int, int], mode: str, aligned: bool) -> Array:
    y = np.zeros((*x.shape[:2], *outputs))
    for i, j in np.ndindex(outputs):
        total = 0.0
        for row, down in weights(mode, x.shape[2], outputs[0], i, aligned):
            for column, right in weights(mode, x.shape[3], outputs[1], j, aligned):
                y[..., i, j] += down * right * x[..., row, column]
                total += down * right
        if mode == "Lanczos3" and total != 0:
            y[..., i, j] /= total
    return y


@given(SIZES, st.sampled_from(MODES), st.booleans())
@settings(deadline=None)
def test_images_and_gradients_match_their_definition(
    sizes: tuple[int, int, int, int], mode: str, aligned: bool
) -> None:
    x, outputs = normal(1, 2, 1, *sizes[:2]), sizes[2:]
    options: dict[str, Any] = {"output_size": outputs, "mode": mode, "align_corners": aligned}
    found = run("Interpolate", x, **options)
    np.testing.assert_allclose(found, resize(x, outputs, mode, aligned), rtol=1e-9, atol=1e-9)
    grad = normal(2, *found.shape)
    back = run("InterpolateBackward", x, grad, **options)
    expected = numeric_gradient(lambda x: resize(x, outputs, mode, aligned), x, grad, step=1.0)
    np.testing.assert_allclose(back, expected, rtol=1e-8, atol=1e-8)


def test_nearest_takes_the_exact_input_although_the_ratio_of_the_sizes_rounds() -> None:
    size, outputs = 246, 60
    assert math.floor(30 * (size / outputs)) == 122  # in floats, one less than the quotient
    x = np.arange(size, dtype=np.float64).reshape(1, 1, 1, size)
    options: dict[str, Any] = {"output_size": (1, outputs), "align_corners": False}
    found = run("Interpolate", x, mode="Nearest", **options)
    assert found[0, 0, 0].tolist() == [o * size // outputs for o in range(outputs)]


@pytest.mark.parametrize("mode", MODES)
def test_a_constant_image_stays_constant(mode: str) -> None:
    options: dict[str, Any] = {"output_size": (5, 9), "mode": mode, "align_corners": False}
    found = run("Interpolate", np.full((1, 2, 4, 3), 2.5), **options)
    np.testing.assert_allclose(found, 2.5, rtol=1e-12)


def test_an_empty_batch_has_no_images() -> None:
    options: dict[str, Any] = {"output_size": (5, 9), "mode": "Bicubic", "align_corners": True}
    assert run("Interpolate", np.zeros((0, 2, 4, 3)), **options).shape == (0, 2, 5, 9)


def test_unknown_modes_and_empty_images_are_refused() -> None:
    options: dict[str, Any] = {"output_size": (2, 2), "mode": "Bicubic", "align_corners": True}
    modes = "Nearest, NearestExact, Bilinear, Bicubic, Lanczos3"
    with pytest.raises(OperationFailed, match=f"mode is 'Fancy', expected one of {modes}"):
        call_kernel("Interpolate", np.zeros((1, 1, 2, 2)), **(options | {"mode": "Fancy"}))
    with pytest.raises(ShapeMismatch, match=r"spatial size of x is \[0, 2\]"):
        call_kernel("Interpolate", np.zeros((1, 1, 0, 2)), **options)
    with pytest.raises(ShapeMismatch, match=r"output_size is \[0, 2\]"):
        call_kernel("Interpolate", np.zeros((1, 1, 2, 2)), **(options | {"output_size": (0, 2)}))
    with pytest.raises(ShapeMismatch, match=r"InterpolateBackward: shape of grad"):
        call_kernel(
            "InterpolateBackward", np.zeros((1, 1, 2, 2)), np.zeros((1, 1, 3, 2)), **options
        )


def test_an_empty_batch_costs_nothing_however_long_its_axes_are() -> None:
    x = np.zeros((0, 1, 2, 2), np.float32)
    options: dict[str, Any] = {
        "output_size": (2**20, 2**20),
        "mode": "Bicubic",
        "align_corners": False,
    }
    resized = run("Interpolate", x, **options)
    assert resized.shape == (0, 1, 2**20, 2**20)
    assert run("InterpolateBackward", x, resized, **options).shape == x.shape
