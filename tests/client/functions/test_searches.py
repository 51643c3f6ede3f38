"""Searches, selections by masks, distinct elements and counts match NumPy's."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

import burn_remote as br

Array = np.ndarray[Any, Any]

DTYPES: Final = ("bool", "int8", "uint16", "int64", "float16", "float32", "float64")
FEW: Final = [0.0, -0.0, 1.0, 2.0, math.inf, math.nan]


@st.composite
def repeated(draw: st.DrawFn, min_dims: int = 0) -> Array:
    """Return an array of few distinct elements, also NaN and infinity."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(array_shapes(min_dims=min_dims, max_dims=3, min_side=0, max_side=4))
    if draw(st.booleans()) and not min_dims:
        shape = ()
    chosen = FEW if dtype.kind == "f" else [0, 1] if dtype.kind == "b" else [0, 1, 2, 3]
    return draw(arrays(dtype, shape, elements=st.sampled_from(chosen).map(dtype.type)))


@given(array=repeated())
def test_distinct_elements_are_those_of_numpy(array: Array, device: br.Device) -> None:
    x = br.tensor(array, device=device)
    expected = np.unique(
        array, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    found = br.unique_all(x)
    for seen, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(seen.numpy(), right, strict=True)
    assert found._fields == ("values", "indices", "inverse_indices", "counts")
    np.testing.assert_array_equal(br.unique_values(x).numpy(), expected[0])
    for results, place in ((br.unique_counts(x), 3), (br.unique_inverse(x), 2)):
        np.testing.assert_array_equal(results[0].numpy(), expected[0])
        np.testing.assert_array_equal(results[1].numpy(), expected[place])


@given(array=repeated(min_dims=1))
def test_nonzero_elements_are_those_of_numpy(array: Array, device: br.Device) -> None:
    x = br.tensor(array, device=device)
    expected = np.nonzero(array)
    found = br.nonzero(x)
    assert len(found) == len(expected)
    for seen, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(seen.numpy(), right, strict=True)
    np.testing.assert_array_equal(br.argwhere(x).numpy(), np.argwhere(array), strict=True)
    known = br.nonzero(x, size=len(expected[0]))
    np.testing.assert_array_equal(known[-1].numpy(), expected[-1])


@given(array=repeated(), data=st.data())
def test_a_mask_selects_what_it_selects_in_numpy(
    array: Array, data: st.DataObject, device: br.Device
) -> None:
    rank = data.draw(st.integers(0, array.ndim))
    mask = data.draw(arrays(np.bool_, array.shape[:rank]))
    found = br.boolean_mask(br.tensor(array, device=device), br.tensor(mask, device=device))
    np.testing.assert_array_equal(found.numpy(), array[mask], strict=True)


def test_a_mask_of_another_shape_or_dtype_is_refused(device: br.Device) -> None:
    x = br.zeros((2, 3), device=device)
    with pytest.raises(br.ShapeMismatch, match="leading axes"):
        br.boolean_mask(x, br.ones((3,), dtype=br.bool, device=device))
    with pytest.raises(br.DTypeMismatch, match="write mask != 0"):
        br.boolean_mask(x, x)


def test_a_0d_tensor_has_no_indices(device: br.Device) -> None:
    for function in (br.nonzero, br.argwhere):
        with pytest.raises(br.ShapeMismatch, match="no axes"):
            function(br.ones((), device=device))


def test_a_wrong_size_fails_when_the_result_is_read() -> None:
    with br.LocalDevice() as device:
        x = br.tensor([1.0, 0.0, 2.0], device=device)
        (places,) = br.nonzero(x, size=1)
        with pytest.raises(br.OperationFailed, match=r"there are 2 elements.*the size 1 was given"):
            places.numpy()
        with pytest.raises(br.ShapeMismatch, match="count=4"):
            br.nonzero(x, size=4)


def test_a_known_size_needs_no_round_trip_and_can_be_compiled(device: br.Device) -> None:
    @br.compile
    def chosen(x: br.Tensor) -> br.Tensor:
        return br.boolean_mask(x, x > 0, size=2)

    for array in ([1.0, -1.0, 2.0], [0.0, 3.0, 4.0], [5.0, 6.0, -7.0]):
        expected = [one for one in array if one > 0]
        assert chosen(br.tensor(array, device=device)).tolist() == expected


def test_the_gradient_of_selected_elements_goes_to_them(device: br.Device) -> None:
    x = br.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], device=device).requires_grad_()
    (br.boolean_mask(x, br.tensor([True, False, True], device=device)) ** 2).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[2, 4], [0, 0], [10, 12]]
    y = br.tensor([3.0, 1.0, 3.0], device=device).requires_grad_()
    (br.unique_values(y) * br.tensor([10.0, 20.0], device=device)).sum().backward()
    assert y.grad is not None
    assert y.grad.tolist() == [20, 10, 0]


@given(array=repeated(min_dims=1), data=st.data())
def test_places_in_a_sorted_vector_are_those_of_numpy(
    array: Array, data: st.DataObject, device: br.Device
) -> None:
    if array.dtype.kind == "b":
        return
    ordered = np.sort(array.reshape(-1))
    values = data.draw(arrays(array.dtype, (2, 3), elements=st.sampled_from([0, 1, 2, 5])))
    for side in ("left", "right"):
        found = br.searchsorted(
            br.tensor(ordered, device=device), br.tensor(values, device=device), side=side
        )
        expected = np.searchsorted(ordered, values, side=side)
        np.testing.assert_array_equal(found.numpy(), expected, strict=True)


def test_a_sorter_orders_the_vector_first(device: br.Device) -> None:
    x = br.tensor([30, 10, 20], device=device)
    found = br.searchsorted(x, 15, sorter=br.argsort(x))
    assert found.shape == ()
    assert found.item() == 1
    with pytest.raises(br.UsageError, match="'left' or 'right', not 'middle'"):
        br.searchsorted(x, 15, side="middle")  # type: ignore[arg-type]


@given(first=repeated(), second=repeated())
def test_membership_is_that_of_numpy(first: Array, second: Array, device: br.Device) -> None:
    with np.errstate(invalid="ignore"):
        second = second.astype(first.dtype)
    tensors = (br.tensor(first, device=device), br.tensor(second, device=device))
    for invert in (False, True):
        found = br.isin(*tensors, invert=invert)
        np.testing.assert_array_equal(
            found.numpy(), np.isin(first, second, invert=invert), strict=True
        )


@given(array=arrays(np.int64, st.integers(0, 20), elements=st.integers(0, 9)))
def test_counts_of_integers_are_those_of_numpy(array: Array, device: br.Device) -> None:
    x = br.tensor(array, device=device)
    weights = np.arange(array.size) / 4
    np.testing.assert_array_equal(br.bincount(x).numpy(), np.bincount(array), strict=True)
    np.testing.assert_array_equal(
        br.bincount(x, minlength=5).numpy(), np.bincount(array, minlength=5)
    )
    np.testing.assert_array_equal(
        br.bincount(x, br.tensor(weights, device=device), length=12).numpy(),
        np.bincount(array, weights, minlength=12),
    )


@pytest.mark.parametrize("integers", [[0, -1], [0, 3]])
def test_an_integer_without_a_place_fails_when_the_counts_are_read(integers: list[int]) -> None:
    with br.LocalDevice() as device:
        counts = br.bincount(br.tensor(integers, device=device), length=3)
        with pytest.raises(br.OperationFailed, match="out of range"):
            counts.numpy()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bins": 1},
        {"bins": 7, "range": (-1.0, 1.5)},
        {"bins": 5, "range": (2, 2)},
        {"bins": [-2.0, -0.5, 0.0, 0.25, 3.0]},
        {"bins": [0.0, 0.0, 1.0]},
        {"density": True},
    ],
)
def test_a_histogram_is_that_of_numpy(
    options: dict[str, Any], dtype: Any, device: br.Device
) -> None:
    array = (np.random.default_rng(3).normal(size=(40, 25)) * 2).astype(dtype)
    x = br.tensor(array, device=device)
    weights = (np.arange(1000) % 7).reshape(40, 25) / 4
    for weighted in (False, True):
        more: dict[str, Any] = {"weights": weights} if weighted else {}
        expected, edges = np.histogram(array, **options, **more)
        ours: dict[str, Any] = {"weights": br.tensor(weights, device=device)} if weighted else {}
        found, found_edges = br.histogram(x, **options, **ours)
        np.testing.assert_allclose(found_edges.numpy(), edges, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)


def test_elements_on_edges_and_outside_are_counted_as_by_numpy(device: br.Device) -> None:
    array = np.array([0.0, 0.5, 1.0, 1.0, -0.1, 1.1, np.nan, np.inf])
    found, _ = br.histogram(br.tensor(array, device=device), 2, (0, 1))
    np.testing.assert_array_equal(found.numpy(), np.histogram(array, 2, (0, 1))[0], strict=True)
    for alike in (np.full(3, 2.0), np.zeros(0)):
        found, edges = br.histogram(br.tensor(alike, device=device), 4)
        expected = np.histogram(alike, 4)
        np.testing.assert_array_equal(found.numpy(), expected[0])
        np.testing.assert_array_equal(edges.numpy(), expected[1])


@pytest.mark.parametrize("options", [{"range": (1, 0)}, {"range": (0, math.inf)}, {"bins": 0}])
def test_an_impossible_histogram_is_refused(options: dict[str, Any], device: br.Device) -> None:
    with pytest.raises(br.UsageError):
        br.histogram(br.zeros((3,), device=device), **options)


@pytest.mark.parametrize("counts", [[2, 0, 3], [0, 0, 0], [1, 1, 1], [4]])
def test_elements_are_repeated_by_a_tensor_of_counts(counts: list[int], device: br.Device) -> None:
    array = np.arange(6.0).reshape(2, 3)
    x, repeats = br.tensor(array, device=device), br.tensor(counts, device=device)
    found = br.repeat(x, repeats, axis=1)
    np.testing.assert_array_equal(found.numpy(), np.repeat(array, counts, axis=1), strict=True)


def test_a_negative_count_is_refused(device: br.Device) -> None:
    with pytest.raises(br.UsageError, match="a count is -1"):
        br.repeat(br.ones((2,), device=device), br.tensor([1, -1], device=device))


def test_differences_of_joined_elements_are_those_of_numpy(device: br.Device) -> None:
    array, more = np.arange(6.0).reshape(2, 3) ** 2, np.full((2, 1), 7.0)
    x, added = br.tensor(array, device=device), br.tensor(more, device=device)
    found = br.diff(x, axis=1, prepend=added, append=added)
    np.testing.assert_array_equal(found.numpy(), np.diff(array, axis=1, prepend=more, append=more))


def test_one_round_trip_finds_the_distinct_elements(device: br.Device) -> None:
    x = br.tensor([3.0, 1.0, 3.0], device=device)
    device.sync()
    before = device.traffic.requests
    values, *_ = br.unique_all(x)
    assert device.traffic.requests == before + 1
    assert values.shape == (2,)


def test_where_of_a_condition_alone_gives_the_places_of_true_elements() -> None:
    array = np.asarray([[0, 3, 0], [4, 0, 5]])
    found = br.where(br.tensor(array, device="local") > 0)
    np.testing.assert_array_equal(np.stack([one.numpy() for one in found]), np.where(array > 0))
    with pytest.raises(br.UsageError, match="a condition and two values"):
        br.where(br.tensor(array, device="local") > 0, 1)  # type: ignore[call-overload]


def test_a_mask_may_stand_beside_other_indices() -> None:
    array = np.arange(12.0).reshape(3, 4)
    x, mask = br.tensor(array, device="local"), np.asarray([True, False, True])
    on_device = br.tensor(mask, device="local")
    np.testing.assert_array_equal(x[on_device, 1:].numpy(), array[mask, 1:])
    np.testing.assert_array_equal(x.mT[..., on_device].numpy(), array.T[..., mask])
    np.testing.assert_array_equal(x[on_device, [0, 3]].numpy(), array[mask, [0, 3]])


@pytest.mark.parametrize("size", [2, 5])
def test_a_mask_of_another_size_than_its_axis_is_refused_beside_other_indices(size: int) -> None:
    x = br.zeros((3, 4, 1), device="local")
    mask = br.zeros((size,), dtype=br.bool, device="local")
    for index in ((mask,), (mask, 0), (0, mask), (..., mask), (0, ..., mask), ([0], None, mask)):
        with pytest.raises(br.ShapeMismatch, match="does not match axes"):
            x[index]


@pytest.mark.parametrize("truth", [True, False])
def test_a_mask_without_axes_selects_all_or_nothing(truth: bool) -> None:
    mask = br.tensor(truth, device="local")
    for array in (np.asarray(2.5), np.arange(3.0)):
        found = br.tensor(array, device="local")[mask]
        np.testing.assert_array_equal(found.numpy(), array[np.asarray(truth)])


def test_numpys_unique_counts_nan_once() -> None:
    array = np.asarray([3.0, np.nan, 1.0, np.nan, 3.0])
    options: dict[str, Any] = {"return_index": True, "return_inverse": True, "return_counts": True}
    found = np.unique(br.tensor(array, device="local"), **options)
    for one, expected in zip(found, np.unique(array, **options), strict=True):
        np.testing.assert_array_equal(one.numpy(), expected)
    assert np.unique(br.tensor(array, device="local"), equal_nan=False).shape == (4,)
