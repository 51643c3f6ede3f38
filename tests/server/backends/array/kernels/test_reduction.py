"""Tests of reductions and running reductions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from burn_remote_protocol.errors import ShapeMismatch, UsageError
from support.elements import FLOATS, INTEGERS, NUMBERS, arrays, assert_same, shapes, wrapped
from support.kernels import Array, compute, new_session, received, sent, signature, spec_of

FILLED = hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=4)
TOTALS: dict[str, Any] = {"Sum": np.sum, "Prod": np.prod, "Mean": np.mean}
EXTREMES = {"Max": np.max, "Min": np.min}
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-12}


def along(name: str, tensor: Array, axis: int) -> Array:
    result: Array = compute(f"Numeric.{name}Dim", tensor, axis=axis, accumulator_len=1)
    return result


@given(st.data(), st.sampled_from(INTEGERS))
def test_sums_and_products_of_integers_wrap_around(data: st.DataObject, dtype: Any) -> None:
    tensor = data.draw(arrays(dtype))
    exact = tensor.astype(object)

    assert_same(compute("Numeric.Sum", tensor), wrapped([sum(exact.reshape(-1))], dtype))
    assert_same(compute("Numeric.Prod", tensor), wrapped([math.prod(exact.reshape(-1))], dtype))
    for axis in range(tensor.ndim):
        sums = np.add.reduce(exact, axis=axis, keepdims=True)
        assert_same(along("Sum", tensor, axis), wrapped(sums, dtype))
        products = np.multiply.reduce(exact, axis=axis, keepdims=True)
        assert_same(along("Prod", tensor, axis), wrapped(products, dtype))


@given(st.data(), st.sampled_from(FLOATS), st.sampled_from(["Sum", "Prod", "Mean"]))
def test_sums_products_and_means_of_floating_point_numbers(
    data: st.DataObject, dtype: Any, name: str
) -> None:
    tensor = data.draw(arrays(dtype, FILLED, finite=True))
    if name == "Prod":
        # At most 2 each, so that no intermediate product overflows float32.
        tensor = (tensor.astype(np.float64) / 500).astype(dtype)
    function = TOTALS[name]
    wide = tensor.astype(np.float64)

    bound = TOLERANCE[str(dtype)]
    for seen, exact in (
        (compute(f"Numeric.{name}", tensor), function(wide).reshape(1)),
        (along(name, tensor, 0), function(wide, axis=0, keepdims=True)),
    ):
        with np.errstate(all="ignore"):
            right = exact.astype(dtype)
        np.testing.assert_allclose(seen.astype(float), right.astype(float), bound, bound * 4000)


def test_low_precision_is_summed_in_float32() -> None:
    tensor = np.full(5000, 100, dtype=np.float16)

    assert compute("Numeric.Mean", tensor).tolist() == [100]
    assert compute("Numeric.Sum", tensor).tolist() == [np.inf]
    assert along("Sum", np.ones((3, 2000), np.float16), 1).tolist() == [[2000]] * 3


@given(st.data(), st.sampled_from([dtype for dtype in INTEGERS if dtype.itemsize < 8]))
def test_means_of_integers_are_rounded_toward_zero(data: st.DataObject, dtype: Any) -> None:
    tensor = data.draw(arrays(dtype, FILLED))
    exact = tensor.astype(object)

    total, count = sum(exact.reshape(-1)), tensor.size
    mean = abs(total) // count * (1 if total >= 0 else -1)
    assert_same(compute("Numeric.Mean", tensor), np.array([mean], dtype))
    sums = np.add.reduce(exact, axis=0, keepdims=True)
    means = np.abs(sums) // tensor.shape[0] * np.where(sums >= 0, 1, -1)
    assert_same(along("Mean", tensor, 0), wrapped(means, dtype))


def test_an_empty_tensor_has_a_sum_and_a_product_but_no_integer_mean() -> None:
    floats, integers = np.empty((2, 0), np.float32), np.empty((2, 0), np.int32)

    assert compute("Numeric.Sum", integers).tolist() == [0]
    assert along("Prod", floats, 1).tolist() == [[1], [1]]
    assert np.isnan(along("Mean", floats, 1)).all()
    assert np.isnan(compute("Numeric.Mean", floats)).all()
    with pytest.raises(UsageError, match="mean of no integers is undefined"):
        compute("Numeric.Mean", integers)


@given(st.data(), st.sampled_from(NUMBERS), st.sampled_from(sorted(EXTREMES)))
def test_extremes_are_those_of_numpy_and_nan_wins(
    data: st.DataObject, dtype: Any, name: str
) -> None:
    tensor = data.draw(arrays(dtype, FILLED))
    wide = tensor.astype(np.float64) if dtype in FLOATS else tensor

    assert_same(compute(f"Numeric.{name}", tensor), EXTREMES[name](wide).reshape(1).astype(dtype))
    axis = data.draw(st.integers(0, tensor.ndim - 1))
    lines = EXTREMES[name](wide, axis=axis, keepdims=True).astype(dtype)
    assert_same(along(name, tensor, axis), lines)


@given(st.data(), st.sampled_from(INTEGERS))
def test_the_largest_absolute_value(data: st.DataObject, dtype: Any) -> None:
    tensor = data.draw(arrays(dtype, FILLED))

    sizes = wrapped(np.abs(tensor.astype(object)), dtype)
    assert_same(compute("Numeric.MaxAbs", tensor), sizes.max().reshape(1))
    assert_same(along("MaxAbs", tensor, 0), sizes.max(axis=0, keepdims=True))


@pytest.mark.parametrize("name", ["Max", "Min", "MaxAbs"])
def test_an_empty_tensor_has_no_extreme(name: str) -> None:
    empty = np.empty((0, 3), np.float32)

    with pytest.raises(ShapeMismatch, match="is empty"):
        compute(f"Numeric.{name}", empty)
    with pytest.raises(ShapeMismatch, match="axis 0"):
        along(name, empty, 0)
    assert along(name, empty, 1).shape == (0, 1)


@given(st.data(), st.sampled_from(INTEGERS))
def test_running_sums_and_products_wrap_around(data: st.DataObject, dtype: Any) -> None:
    tensor = data.draw(arrays(dtype, shapes.filter(bool)))
    axis = data.draw(st.integers(0, tensor.ndim - 1))
    exact = tensor.astype(object)

    sums = np.add.accumulate(exact, axis=axis)
    assert_same(compute("Numeric.CumSum", tensor, axis=axis), wrapped(sums, dtype))
    products = np.multiply.accumulate(exact, axis=axis)
    assert_same(compute("Numeric.CumProd", tensor, axis=axis), wrapped(products, dtype))


@given(st.data(), st.sampled_from(NUMBERS))
def test_running_extremes_agree_with_numpy(data: st.DataObject, dtype: Any) -> None:
    tensor = data.draw(arrays(dtype, FILLED))
    axis = data.draw(st.integers(0, tensor.ndim - 1))
    wide = tensor.astype(np.float64) if dtype in FLOATS else tensor

    for name, function in (("CumMin", np.minimum), ("CumMax", np.maximum)):
        expected = function.accumulate(wide, axis=axis).astype(dtype)
        assert_same(compute(f"Numeric.{name}", tensor, axis=axis), expected)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(500, 20), (2, 300, 33), (10, 2000)])
def test_extremes_of_many_rows_include_infinities_and_nan(
    dtype: Any, shape: tuple[int, ...]
) -> None:
    random = np.random.default_rng(0)
    tensor = random.normal(0, 10, shape).astype(dtype)
    tensor[..., ::5, 3] = -np.inf
    tensor[..., ::6, 4] = np.inf
    tensor[..., ::7, 5] = np.nan
    tensor[0] = -np.inf

    for name, extreme in EXTREMES.items():
        for x in (tensor, tensor[..., ::-1], tensor.swapaxes(0, -1)):
            # NumPy warns about NaN in bfloat16.
            expected = extreme(x.astype(np.float64), axis=-1, keepdims=True).astype(dtype)
            assert_same(along(name, x, x.ndim - 1), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("length", [2, 10, 64, 1500])
def test_a_kernel_finds_the_same_sign_of_zero_if_it_gets_only_some_of_the_rows(
    dtype: Any, length: int
) -> None:
    random = np.random.default_rng(0)
    tensor = np.where(random.integers(0, 2, (2000, length)), dtype(0), dtype(-0.0))

    for name in EXTREMES:
        signed = signature(f"Numeric.{name}Dim", spec_of(tensor), axis=1, accumulator_len=1)
        run = new_session().bind(signed)
        whole = received(run(sent(tensor)))
        for first in (0, 2, 1998):
            rows = slice(first, first + 2)
            assert received(run(sent(tensor[rows]))).tobytes() == whole[rows].tobytes()
