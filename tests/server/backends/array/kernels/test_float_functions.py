"""Tests of functions of floating-point numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_server.backends.array.kernels import error_function
from support.elements import FLOATS, arrays, assert_same
from support.kernels import Array, compute

TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-6, "float64": 1e-13}
ROUNDED: dict[str, Callable[[Any], Any]] = {
    "Round": round,
    "Floor": math.floor,
    "Ceil": math.ceil,
    "Trunc": math.trunc,
}


def logarithm(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf if value == 0 else math.nan


def logarithm_beyond_1(value: float) -> float:
    return math.log1p(value) if value > -1 else -math.inf if value == -1 else math.nan


def reciprocal(value: float) -> float:
    return 1 / value if value else math.copysign(math.inf, value)


def inverse_hyperbolic_tangent(value: float) -> float:
    return math.copysign(math.inf, value) if abs(value) == 1 else math.atanh(value)


FUNCTIONS: dict[str, Callable[[float], float]] = {
    "Exp": math.exp,
    "Log": logarithm,
    "Log1p": logarithm_beyond_1,
    "Erf": math.erf,
    "Sqrt": math.sqrt,
    "Recip": reciprocal,
    "Cos": math.cos,
    "Cosh": math.cosh,
    "Sin": math.sin,
    "Sinh": math.sinh,
    "Tan": math.tan,
    "Tanh": math.tanh,
    "ArcCos": math.acos,
    "ArcCosh": math.acosh,
    "ArcSin": math.asin,
    "ArcSinh": math.asinh,
    "ArcTan": math.atan,
    "ArcTanh": inverse_hyperbolic_tangent,
}


def defined(function: Callable[[float], float], value: float) -> float:
    """Wrap a function: NaN outside its domain, infinity on overflow."""
    try:
        return function(value)
    except OverflowError:
        # Of these functions only the odd sinh is negative where it overflows.
        return math.copysign(math.inf, value) if function is math.sinh else math.inf
    except ValueError:
        return math.nan


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_functions_are_those_of_the_standard_library(name: str, dtype: Any) -> None:
    values = [-1e4, -11, -3, -1, -0.7, -1e-3, -0.0, 0.0, 1e-3, 0.3, 1, 1.7, 2.5, 9, 1e4]
    tensor = np.array(values, dtype).reshape(5, 3)

    seen = compute(f"Float.{name}", tensor)

    exact = [defined(FUNCTIONS[name], float(value)) for value in tensor.reshape(-1)]
    with np.errstate(over="ignore"):
        expected = np.array(exact).astype(dtype).astype(np.float64).reshape(5, 3)
    bound = TOLERANCE[str(dtype)]
    np.testing.assert_allclose(seen.astype(np.float64), expected, bound, bound * 1e-3)


@given(st.data(), st.sampled_from(FLOATS), st.sampled_from(sorted(ROUNDED)))
def test_rounding_is_exact_and_halves_are_rounded_to_even(
    data: st.DataObject, dtype: Any, name: str
) -> None:
    tensor = data.draw(arrays(dtype, finite=True))

    expected = [ROUNDED[name](float(value)) for value in tensor.reshape(-1)]
    seen = compute(f"Float.{name}", tensor)
    assert_same(seen, np.array(expected, np.float64).astype(dtype).reshape(tensor.shape))


def test_halves_are_rounded_to_even() -> None:
    tensor = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5], np.float32)

    assert compute("Float.Round", tensor).tolist() == [-2, -2, 0, 0, 2, 2]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_angle_of_a_point_has_all_four_quadrants(dtype: Any) -> None:
    y, x = np.array([1, 1, -1, -1], dtype), np.array([1, -1, -1, 1], dtype)

    seen = compute("Float.ArcTan2", y, x)

    expected = np.array([1, 3, -3, -1]) * math.pi / 4
    np.testing.assert_allclose(seen.astype(np.float64), expected, TOLERANCE[str(dtype)])


def many(dtype: Any) -> Array:
    """Return numbers around the limits of each range of the approximation."""
    ends = [0.84375, 1.25, 1 / 0.35, 3.95, 4, 6]
    near = [np.nextafter(end, target) for end in ends for target in (0, end, 10)]
    far = [0.0, 1e-310, 1e-30, 1e-8, 7, 30, 1e300, np.inf, np.nan]
    small = np.geomspace(1e-37, 1, 10_000)
    numbers = np.concatenate([np.linspace(0, 6.5, 40_000), small, near, far])
    with np.errstate(over="ignore"):
        return np.concatenate([numbers, -numbers]).astype(dtype)


@pytest.mark.parametrize(("dtype", "units", "units_of_small"), [("f8", 2, 2), ("f4", 7, 4)])
def test_the_error_function_has_the_accuracy_that_it_states(
    dtype: str, units: int, units_of_small: int
) -> None:
    numbers = many(dtype)
    assert numbers.size > 2 * error_function.BLOCK

    seen = compute("Float.Erf", numbers)

    exact = np.array([math.erf(float(value)) for value in numbers])
    # Below 1 where it rounds to 1: the spacing just above 1 is twice as wide.
    below_1 = np.minimum(np.abs(exact), np.nextafter(np.dtype(dtype).type(1), 0))
    errors = np.abs(seen.astype(np.float64) - exact) / np.spacing(below_1.astype(dtype))
    assert np.isnan(seen[np.isnan(numbers)]).all()
    assert np.nanmax(errors) <= units
    assert np.nanmax(errors[np.abs(numbers) < 0.25]) <= units_of_small
    assert np.nanmax(np.abs(seen)) == 1
    assert np.signbit(compute("Float.Erf", np.array([-0.0], dtype))).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sigmoid_keeps_full_precision_on_both_sides_without_a_selection(
    dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def where(*arguments: Any) -> Any:
        raise AssertionError("branches on random signs take longer than a second exp")

    numbers = np.array([-np.inf, -60, -8, -1, -0.0, 0, 1, 8, 60, np.inf, np.nan]).astype(dtype)
    monkeypatch.setattr(np, "where", where)
    seen = compute("Activation.Sigmoid", numbers)
    monkeypatch.undo()

    exact = 1 / (1 + np.exp(-numbers.astype(np.float64)))
    np.testing.assert_allclose(
        seen.astype(np.float64), exact, rtol=TOLERANCE[str(np.dtype(dtype))], atol=1e-7
    )
