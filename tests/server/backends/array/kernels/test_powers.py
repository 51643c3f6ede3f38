"""Tests of powers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.errors import UsageError
from support.elements import FLOATS, INTEGERS, arrays, assert_same, wrapped
from support.kernels import compute

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


def test_powers_with_a_fraction_exist_for_positive_numbers_only() -> None:
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
