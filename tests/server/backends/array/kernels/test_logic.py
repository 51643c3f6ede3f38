"""Tests of comparisons, masks, and logical and bitwise operations."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.elements import BOOL, FLOATS, INTEGERS, NUMBERS, arrays, assert_same, pairs, wrapped
from support.kernels import compute

ORDER: dict[str, Callable[[Any, Any], Any]] = {
    "Greater": operator.gt,
    "GreaterEqual": operator.ge,
    "Lower": operator.lt,
    "LowerEqual": operator.le,
}


@given(st.data(), st.sampled_from(NUMBERS), st.sampled_from(sorted(ORDER)))
def test_order_is_that_of_pythons_numbers(data: st.DataObject, dtype: Any, name: str) -> None:
    lhs, rhs = data.draw(pairs(dtype))

    with np.errstate(invalid="ignore"):
        expected = ORDER[name](lhs.astype(object), rhs.astype(object)).astype(bool)
    assert_same(compute(f"Numeric.{name}", lhs, rhs), expected)


@given(st.data(), st.sampled_from((*NUMBERS, BOOL)))
def test_equality_is_that_of_pythons_values(data: st.DataObject, dtype: Any) -> None:
    lhs, rhs = data.draw(pairs(dtype))

    expected = np.array(lhs.astype(object) == rhs.astype(object), dtype=bool)
    assert_same(compute("Base.Equal", lhs, rhs), expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_comparison_rounds_its_scalar_to_the_tensors_dtype(dtype: Any) -> None:
    tensor = np.array([0.1, 0.2, np.nan], dtype)

    for name, expected in {
        "Base.EqualElem": [True, False, False],
        "Numeric.GreaterElem": [False, True, False],
        "Numeric.GreaterEqualElem": [True, True, False],
        "Numeric.LowerElem": [False, False, False],
        "Numeric.LowerEqualElem": [True, False, False],
    }.items():
        assert compute(name, tensor, rhs=0.1).tolist() == expected


@pytest.mark.parametrize("rhs", [True, 1, 1.0])
def test_bools_compare_with_numbers(rhs: float) -> None:
    tensor = np.array([True, False])

    assert compute("Base.EqualElem", tensor, rhs=rhs).tolist() == [True, False]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_and_infinity_are_found(dtype: Any) -> None:
    tensor = np.array([np.nan, np.inf, -np.inf, 1], dtype)

    assert compute("Float.IsNan", tensor).tolist() == [True, False, False, False]
    assert compute("Float.IsInf", tensor).tolist() == [False, True, True, False]


@given(st.data())
def test_bools_are_combined(data: st.DataObject) -> None:
    lhs, rhs = data.draw(pairs(BOOL))

    assert_same(compute("Bool.And", lhs, rhs), lhs & rhs)
    assert_same(compute("Bool.Or", lhs, rhs), lhs | rhs)
    assert_same(compute("Bool.Not", lhs), ~lhs)


@given(st.data(), st.sampled_from((*NUMBERS, BOOL)))
def test_masks_choose_between_elements_and_broadcast(data: st.DataObject, dtype: Any) -> None:
    tensor, value = data.draw(pairs(dtype))
    mask = data.draw(arrays(BOOL, np.broadcast_shapes(tensor.shape, value.shape)))

    seen = compute("Base.MaskWhere", tensor, mask, value)
    assert_same(seen, np.where(mask, value, tensor))
    filled = compute("Base.MaskFill", tensor, mask, value=1)
    assert_same(filled, np.where(mask, np.ones((), dtype), tensor))


def test_a_mask_of_more_dimensions_repeats_the_tensor() -> None:
    tensor, mask = np.array([1, 2], dtype=np.int16), np.array([[True, False], [False, True]])

    assert compute("Base.MaskFill", tensor, mask, value=-1).tolist() == [[-1, 2], [1, -1]]


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("shape", [(64, 100), (3, 40_000)])
def test_large_tensors_are_erased_bit_by_bit_as_elements_are_replaced(
    dtype: Any, shape: tuple[int, int]
) -> None:
    random = np.random.default_rng(0)
    tensor = random.integers(-100, 100, shape).astype(dtype)
    if dtype in FLOATS:
        tensor.reshape(-1)[::7] = np.nan
        tensor.reshape(-1)[1::7] = -np.inf
    mask = random.integers(0, 2, shape).astype(bool)
    kept = tensor.copy()

    for x, hidden in ((tensor, mask), (tensor.T, mask.T), (tensor, mask[:1])):
        expected = np.where(hidden, np.zeros((), dtype), x)
        assert compute("Base.MaskFill", x, hidden, value=0).tobytes() == expected.tobytes()
    assert tensor.tobytes() == kept.tobytes()


COMBINED: dict[str, Callable[[Any, Any], Any]] = {
    "BitwiseAnd": operator.and_,
    "BitwiseOr": operator.or_,
    "BitwiseXor": operator.xor,
}
SHIFTED: dict[str, Callable[[Any, Any], Any]] = {
    "BitwiseLeftShift": operator.lshift,
    "BitwiseRightShift": operator.rshift,
}


@given(st.data(), st.sampled_from(INTEGERS), st.sampled_from(sorted(COMBINED)))
def test_bitwise_operations_agree_with_python(data: st.DataObject, dtype: Any, name: str) -> None:
    lhs, rhs = data.draw(pairs(dtype))

    expected = COMBINED[name](lhs.astype(object), rhs.astype(object))
    assert_same(compute(f"Int.{name}", lhs, rhs), wrapped(expected, dtype))


@given(st.data(), st.sampled_from(INTEGERS), st.integers(-(2**63), 2**63 - 1))
def test_bits_are_combined_with_a_scalar_that_wraps_around(
    data: st.DataObject, dtype: Any, scalar: int
) -> None:
    lhs = data.draw(arrays(dtype))

    for name, function in COMBINED.items():
        expected = function(lhs.astype(object), scalar)
        seen = compute(f"Int.{name}Scalar", lhs, rhs=scalar)
        assert_same(seen, wrapped(expected, dtype))


@given(st.data(), st.sampled_from(INTEGERS))
def test_a_shift_is_taken_modulo_64_and_may_exceed_the_width(
    data: st.DataObject, dtype: Any
) -> None:
    lhs, rhs = data.draw(pairs(dtype))

    for name, function in SHIFTED.items():
        exact = function(lhs.astype(object), rhs.astype(object) & 63)
        assert_same(compute(f"Int.{name}", lhs, rhs), wrapped(exact, dtype))


@given(st.data(), st.sampled_from(INTEGERS), st.integers(0, 127))
def test_a_shift_by_a_scalar_is_one_by_a_tensor(
    data: st.DataObject, dtype: Any, shift: int
) -> None:
    lhs = data.draw(arrays(dtype))

    for name, function in SHIFTED.items():
        exact = function(lhs.astype(object), shift & 63)
        seen = compute(f"Int.{name}Scalar", lhs, rhs=shift)
        assert_same(seen, wrapped(exact, dtype))


@given(st.data(), st.sampled_from(INTEGERS))
def test_all_bits_are_inverted(data: st.DataObject, dtype: Any) -> None:
    tensor = data.draw(arrays(dtype))

    expected = wrapped(~tensor.astype(object), dtype)
    assert_same(compute("Int.BitwiseNot", tensor), expected)
