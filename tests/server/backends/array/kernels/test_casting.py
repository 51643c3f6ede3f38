"""Tests of conversions between dtypes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.tensors import TensorSpec
from support.elements import BOOL, FLOATS, INTEGERS, NUMBERS, arrays, assert_same, wrapped
from support.exact_rounding import exact_cast
from support.kernels import Array, compute, on_host, spec_of
from support.subnormals import as_computed, flushed


def like(array: Array, dtype: Any) -> TensorSpec:
    return TensorSpec(array.shape, spec_of(np.empty(0, dtype)).dtype)


def saturated(value: float, dtype: Any) -> int:
    """Convert a floating-point number to an integer as Rust's ``as`` does."""
    limits = np.iinfo(dtype)
    if math.isnan(value):
        return 0
    if math.isinf(value):
        return limits.max if value > 0 else limits.min
    return min(max(int(value), limits.min), limits.max)


@given(st.data(), st.sampled_from(INTEGERS), st.sampled_from(INTEGERS))
def test_conversions_between_integers_wrap_around(
    data: st.DataObject, source: Any, target: Any
) -> None:
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
        assert_same(seen, expected_cast(tensor, target))


@given(st.data(), st.sampled_from(INTEGERS), st.sampled_from(FLOATS))
def test_integers_become_the_nearest_number(data: st.DataObject, source: Any, target: Any) -> None:
    tensor = data.draw(arrays(source))

    seen = compute("Int.IntoFloat", tensor, out=like(tensor, target))

    with np.errstate(all="ignore"):
        assert_same(seen, expected_cast(tensor, target))


def expected_cast(tensor: Array, target: Any) -> Array:
    """Return the exact conversion; to or from float64, of the numbers that the device computes."""
    if np.dtype(np.float64) not in (tensor.dtype, target):
        return exact_cast(tensor, target)
    return as_computed(exact_cast(as_computed(tensor), target))


def telling(dtype: Any) -> Array:
    """Return numbers next to midpoints and range limits, which reveal double rounding."""
    if dtype.kind == "b":
        return np.array([True, False])
    signs = [1] if dtype.kind == "u" else [1, -1]
    if dtype in FLOATS:
        values = [0.0, 1.0, 0.1, 65504, 65519.99, 65520, 65536, 3.3e38, 3.4e38, 1e300, 2.0**-25]
        values += [2.0**-126, 2.0**-133, 2.0**-134 * 1.5, 2.0**63, 2.0**64, 300.7, np.inf, np.nan]
        # A midpoint of each short format, and numbers slightly above and below it.
        for bits in (8, 11, 24):
            for even in (1.0, 1 + 2.0 ** (1 - bits)):
                for exponent in (-130, -20, -1, 0, 5, 100):
                    for bit in (30, 40, 52):
                        middle = even + 2.0**-bits
                        parts = (middle, middle + 2.0**-bit, middle - 2.0**-bit)
                        values += [part * 2.0**exponent for part in parts]
        with np.errstate(all="ignore"):
            return np.array([sign * value for value in values for sign in signs]).astype(dtype)
    limits = np.iinfo(dtype)
    whole = {0, 1, int(limits.max), int(limits.min), int(limits.max) - 1}
    for top in range(1, dtype.itemsize * 8):
        for bits in (8, 11, 24, 53):
            for even in (0, 1):
                middle = 2**top + even * 2 ** max(top - bits + 1, 0) + 2 ** max(top - bits, 0)
                whole |= {
                    sign * (middle + by) for by in (-1, 0, 1, 2**11, 2**12 + 1) for sign in signs
                }
    return np.array([one for one in sorted(whole) if limits.min <= one <= limits.max], dtype)


@pytest.mark.parametrize("target", NUMBERS, ids=str)
@pytest.mark.parametrize("source", (*NUMBERS, BOOL), ids=str)
def test_every_pair_of_dtypes_converts_as_exact_arithmetic_does(source: Any, target: Any) -> None:
    tensor = telling(source)
    kind, wanted = ("Float" if dtype in FLOATS else "Int" for dtype in (source, target))
    name = "Base.Cast" if kind == wanted else f"{kind}.Into{wanted}"
    if source == BOOL:
        name = f"Bool.Into{wanted}"

    seen = compute(name, tensor, out=like(tensor, target))

    assert_same(seen, expected_cast(tensor, target))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_oracle_for_devices_that_flush_changes_only_their_subnormals(dtype: Any) -> None:
    keeps = [0.0, -0.0, 2.0**-14, -(2.0**-24), 2.0**-126, np.inf, np.nan, 1.5]
    subnormals = [2.0**-133, -(2.0**-127)]
    with np.errstate(all="ignore"):
        tensor = np.array([*keeps, *subnormals]).astype(dtype)

    seen = flushed(tensor)

    is_affected = dtype.itemsize < 8 and dtype != np.float16
    expected = [*keeps, 0.0, -0.0] if is_affected else [*keeps, *subnormals]
    with np.errstate(all="ignore"):
        assert_same(seen, np.array(expected).astype(dtype))
    assert np.signbit(seen[-1])
    assert not np.signbit(seen[-2])


@pytest.mark.parametrize("target", INTEGERS + FLOATS, ids=str)
def test_bools_become_one_and_zero(target: Any) -> None:
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
