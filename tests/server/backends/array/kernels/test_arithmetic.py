"""Tests of arithmetic, clamping and powers."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.errors import UsageError
from burn_remote_server.backends.array.kernels.arithmetic import NumericArithmetic
from support.elements import FLOATS, INTEGERS, arrays, assert_same, pairs, wrapped
from support.kernels import compute, spec_of
from support.subnormals import as_computed

EXACT: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
}


def truncated(lhs: int, rhs: int) -> int:
    quotient = abs(lhs) // abs(rhs)
    return quotient if (lhs < 0) == (rhs < 0) else -quotient


def each(function: Callable[[Any, Any], Any], lhs: Any, rhs: Any) -> Any:
    """Apply a function of Python integers to arrays, with broadcasting."""
    shape = np.broadcast_shapes(np.shape(lhs), np.shape(rhs))
    result = np.empty(shape, dtype=object)
    left, right = np.broadcast_to(lhs, shape), np.broadcast_to(rhs, shape)
    for index in np.ndindex(shape):
        result[index] = function(int(left[index]), int(right[index]))
    return result


@given(st.data(), st.sampled_from(INTEGERS), st.sampled_from(sorted(EXACT)))
def test_integers_wrap_around(data: st.DataObject, dtype: Any, name: str) -> None:
    lhs, rhs = data.draw(pairs(dtype))

    expected = wrapped(each(EXACT[name], lhs, rhs), dtype)
    assert_same(compute(f"Numeric.{name}", lhs, rhs), expected)


@given(st.data(), st.sampled_from(FLOATS), st.sampled_from([*sorted(EXACT), "Div"]))
def test_floating_point_results_are_rounded_once(
    data: st.DataObject, dtype: Any, name: str
) -> None:
    lhs, rhs = data.draw(pairs(dtype))
    functions = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}

    # Double rounding is harmless if the wide format has more than twice the digits.
    with np.errstate(all="ignore"):
        wide = dtype if dtype.itemsize == 8 else np.float64
        expected = functions[name](lhs.astype(wide), rhs.astype(wide)).astype(dtype)
    assert_same(compute(f"Numeric.{name}", lhs, rhs), as_computed(expected))


@given(st.data(), st.sampled_from(INTEGERS), st.integers(-(2**63), 2**63 - 1))
def test_a_scalar_wraps_around_to_the_integers_of_the_tensor(
    data: st.DataObject, dtype: Any, scalar: int
) -> None:
    lhs = data.draw(arrays(dtype))

    for name, function in EXACT.items():
        expected = wrapped(each(function, lhs, np.asarray(scalar, dtype=object)), dtype)
        seen = compute(f"Numeric.{name}Scalar", lhs, rhs=scalar)
        assert_same(seen, expected)


def test_a_scalar_is_not_rounded_to_low_precision_before_use() -> None:
    lhs = np.array([60_000, 1], dtype=np.float16)

    seen = compute("Numeric.MulScalar", lhs, rhs=1e-8)

    assert_same(seen, np.array([6e-4, 0], dtype=np.float16))


@given(st.data(), st.sampled_from(INTEGERS))
def test_quotients_are_rounded_toward_zero_and_remainders_have_the_divisors_sign(
    data: st.DataObject, dtype: Any
) -> None:
    lhs, rhs = data.draw(pairs(dtype))
    rhs = np.where(rhs == 0, np.ones((), dtype), rhs)

    quotients = wrapped(each(truncated, lhs, rhs), dtype)
    assert_same(compute("Numeric.Div", lhs, rhs), quotients)
    remainders = wrapped(each(operator.mod, lhs, rhs), dtype)
    assert_same(compute("Numeric.Rem", lhs, rhs), remainders)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_dividing_an_integer_by_zero_raises(dtype: Any) -> None:
    lhs, rhs = np.array([1, 2], dtype), np.array([1, 0], dtype)

    for name in ("Div", "Rem"):
        with pytest.raises(UsageError, match="division by 0"):
            compute(f"Numeric.{name}", lhs, rhs)
        with pytest.raises(UsageError, match="division by 0"):
            compute(f"Numeric.{name}Scalar", lhs, rhs=0)


def test_floating_point_remainders_have_the_divisors_sign() -> None:
    lhs = np.array([-7.5, 7.5, -7.5, 7.5], dtype=np.float32)
    rhs = np.array([2, -2, -2, 2], dtype=np.float32)

    seen = compute("Numeric.Rem", lhs, rhs)

    assert_same(seen, np.array([0.5, -0.5, -1.5, 1.5], dtype=np.float32))


def python_remainder(lhs: float, rhs: float) -> float:
    """Return the remainder as Python defines it; NaN where Python raises."""
    return lhs % rhs if rhs and math.isfinite(lhs) else math.nan


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_remainders_of_zeros_infinities_and_huge_numbers_are_pythons(dtype: Any) -> None:
    sizes = [0.0, 1e-4, 0.1, 0.5, 1.5, 7.0, 300.0, 65504.0, 3e38, np.inf, np.nan]
    with np.errstate(all="ignore"):
        numbers = np.array([sign * size for size in sizes for sign in (1, -1)]).astype(dtype)
        expected = np.array(
            [[python_remainder(float(x), float(y)) for y in numbers] for x in numbers]
        ).astype(dtype)

    seen = compute("Numeric.Rem", numbers[:, None], numbers)

    assert_same(seen, expected)
    is_number = ~np.isnan(expected.astype(np.float64))
    np.testing.assert_array_equal(np.signbit(seen)[is_number], np.signbit(expected)[is_number])
    for divisor, column in zip(numbers, expected.T, strict=True):
        assert_same(compute("Numeric.RemScalar", numbers, rhs=float(divisor)), column)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_quotients_of_the_largest_integers_are_exact(dtype: Any) -> None:
    limits = np.iinfo(dtype)
    ends = [int(limits.min), int(limits.min) + 1, int(limits.max) - 1, int(limits.max)]
    values = [*ends, int(limits.max) // 3 + 1, int(limits.max) // 2, 0, 1, 3, 7, 10]
    numbers = np.array(values + ([-1, -3, -10] if limits.min else []), dtype)
    divisors = numbers[numbers != 0]

    quotients = wrapped(each(truncated, numbers[:, None], divisors), dtype)
    assert_same(compute("Numeric.Div", numbers[:, None], divisors), quotients)
    remainders = wrapped(each(operator.mod, numbers[:, None], divisors), dtype)
    assert_same(compute("Numeric.Rem", numbers[:, None], divisors), remainders)
    for divisor, column in zip(divisors, quotients.T, strict=True):
        assert_same(compute("Numeric.DivScalar", numbers, rhs=int(divisor)), column)


@given(
    st.data(),
    st.sampled_from(INTEGERS),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**63),
)
def test_integers_are_clamped_to_limits_of_any_size(
    data: st.DataObject, dtype: Any, low: int, width: int
) -> None:
    tensor = data.draw(arrays(dtype))
    limits, high = np.iinfo(dtype), min(low + width, 2**63 - 1)

    seen = compute("Numeric.Clamp", tensor, min=low, max=high)

    # A limit outside the dtype's range is clamped to it.
    low, high = (min(max(limit, limits.min), limits.max) for limit in (low, high))
    expected = [min(max(int(value), low), high) for value in tensor.reshape(-1)]
    assert_same(seen, np.array(expected, dtype).reshape(tensor.shape))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_clamping_keeps_nan(dtype: Any) -> None:
    tensor = np.array([np.nan, -np.inf, -1, 0.5, np.inf], dtype)

    seen = compute("Numeric.Clamp", tensor, min=-0.5, max=np.inf)

    assert_same(seen, np.array([np.nan, -0.5, -0.5, 0.5, np.inf], dtype))


@pytest.mark.parametrize(
    ("low", "high", "passes"),
    [(0, np.inf, 1), (-np.inf, 6, 1), (0, 6, 2), (-np.inf, np.inf, 1)],
)
def test_an_infinite_limit_costs_no_pass(low: float, high: float, passes: int) -> None:
    tensor = np.array([np.nan, -np.inf, -1, 0.5, 7, np.inf], np.float32)
    counting = Counting()
    kernel = NumericArithmetic(counting).table()["Clamp"]

    seen = kernel(tensor, out=spec_of(tensor), min=low, max=high)

    assert_same(seen, np.clip(tensor, low, high))
    assert counting.passes == passes


class Counting:
    """NumPy with a count of applied limits."""

    def __init__(self) -> None:
        self.passes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def maximum(self, *tensors: Any, **options: Any) -> Any:
        self.passes += 1
        return np.maximum(*tensors, **options)

    def minimum(self, *tensors: Any, **options: Any) -> Any:
        self.passes += 1
        return np.minimum(*tensors, **options)


@given(st.data(), st.sampled_from(INTEGERS))
def test_the_smallest_integer_is_its_own_absolute_value(data: st.DataObject, dtype: Any) -> None:
    tensor = data.draw(arrays(dtype))

    expected = wrapped(np.abs(tensor.astype(object)), dtype)
    assert_same(compute("Numeric.Abs", tensor), expected)


TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-12}


@given(st.data(), st.sampled_from(INTEGERS), st.sampled_from(INTEGERS))
def test_powers_of_integers_wrap_around(
    data: st.DataObject, dtype: Any, exponent_dtype: Any
) -> None:
    base = data.draw(arrays(dtype, shape=(3,)))
    exponents = np.array(data.draw(st.lists(st.integers(0, 127), min_size=3, max_size=3)))

    exact = [int(value) ** int(power) for value, power in zip(base, exponents, strict=True)]
    seen = compute("Numeric.Powi", base, exponents.astype(exponent_dtype))
    assert_same(seen, wrapped(exact, dtype))


@given(st.data(), st.sampled_from(INTEGERS), st.integers(0, 200))
def test_powers_of_integers_by_a_scalar_wrap_around(
    data: st.DataObject, dtype: Any, exponent: int
) -> None:
    base = data.draw(arrays(dtype))

    exact = np.array([int(value) ** exponent for value in base.reshape(-1)], dtype=object)
    seen = compute("Numeric.PowiScalar", base, rhs=exponent)
    assert_same(seen, wrapped(exact, dtype).reshape(base.shape))


def test_a_negative_power_of_an_integer_raises() -> None:
    base = np.array([1, 2], dtype=np.int32)

    with pytest.raises(UsageError, match="negative power"):
        compute("Numeric.Powi", base, np.array([1, -1], dtype=np.int64))
    with pytest.raises(UsageError, match="exponent is -2"):
        compute("Numeric.PowiScalar", base, rhs=-2)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("exponent", [-3, -2, -1, 0, 1, 2, 3, 4])
def test_whole_powers_agree_with_multiplication(dtype: Any, exponent: int) -> None:
    base = np.array([-2.5, -1, 0.75, 1, 3], dtype)
    exponents = np.full(5, exponent, dtype=np.int32)

    expected = base.astype(np.float64) ** exponent
    tolerance = TOLERANCE[str(dtype)]
    for seen in (
        compute("Numeric.Powi", base, exponents),
        compute("Numeric.PowiScalar", base, rhs=exponent),
        compute("Float.PowfScalar", base, rhs=float(exponent)),
        compute("Float.Powf", base, exponents.astype(dtype)),
    ):
        np.testing.assert_allclose(seen.astype(np.float64), expected, rtol=tolerance)


def test_fractional_powers_of_negative_numbers_are_nan() -> None:
    base = np.array([-1, 0, 4, np.inf], dtype=np.float32)

    seen = compute("Float.PowfScalar", base, rhs=0.5)

    np.testing.assert_allclose(seen, [np.nan, 0, 2, np.inf])


@pytest.mark.parametrize("exponent_dtype", ["i4", "u4", "i8", "u8"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_powers_of_negative_numbers_have_the_sign_of_exponents_that_the_dtype_rounds(
    dtype: Any, exponent_dtype: str
) -> None:
    limits = np.iinfo(exponent_dtype)
    whole = {3, 255, 257, 2**11 + 1, 2**24, 2**24 + 1, 2**53 + 1, int(limits.max), -(2**24) - 1}
    exponents = [one for one in sorted(whole) if limits.min <= one <= limits.max]
    base = np.full(len(exponents), -1, dtype)
    expected = [-1.0 if one % 2 else 1.0 for one in exponents]

    seen = compute("Numeric.Powi", base, np.array(exponents, exponent_dtype))

    assert seen.astype(np.float64).tolist() == expected
    for one, sign in zip(exponents, expected, strict=True):
        assert float(compute("Numeric.PowiScalar", base[:1], rhs=one)[0]) == sign


def test_powers_of_negative_zeros_and_infinities_have_the_sign_of_large_exponents() -> None:
    base = np.array([-0.0, -0.0, -np.inf, -np.inf, np.nan, -2], np.float32)
    exponents = np.array([2**24 + 1, -(2**24) - 1, 2**24 + 1, 2**24, 2**24 + 1, -3], np.int64)

    seen = compute("Numeric.Powi", base, exponents)

    np.testing.assert_array_equal(seen, [-0.0, -np.inf, -np.inf, np.inf, np.nan, -0.125])
    assert np.signbit(seen[0])


@pytest.mark.parametrize(
    ("exponent", "expected"),
    [(math.nan, [1, 1]), (math.inf, [math.inf, 0]), (-1e300, [0, math.inf])],
)
def test_exponents_that_are_no_integers_convert_as_in_rust(
    exponent: float, expected: list[float]
) -> None:
    found = compute("Numeric.PowiScalar", np.array([2, 0.5], np.float32), rhs=exponent)

    assert found.tolist() == expected
