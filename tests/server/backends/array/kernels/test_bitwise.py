"""Tests of the bits of integers."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from support.elements import INTEGERS, arrays, assert_same, pairs, wrapped
from support.kernels import compute

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
def test_bits_are_combined_as_pythons(data: st.DataObject, dtype: Any, name: str) -> None:
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
