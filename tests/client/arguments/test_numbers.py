"""Validation of numbers, and their conversion to a tensor's dtype."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import burn_remote as br
from burn_remote.arguments.numbers import (
    bounds_of,
    number_for,
    number_key,
    real_number,
    truncated_for,
    whole_for,
    whole_number,
)

INTEGERS = [br.int8, br.int16, br.int32, br.int64, br.uint8, br.uint16, br.uint32, br.uint64]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_the_bounds_of_integer_dtypes_are_numpys(dtype: br.DType) -> None:
    info = np.iinfo(str(dtype))
    assert bounds_of(dtype) == (info.min, info.max)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_within_the_bounds_are_accepted_and_others_refused(dtype: br.DType) -> None:
    least, most = bounds_of(dtype)
    assert [number_for(dtype, least), number_for(dtype, most)] == [least, most]
    for value in (least - 1, most + 1):
        with pytest.raises(br.DTypeMismatch, match=f"does not fit in {dtype}"):
            number_for(dtype, value)


@pytest.mark.parametrize(
    ("dtype", "value", "advice"),
    [
        (br.int32, 1.5, "use an integer"), (br.int32, True, "use 0 or 1"),
        (br.bool, 1, "convert the tensor first"),
        (br.DType.quantized(br.quant_scheme()), 1, "dequantize the tensor first"),
    ],
)  # fmt: skip
def test_a_number_of_another_kind_is_refused_with_advice(
    dtype: br.DType, value: Any, advice: str
) -> None:
    with pytest.raises(br.DTypeMismatch, match=advice):
        number_for(dtype, value)


@pytest.mark.parametrize("value", ["1", None, [1], np.ones(1)])
def test_an_operand_that_is_not_a_number_is_refused(value: Any) -> None:
    with pytest.raises(br.ArgumentMismatch):
        number_for(br.float32, value)


@pytest.mark.parametrize("value", [2, 2.0, np.float16(2), np.int8(2)])
def test_a_number_for_floats_becomes_a_float(value: Any) -> None:
    found = number_for(br.float32, value)
    assert type(found) is float
    assert found == 2


def test_an_integer_beyond_all_floats_is_refused() -> None:
    with pytest.raises(br.DTypeMismatch, match="too large for float64"):
        number_for(br.float64, 10**400)
    with pytest.raises(br.UsageError, match="x is too large for a float"):
        real_number("x", 10**400)


@given(st.floats(), st.floats())
def test_keys_distinguish_numbers_exactly_by_their_bits(first: float, second: float) -> None:
    same = np.float64(first).tobytes() == np.float64(second).tobytes()
    both_nan = math.isnan(first) and math.isnan(second)
    assert (number_key(first) == number_key(second)) == (same or both_nan)


def test_fractions_are_refused_or_truncated_for_integers() -> None:
    assert whole_for(br.int32, 2.0) == 2
    with pytest.raises(br.DTypeMismatch, match=r"2\.5 has a fraction, but int32 holds integers"):
        whole_for(br.int32, 2.5)
    assert [truncated_for(br.int8, 2.9), truncated_for(br.int8, -2.9)] == [2, -2]
    for value in (math.nan, math.inf, 128.5):
        with pytest.raises(br.DTypeMismatch, match="int8"):
            truncated_for(br.int8, value)


@pytest.mark.parametrize("value", [3, np.uint8(3)])
def test_integer_arguments_become_python_integers(value: Any) -> None:
    assert type(whole_number("n", value, 0, 3)) is int


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_other_integer_arguments_are_refused(value: Any) -> None:
    with pytest.raises(br.ArgumentMismatch, match="n must be an integer"):
        whole_number("n", value, 0, 3)


@pytest.mark.parametrize("value", [-1, 4, 10**30])
def test_integer_arguments_out_of_range_are_refused(value: int) -> None:
    with pytest.raises(br.UsageError, match="n must be from 0 to 3"):
        whole_number("n", value, 0, 3)
