"""Rounding of results and of quotients, compared with exact references."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import burn_remote as br
from support.elements import assert_same
from support.exact_rounding import exact_cast, nearest
from support.kernels import BFLOAT16
from support.runners import RecordingDevice
from support.values import same

FLOATS = [np.dtype(np.float16), BFLOAT16, np.dtype(np.float32), np.dtype(np.float64)]
SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 0.1, -0.1, 0.3, 0.7, 7.0, 5.5, -5.5, 1e30, -1e30, 1e-30, 3e38, -3e38,
    2.0**24, np.inf, -np.inf, np.nan,
]  # fmt: skip


def floor_divided(a: Any, b: Any, dtype: Any) -> Any:
    """Return NumPy's quotients; for low precision, computed in float32 and rounded once."""
    wide = np.float32 if dtype.itemsize == 2 else dtype
    with np.errstate(all="ignore"):
        return (np.asarray(a).astype(wide) // np.asarray(b).astype(wide)).astype(dtype)


def alike(seen: br.Tensor, expected: Any) -> None:
    """Compare elements, and the signs of zeros."""
    array = seen.numpy()
    assert_same(array, expected)
    wide, wanted = array.astype(np.float64), expected.astype(np.float64)
    zeros = wide == 0
    np.testing.assert_array_equal(np.signbit(wide[zeros]), np.signbit(wanted[zeros]))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floor_divide_of_floats_matches_numpy(device: br.Device, dtype: Any) -> None:
    with np.errstate(all="ignore"):
        pairs = np.array([*itertools.product(SPECIAL, SPECIAL)]).astype(dtype)
    a, b = pairs[:, 0], pairs[:, 1]
    alike((br.tensor(a, device=device) // br.tensor(b, device=device)), floor_divided(a, b, dtype))
    for number in map(float, b[: len(SPECIAL)]):
        alike(br.tensor(a, device=device) // number, floor_divided(a, dtype.type(number), dtype))
        alike(number // br.tensor(b, device=device), floor_divided(dtype.type(number), b, dtype))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_floor_divide_of_floats_is_one_operation(dtype: str) -> None:
    recorded = RecordingDevice()
    x = br.ones((3,), dtype=dtype, device=recorded)
    made = len(recorded.runner.names)
    (x // x), (x // 3), (x // 0.5)
    assert recorded.runner.names[made:] == [
        "Elementwise.FloorDivide", "Elementwise.FloorDivideScalar", "Elementwise.FloorDivideScalar",
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_quotient_times_divisor_plus_remainder_is_the_dividend(
    device: br.Device, dtype: str
) -> None:
    random = np.random.default_rng(0)
    a = (random.integers(-1000, 1000, 50_000) / 10).astype(dtype)
    b = (random.integers(1, 100, 50_000) / 10).astype(dtype) * random.choice([-1, 1], 50_000)
    b = b.astype(dtype)
    x, y = br.tensor(a, device=device), br.tensor(b, device=device)

    quotient = (x // y).numpy()

    np.testing.assert_array_equal(quotient, a // b)
    np.testing.assert_allclose(b * quotient + (x % y).numpy(), a, atol=1e-4)


@pytest.mark.parametrize("exponent", range(-6, 8))
def test_floor_divide_matches_numpy_for_quotients_too_large_for_exact_integers(
    device: br.Device, exponent: int
) -> None:
    random = np.random.default_rng(exponent + 6)
    a = (random.standard_normal(20_000) * 10.0**exponent).astype(np.float32)
    b = random.standard_normal(20_000).astype(np.float32) * np.float32(1e-3)

    same(br.tensor(a, device=device) // br.tensor(b, device=device), a // b)


def test_wide_numbers_uploaded_as_bfloat16_are_rounded_once(device: br.Device) -> None:
    floats = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8, 1 + 3 * 2.0**-8 - 2.0**-40, 1e300])
    integers = np.array([2**24 + 2**16 + 1, 2**62 + 2**54 + 1, 2**62 + 2**54, -(2**60) - 2**52 - 1])
    for array in (floats, integers, np.abs(integers).astype(np.uint64)):
        expected = exact_cast(array, BFLOAT16)
        same(br.tensor(array, dtype=br.bfloat16, device=device), expected)
        same(br.tensor(array, device=device).astype(br.bfloat16), expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("value", [2**54 + 2**30 + 1, 2**62 + 2**54 + 1, -(2**62) - 2**38 - 1])
def test_an_integer_combined_with_floats_is_rounded_once(
    device: br.Device, dtype: Any, value: int
) -> None:
    expected = nearest(Fraction(value), dtype)
    filled = br.full((2,), value, dtype=dtype, device=device)
    zeros = br.zeros((2,), dtype=dtype, device=device)

    sums = [] if dtype.itemsize == 2 else [zeros + value]  # computed in float32 there
    for seen in (filled, br.mask_fill(zeros, zeros == 0, value), *sums):
        assert seen.numpy().astype(np.float64).tolist() == [expected] * 2


@pytest.mark.parametrize("num", [2, 5, 255, 1024, 1025, 1026, 5000])
@pytest.mark.parametrize("ends", [(0, 255), (-7, 3), (3, -7), (0, 100), (-(2**40), 2**40 + 1)])
def test_linspace_between_integers_is_exact(
    device: br.Device, num: int, ends: tuple[int, int]
) -> None:
    start, stop = ends
    exact = [Fraction(start * (num - 1) + (stop - start) * k, num - 1) for k in range(num)]

    seen = br.linspace(start, stop, num, dtype=br.int64, device=device)

    same(seen, np.array([int(value) for value in exact]))


@pytest.mark.parametrize("dtype", [br.int32, br.float32, br.float64, br.bfloat16], ids=str)
@pytest.mark.parametrize("num", [2, 49, 1024, 1025, 3001, 9999])
@pytest.mark.parametrize("ends", [(0.5, 7.0), (0.1, 1.1), (-3.3, 12.0), (5, 0.3)])
def test_linspace_ends_at_its_stop(
    device: br.Device, num: int, ends: tuple[float, float], dtype: br.DType
) -> None:
    start, stop = ends
    seen = br.linspace(start, stop, num, dtype=dtype, device=device).numpy()

    expected = np.array([start, stop]).astype(seen.dtype)
    assert seen[[0, -1]].tolist() == expected.tolist()
    assert len(seen) == num


def test_the_oracle_agrees_with_numpy_where_numpy_rounds_once() -> None:
    sizes = 10.0 ** np.arange(-1000, 1000).clip(-9, 9)
    values = np.random.default_rng(0).standard_normal(2000) * sizes
    for dtype in (np.dtype(np.float16), np.dtype(np.float32)):
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(exact_cast(values, dtype), values.astype(dtype))
    short = values.astype(np.float32)
    expected = short.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(exact_cast(short, BFLOAT16).astype(np.float32), expected)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_floor_divide_of_the_extreme_integers_matches_numpy(
    device: br.Device, dtype: type[np.signedinteger[Any]]
) -> None:
    limits = np.iinfo(dtype)
    a = np.array([limits.min, limits.min + 1, -7, -1, 0, 1, 7, limits.max], dtype)
    b = a[a != 0]
    first, second = np.repeat(a, len(b)), np.tile(b, len(a))
    with np.errstate(over="ignore"):
        expected = first // second
    quotient = br.tensor(first, device=device) // br.tensor(second, device=device)
    assert_same(quotient.numpy(), expected)
