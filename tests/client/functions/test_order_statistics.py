"""Medians, quantiles, diagonals and rounding to places, compared with NumPy's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import burn_remote as br

CASES = [
    ((7,), None),
    ((8,), 0),
    ((3, 4, 5), (0, 2)),
    ((3, 4, 5), (2, 0)),
    ((3, 4, 5), None),
    ((3, 4, 5), -1),
    ((1,), None),
    ((), None),
]


def drawn(shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(0).normal(size=shape)


@pytest.mark.parametrize(("shape", "axis"), CASES)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("q", [0, 1, 0.3, [0.1, 0.5, 0.9]], ids=str)
def test_quantiles_are_numpys(shape: tuple[int, ...], axis: Any, keepdims: bool, q: Any) -> None:
    array = drawn(shape)
    found = br.quantile(br.tensor(array, device="local"), q, axis, keepdims=keepdims).numpy()
    expected = np.quantile(array, q, axis=axis, keepdims=keepdims)
    assert found.shape == np.shape(expected)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize(("shape", "axis"), CASES)
def test_medians_and_percentiles_are_numpys(shape: tuple[int, ...], axis: Any) -> None:
    array = drawn(shape)
    x = br.tensor(array, device="local")
    np.testing.assert_allclose(br.median(x, axis).numpy(), np.median(array, axis), rtol=1e-12)
    found, expected = br.percentile(x, [5, 50], axis), np.percentile(array, [5, 50], axis)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
    same: Any = np.median
    np.testing.assert_allclose(same(x, axis=axis).numpy(), np.median(array, axis), rtol=1e-12)


@pytest.mark.parametrize("array", [[1.0, math.nan, 2.0], [-math.inf, math.inf], [math.nan]])
def test_lines_with_nan_and_between_opposite_infinities_give_nan(array: list[float]) -> None:
    assert math.isnan(float(br.median(br.tensor(array, device="local"))))


def test_the_median_of_infinities_of_one_sign_is_infinite() -> None:
    assert float(br.median(br.tensor([math.inf, 1.0, math.inf, math.inf], device="local"))) == (
        math.inf
    )


@pytest.mark.parametrize(
    "array",
    [[-math.inf, 1.0], [-math.inf, -math.inf, 1.0, 2.0], [-3e38, 3e38], [3e38, 3.2e38], [0.1, 0.1]],
)
def test_a_median_is_half_way_also_where_the_distance_is_infinite(array: list[float]) -> None:
    values = np.asarray(array, np.float32)
    expected = np.median(values.astype(np.float64)).astype(np.float32)
    assert float(br.median(br.tensor(values, device="local"))) == expected


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64])
@pytest.mark.parametrize("array", [[1, 2], [3, 1, 2], [7]])
@pytest.mark.parametrize("q", [0, 0.3, 0.5, [0.5, 0.3]], ids=str)
def test_quantiles_of_integers_are_float32(dtype: type, array: list[int], q: Any) -> None:
    found = br.quantile(br.tensor(np.asarray(array, dtype), device="local"), q)
    assert found.dtype == br.float32
    np.testing.assert_allclose(found.numpy(), np.quantile(array, q), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("q", [0.3, 0.5, [0.1, 0.9]], ids=str)
def test_quantiles_of_low_precision_are_rounded_once(dtype: str, q: Any) -> None:
    x = br.tensor(drawn((9, 8)), device="local").astype(dtype)
    found = br.quantile(x, q, 1)
    assert str(found.dtype) == dtype
    expected = br.quantile(x.astype(br.float32), q, 1).astype(dtype)
    np.testing.assert_array_equal(found.numpy(), expected.numpy())


def test_a_quantile_has_a_gradient() -> None:
    x = br.tensor([4.0, 1.0, 3.0, 2.0], device="local")
    gradient = br.grad(lambda y: br.quantile(y, 0.25))(x)
    # The position is 0.75: a quarter of the smallest element and three of the next.
    np.testing.assert_allclose(gradient.numpy(), [0, 0.25, 0, 0.75])


@pytest.mark.parametrize("q", [-0.1, 1.5, math.nan, "0.5", []])
def test_other_numbers_than_fractions_are_refused(q: Any) -> None:
    with pytest.raises(br.ArgumentMismatch, match="q"):
        br.quantile(br.tensor([1.0, 2.0], device="local"), q)


def test_a_line_without_elements_is_refused() -> None:
    with pytest.raises(br.ShapeMismatch, match="no elements along axes"):
        br.median(br.zeros((3, 0), device="local"), 1)


def test_complex_numbers_have_no_median() -> None:
    with pytest.raises(br.DTypeMismatch, match="no order"):
        br.median(br.tensor([1j], device="local"))


@pytest.mark.parametrize("k", [-3, -1, 0, 2])
@pytest.mark.parametrize("size", [0, 1, 4])
def test_diag_of_a_vector_is_numpys(size: int, k: int) -> None:
    array = np.asarray([math.nan, math.inf, 0.0, -1.0])[:size]
    found = br.diag(br.tensor(array, device="local"), k).numpy()
    np.testing.assert_array_equal(found, np.diag(array, k))


@pytest.mark.parametrize("k", [-1, 0, 2])
def test_diag_of_a_matrix_is_its_diagonal(k: int) -> None:
    array = np.arange(12).reshape(3, 4)
    found = br.diag(br.tensor(array, device="local"), k).numpy()
    np.testing.assert_array_equal(found, np.diag(array, k))


@pytest.mark.parametrize("decimals", [0, 1, 3, -1])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_rounding_to_places_gives_numpys_bits(decimals: int, dtype: str) -> None:
    array = (drawn((50,)) * 100).astype(dtype)
    x = br.tensor(array, device="local")
    np.testing.assert_array_equal(x.round(decimals).numpy(), np.round(array, decimals))
    np.testing.assert_array_equal(round(x, decimals).numpy(), np.round(array, decimals))
    same: Any = np.round
    np.testing.assert_array_equal(same(x, decimals).numpy(), np.round(array, decimals))


@pytest.mark.parametrize(
    ("dtype", "value", "decimals", "expected"),
    [
        ("float16", 1.5, 5, 1.5),
        ("float16", 1.2345, 3, 1.234),
        ("float16", 1.5, -5, 0.0),
        ("float32", 3e38, 2, 3e38),
        ("float32", 1.5, 40, 1.5),
        ("float32", -1.5, -40, 0.0),
        ("float32", -math.inf, -40, -math.inf),
        ("float32", math.inf, 2, math.inf),
        ("float64", 1e300, 10, 1e300),
        ("float64", 1.5, 400, 1.5),
        ("float64", 1.5, -400, 0.0),
        ("complex64", 3e38 + 1.26j, 1, 3e38 + 1.3j),
    ],
)
def test_rounding_to_more_places_than_a_dtype_has_overflows_nowhere(
    dtype: Any, value: complex, decimals: int, expected: complex
) -> None:
    found = br.tensor([value], dtype=dtype, device="local").round(decimals)
    assert str(found.dtype).endswith(dtype)
    np.testing.assert_array_equal(found.numpy(), np.asarray([expected], dtype))


def test_nan_stays_nan_at_any_number_of_places() -> None:
    x = br.tensor([math.nan], device="local")
    assert all(math.isnan(float(x.round(decimals))) for decimals in (-400, -1, 1, 400))


@pytest.mark.parametrize("decimals", [0.5, 1.0, math.nan, "2", None, True])
def test_a_number_of_places_that_is_no_integer_is_refused(decimals: Any) -> None:
    with pytest.raises(br.ArgumentMismatch, match="decimals must be an integer"):
        br.round(br.tensor([1.25], device="local"), decimals)


def test_integers_are_not_rounded_to_tens() -> None:
    with pytest.raises(br.DTypeMismatch, match="rounded to tens"):
        br.tensor([123], device="local").round(-1)
