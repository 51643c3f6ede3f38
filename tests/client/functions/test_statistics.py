"""Reductions, cumulative operations, sorting and norms match NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays, valid_tuple_axes

import burn_remote as br
from support.values import same

NUMBERS = st.sampled_from([0.0, 1.0, -2.5, 3.25, 100.0])
WITH_NAN = st.sampled_from([0.0, -1.0, 2.0, np.nan, -np.inf, np.inf])


@given(data=st.data(), keepdims=st.booleans())
def test_sums_products_and_means_match_numpy(
    device: br.Device, data: st.DataObject, keepdims: bool
) -> None:
    shape = data.draw(array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=3))
    axis = data.draw(st.none() | valid_tuple_axes(len(shape), min_size=1) if shape else st.none())
    a = data.draw(arrays(np.float64, shape, elements=NUMBERS))
    x = br.tensor(a, device=device)
    options: Any = {"axis": axis, "keepdims": keepdims}
    same(x.sum(**options), a.sum(**options), 1e-12)
    same(x.prod(**options), a.prod(**options), 1e-12)
    same(x.mean(**options), a.mean(**options), 1e-12)
    same(x.var(**options), a.var(**options), 1e-11)
    same(x.std(**options), a.std(**options), 1e-6)
    same(x.max(**options), a.max(**options))
    same(x.min(**options), a.min(**options))
    same(x.max_abs(**options), np.abs(a).max(**options))
    same(x.any(**options), a.any(**options))
    same(x.all(**options), a.all(**options))
    same(x.count_nonzero(**options), np.count_nonzero(a, **options))


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8, np.uint64, np.bool_])
def test_sums_of_integers_have_64_bits(device: br.Device, dtype: Any) -> None:
    a = np.array([[1, 0, 100], [100, 1, 1]]).astype(dtype)
    x = br.tensor(a, device=device)
    same(x.sum(), a.sum())
    same(x.prod(axis=1), a.prod(axis=1))
    same(x.sum(axis=0, dtype=br.int32), a.sum(axis=0, dtype=np.int32))
    same(x.mean(), a.mean(dtype=np.float32), 1e-6)
    same(x.cumulative_sum(axis=1), a.cumsum(axis=1))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.float32, np.bool_])
@pytest.mark.parametrize("shape", [(2, 2), (), (0, 3)])
def test_a_reduction_over_no_axes_reduces_each_element(
    device: br.Device, dtype: Any, shape: tuple[int, ...]
) -> None:
    a = np.resize(np.array([3, 0, -2, 100]), shape).astype(dtype)
    x = br.tensor(a, device=device)
    for name in ("any", "all", "sum", "prod", "count_nonzero"):
        found = getattr(br, name)(x, axis=()).numpy()
        expected = np.asarray(getattr(np, name)(a, axis=()))
        assert found.dtype == expected.dtype, name
        np.testing.assert_array_equal(found, expected, name)
    if dtype is np.bool_:  # refused as for other axes
        with pytest.raises(br.DTypeMismatch):
            br.max(x, axis=())
        return
    same(br.max(x, axis=()), a)
    same(br.min(x, axis=()), a)
    same(br.max_abs(x, axis=()), np.abs(a))


def test_empty_reductions_return_the_neutral_element(device: br.Device) -> None:
    x = br.zeros((0, 3), device=device)
    same(x.sum(), np.float32(0))
    same(x.prod(axis=0), np.ones(3, np.float32))
    same(x.any(axis=0), np.zeros(3, bool))
    same(x.all(), np.True_)
    with pytest.raises(br.ShapeMismatch, match="empty"):
        x.argmax(axis=0)


def test_corrections_match_numpys_ddof(device: br.Device) -> None:
    a = np.random.default_rng(0).random((3, 5))
    x = br.tensor(a, device=device)
    same(x.var(axis=1, correction=1), a.var(axis=1, ddof=1), 1e-12)
    same(x.std(correction=2), a.std(ddof=2), 1e-12)


@given(a=arrays(np.float64, array_shapes(max_dims=3, max_side=4), elements=WITH_NAN))
def test_max_and_min_propagate_nan(device: br.Device, a: np.ndarray) -> None:
    x = br.tensor(a, device=device)
    same(x.max(axis=0), a.max(axis=0))
    same(x.min(axis=-1, keepdims=True), a.min(axis=-1, keepdims=True))
    same(x.max(), a.max())
    same(x.argmax(axis=0), a.argmax(axis=0))
    same(x.argmin(axis=-1), a.argmin(axis=-1))
    same(x.argmax(), a.argmax())
    values, places = x.max_with_indices(0)
    same(values, a.max(axis=0))
    same(places, a.argmax(axis=0))
    values, places = x.min_with_indices(-1, keepdims=True)
    same(values, a.min(axis=-1, keepdims=True))
    same(places, a.argmin(axis=-1, keepdims=True))


@given(
    a=arrays(np.float32, array_shapes(max_dims=3, max_side=6), elements=WITH_NAN),
    axis=st.integers(0, 2),
)
def test_sorting_is_stable_and_puts_nan_last(device: br.Device, a: np.ndarray, axis: int) -> None:
    axis %= a.ndim
    x = br.tensor(a, device=device)
    same(x.sort(axis=axis), np.sort(a, axis=axis))
    same(x.argsort(axis=axis), np.argsort(a, axis=axis, stable=True))
    same(x.sort(axis=axis, descending=True), np.flip(np.sort(a, axis=axis), axis))


@pytest.mark.parametrize("dtype", [np.float64, np.int8, np.uint8])
@pytest.mark.parametrize("k", [0, 1, 3, 5])
def test_topk_matches_a_sort(device: br.Device, dtype: Any, k: int) -> None:
    a = np.array([[3, 1, 2, 3, 0], [5, 5, 1, 127, 5]]).astype(dtype)
    x = br.tensor(a, device=device)
    order = np.argsort(-a.astype(int), axis=1, stable=True)[:, :k]
    values, places = x.topk(k)
    same(values, np.take_along_axis(a, order, 1))
    same(places, order)
    same(x.argtopk(k), order)
    order = np.argsort(a, axis=1, stable=True)[:, :k]
    values, places = x.topk(k, largest=False)
    same(values, np.take_along_axis(a, order, 1))
    same(places, order)


def test_topk_finds_the_smallest_integer_of_a_dtype(device: br.Device) -> None:
    x = br.tensor(np.array([-128, 127, 0], np.int8), device=device)
    values, _ = x.topk(2, largest=False)
    assert values.tolist() == [-128, 0]


@given(a=arrays(np.float64, array_shapes(max_dims=3, max_side=4), elements=NUMBERS))
def test_cumulative_operations_match_numpy(device: br.Device, a: np.ndarray) -> None:
    x = br.tensor(a, device=device)
    for axis in range(a.ndim):
        same(x.cumulative_sum(axis=axis), a.cumsum(axis=axis), 1e-12)
        same(x.cumulative_prod(axis=axis), a.cumprod(axis=axis), 1e-12)
        same(x.cummax(axis=axis), np.maximum.accumulate(a, axis=axis))
        same(x.cummin(axis=axis), np.minimum.accumulate(a, axis=axis))


def test_cumulative_operations_may_include_the_initial_element(device: br.Device) -> None:
    x = br.tensor([2, 3, 4], device=device)
    same(br.cumulative_sum(x, include_initial=True), np.array([0, 2, 5, 9]))
    same(br.cumulative_prod(x, include_initial=True), np.array([1, 2, 6, 24]))
    with pytest.raises(br.ShapeMismatch, match="axis"):
        br.cumulative_sum(br.zeros((2, 2), device=device))


def test_norms_and_products_match_numpy(device: br.Device) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random((4, 3)), rng.random((4, 3))
    x, y = br.tensor(a, device=device), br.tensor(b, device=device)
    same(br.cross(x, y), np.cross(a, b), 1e-14)
    same(br.cross(x.T, y.T, axis=0), np.cross(a, b).T, 1e-14)
    same(br.vecdot(x, y), (a * b).sum(-1), 1e-14)
    same(br.outer(x[0], y[1]), np.outer(a[0], b[1]))
    same(br.tensordot(x, y, axes=([0], [0])), np.tensordot(a, b, axes=([0], [0])), 1e-14)
    same(br.tensordot(x, y.T, axes=1), a @ b.T, 1e-14)
    for order in (1, 2, np.inf):
        same(br.vector_norm(x, axis=1, ord=order), np.linalg.norm(a, order, axis=1), 1e-14)
    same(br.vector_norm(x), np.linalg.norm(a), 1e-14)


def test_a_correction_beyond_the_count_divides_by_zero(device: br.Device) -> None:
    x = device.tensor([1.0, 2.0])
    assert x.var(correction=1).item() == 0.5
    assert x.var(correction=2).item() == np.inf
    assert x.var(correction=3).item() == np.inf


@pytest.mark.parametrize("name", ["sum", "mean", "prod"])
@pytest.mark.parametrize("axis", [(0, 1), (2, 0), (-1, 1, -4)], ids=str)
@pytest.mark.parametrize("keepdims", [False, True])
def test_a_reduction_of_several_axes_rounds_once(
    device: br.Device, name: str, axis: tuple[int, ...], keepdims: bool
) -> None:
    array = np.random.default_rng(1).standard_normal((3, 4, 5, 2)).astype(np.float16)
    expected = getattr(np, name)(array.astype(np.float64), axis=axis, keepdims=keepdims)
    x = br.tensor(array, device=device)
    same(getattr(br, name)(x, axis=axis, keepdims=keepdims), expected.astype(np.float16))


def test_a_sum_over_several_axes_overflows_only_in_its_result(device: br.Device) -> None:
    array = np.asarray([[60000, 60000], [-60000, -60000]], np.float16)[..., None]
    x = br.tensor(array, device=device)
    assert br.sum(x, axis=(1, 0)).tolist() == [0]
    assert (
        br.sum(br.zeros((0, 2, 3), dtype=br.float16, device=device), axis=(0, 1)).tolist()
        == [0] * 3
    )
