"""Conversion between NumPy arrays and tensor data."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import burn_remote as br
from burn_remote.arguments.arrays import array_from, as_array, as_dtype, data_from

DTYPES = [
    (np.float64, br.float64), (np.float32, br.float32), (np.float16, br.float16),
    (ml_dtypes.bfloat16, br.bfloat16), (np.int64, br.int64), (np.int32, br.int32),
    (np.int16, br.int16), (np.int8, br.int8), (np.uint64, br.uint64), (np.uint32, br.uint32),
    (np.uint16, br.uint16), (np.uint8, br.uint8), (np.bool_, br.bool),
]  # fmt: skip


@pytest.mark.parametrize("stored, dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3, 4)])
def test_elements_survive_a_round_trip(
    stored: type, dtype: br.DType, shape: tuple[int, ...]
) -> None:
    array: np.ndarray = np.random.default_rng(0).integers(0, 2, shape).astype(stored)
    data = data_from(array)
    assert data.spec == br.TensorSpec(shape, dtype)
    assert len(data.bytes) == data.spec.nbytes
    back = array_from(br.TensorData(bytes(data.bytes), data.shape, data.dtype))
    assert back.dtype == array.dtype
    assert back.shape == shape
    assert back.flags.writeable
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12).reshape(3, 4).T,
        np.arange(10)[::-2],
        np.broadcast_to(np.arange(3), (2, 3)),
        np.arange(6).astype(">i8"),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    ],
)
def test_arrays_of_any_layout_are_sent_in_c_order(array: np.ndarray) -> None:
    data = data_from(array)
    np.testing.assert_array_equal(array_from(data), array)


def test_a_plain_array_is_not_copied_before_it_is_sent() -> None:
    array = np.arange(6.0)
    data = data_from(array)
    array[0] = 7
    assert array_from(data)[0] == 7


def test_a_writable_buffer_is_not_copied() -> None:
    buffer = bytearray(8)
    array = array_from(br.TensorData(buffer, (1,), br.float64))
    array[0] = 1.0
    assert buffer != bytearray(8)


@pytest.mark.parametrize(
    "value, dtype",
    [
        (1.5, br.float32), ([1.5, 2], br.float32), (3, br.int64), ([], br.float32), (True, br.bool),
        ([True, False], br.bool), (np.float64(1), br.float64), (np.ones(2), br.float64),
        (np.int8(3), br.int8), (2**63, br.uint64), ([np.float64(2)], br.float32),
        ([np.ones(2), np.ones(2)], br.float64), ([[np.ones(2)], [np.ones(2)]], br.float64),
        ([np.ones(2), [0.5, 0.5]], br.float64), ([np.ones(2, "complex128")], br.complex128),
        ([np.ones(2, "float32"), [0.5, 0.5]], br.float32), ([np.array(2.0)], br.float32),
    ],
)  # fmt: skip
def test_python_numbers_have_the_default_dtypes_and_arrays_keep_theirs(
    value: object, dtype: br.DType
) -> None:
    assert data_from(as_array(value, None)).dtype is dtype


def test_elements_are_converted_to_the_given_dtype() -> None:
    assert as_array([2.0, 0], br.int32).tolist() == [2, 0]
    assert as_array([1.7, 0], br.float16).dtype == np.float16
    assert as_array([0.5, 0], br.bool).tolist() == [True, False]
    assert as_array([True], br.uint8).tolist() == [1]


@pytest.mark.parametrize(
    "value, dtype, text",
    [
        ([300], br.uint8, r"300 at \[0\] is not a value of uint8, an integer from 0 to 255"),
        ([[1, 2], [3, -1]], br.uint8, r"-1 at \[1, 1\]"),
        (np.array([300]), br.uint8, "300"), (np.array([-1]), br.uint64, "-1"),
        (np.array([2**63], np.uint64), br.int64, "9223372036854775808"),
        (1.5, br.int32, "1.5 is not a value of int32"),
        (np.array([-0.5], np.float16), br.int8, "-0.5"),
        (np.float64(2**63), br.int64, "9.2"), (np.float32(2**64), br.uint64, "1.8"),
        (np.array([np.inf], np.float32), br.int64, "inf"), (float("nan"), br.int32, "nan"),
        (np.array([256], ml_dtypes.bfloat16), br.uint8, "256"),
    ],
)  # fmt: skip
def test_an_integer_dtype_refuses_what_it_cannot_hold(
    value: object, dtype: br.DType, text: str
) -> None:
    with pytest.raises(br.DTypeMismatch, match=text):
        as_array(value, dtype)


def test_the_bounds_of_integer_dtypes_fit() -> None:
    assert as_array([0, 255], br.uint8).tolist() == [0, 255]
    assert as_array(np.array([-(2.0**63)]), br.int64).tolist() == [-(2**63)]
    assert as_array(np.array([], np.float64), br.int8).shape == (0,)


@pytest.mark.parametrize("dtype", [None, br.uint64])
@pytest.mark.parametrize(
    "value",
    [[2**63 + 1, 5], [[2**64 - 1], [0]], (np.uint64(2**63 + 1), 5), [2**63 + 1, True]],
)
def test_integers_beyond_int64_keep_their_value(value: list[int], dtype: br.DType | None) -> None:
    array = as_array(value, dtype)
    assert array.dtype == np.uint64
    assert array.tolist() == np.array(value, object).tolist()


def test_integers_without_a_common_dtype_are_refused() -> None:
    with pytest.raises(br.DTypeMismatch, match="no integer dtype holds both -1 and 9223372036854"):
        as_array([2**63, -1], None)
    for dtype in (br.int64, br.uint64, br.uint8):
        with pytest.raises(br.DTypeMismatch, match=f"is not a value of {dtype}"):
            as_array([2**63, -1], dtype)
    assert as_array([2**63, -1], br.float64).tolist() == [2.0**63, -1]
    assert as_array([2.0**63, 1], None).dtype == np.float32


def test_floats_beyond_the_dtype_become_infinite() -> None:
    assert as_array(1e39, None).tolist() == np.inf
    assert as_array([1e5, -1e5], br.float16).tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize(
    "value, text",
    [
        (2**64, "18446744073709551616 does not fit in 64 bits"), (None, "not None"),
        ({"a": 1}, "not {'a': 1}"), (np.array([1], object), "array.astype"),
        (iter([1]), r"not <list_iterator .*; pass list\(data\)"), ("1" * 999, r"hold dtype"),
        ({"a": "b" * 999}, r"not \{'a': 'bbb.*\.\.\.b*'\}$"),
    ],
)  # fmt: skip
def test_an_element_that_is_not_a_number_is_shown(value: object, text: str) -> None:
    with pytest.raises(br.DTypeMismatch, match=text):
        as_array(value, None)
    assert as_array([2, 0], br.bool).tolist() == [True, False]
    assert as_array([1], br.bfloat16).dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("name", ["float32", np.float32, np.dtype("<f4"), ">f4", br.float32])
def test_numpy_names_of_dtypes_are_accepted(name: object) -> None:
    assert as_dtype(name) is br.float32  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["text", [[1], [2, 3]], [None], object()])
def test_elements_that_tensors_cannot_hold_are_refused(value: object) -> None:
    with pytest.raises(br.DTypeMismatch):
        as_array(value, None)
    with pytest.raises(br.DTypeMismatch):
        as_array(value, br.float32)


def test_unknown_names_of_dtypes_are_refused() -> None:
    with pytest.raises(br.DTypeMismatch, match="float32"):
        as_dtype("float33")
    with pytest.raises(br.DTypeMismatch, match="datetime64"):
        as_dtype(np.datetime64)


def test_complex_numbers_have_the_precision_of_python_lists_or_of_their_array() -> None:
    assert as_array([1j, 2], None).dtype == np.complex64
    assert as_array(np.array([1j]), None).dtype == np.complex128
    assert as_array([1, 2], br.complex128).dtype == np.complex128
    with pytest.raises(br.DTypeMismatch, match="not values of float32"):
        as_array(1j, br.float32)
    with pytest.raises(br.DTypeMismatch, match="not values of int32"):
        as_array(1j, br.int32)
    assert as_array([0j, 1j], br.bool).tolist() == [False, True]


@pytest.mark.parametrize("stored, dtype", DTYPES)
def test_dtypes_compare_equal_to_numpy_dtypes(stored: type, dtype: br.DType) -> None:
    assert dtype == stored
    assert dtype == np.dtype(stored)
    assert dtype != np.datetime64
