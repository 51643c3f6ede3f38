"""Tests of turning elements into those of another dtype."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.tensors import TensorSpec
from support.elements import BOOL, FLOATS, INTEGERS, arrays, assert_same, wrapped
from support.kernels import Array, compute, on_host, spec_of


def like(array: Array, dtype: Any) -> TensorSpec:
    return TensorSpec(array.shape, spec_of(np.empty(0, dtype)).dtype)


def saturated(value: float, dtype: Any) -> int:
    """Return what Rust's ``as`` makes of a floating-point number."""
    limits = np.iinfo(dtype)
    if math.isnan(value):
        return 0
    if math.isinf(value):
        return limits.max if value > 0 else limits.min
    return min(max(int(value), limits.min), limits.max)


@given(st.data(), st.sampled_from(INTEGERS), st.sampled_from(INTEGERS))
def test_integers_wrap_around_to_others(data: st.DataObject, source: Any, target: Any) -> None:
    tensor = data.draw(arrays(source))

    seen = compute("Base.Cast", tensor, out=like(tensor, target))

    assert_same(seen, wrapped(tensor.astype(object), target))


@given(st.data(), st.sampled_from(FLOATS), st.sampled_from(INTEGERS))
def test_floating_point_numbers_saturate(data: st.DataObject, source: Any, target: Any) -> None:
    tensor = data.draw(arrays(source))

    seen = compute("Float.IntoInt", tensor, out=like(tensor, target))

    expected = [saturated(float(value), target) for value in tensor.reshape(-1)]
    assert_same(seen, np.array(expected, target).reshape(tensor.shape))


@pytest.mark.parametrize("target", INTEGERS, ids=str)
def test_numbers_at_the_ends_of_the_range_saturate_exactly(target: Any) -> None:
    limits = np.iinfo(target)
    ends = [float(limits.min), float(limits.max), float(limits.max) + 1, -0.9, 0.9, np.nan]
    tensor = np.array([*ends, np.nextafter(float(limits.max), 0)])

    seen = compute("Float.IntoInt", tensor, out=like(tensor, target))

    assert seen.tolist() == [saturated(value, target) for value in tensor.tolist()]


@given(st.data(), st.sampled_from(FLOATS), st.sampled_from(FLOATS))
def test_floating_point_numbers_are_rounded_once(
    data: st.DataObject, source: Any, target: Any
) -> None:
    tensor = data.draw(arrays(source))

    seen = compute("Base.Cast", tensor, out=like(tensor, target))

    with np.errstate(all="ignore"):
        assert_same(seen, tensor.astype(target))


@given(st.data(), st.sampled_from(INTEGERS), st.sampled_from(FLOATS))
def test_integers_become_the_nearest_number(data: st.DataObject, source: Any, target: Any) -> None:
    tensor = data.draw(arrays(source))

    seen = compute("Int.IntoFloat", tensor, out=like(tensor, target))

    with np.errstate(all="ignore"):
        assert_same(seen, tensor.astype(target))


@pytest.mark.parametrize("target", INTEGERS + FLOATS, ids=str)
def test_truth_values_become_one_and_zero(target: Any) -> None:
    tensor = np.array([[True], [False]])
    name = "Bool.IntoInt" if target in INTEGERS else "Bool.IntoFloat"

    seen = compute(name, tensor, out=like(tensor, target))

    assert seen.tolist() == [[1], [0]]


@on_host
def test_a_cast_to_the_same_dtype_shares_memory() -> None:
    tensor = np.arange(3, dtype=np.float32)

    assert np.shares_memory(compute("Base.Cast", tensor, out=spec_of(tensor)), tensor)
    flags = np.array([True, False])
    assert np.shares_memory(compute("Base.Cast", flags, out=like(flags, BOOL)), flags)
