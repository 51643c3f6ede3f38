"""Tests of uploads, reads, and a backend's description of itself."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.dtypes import (
    ALL_DTYPES,
    BOOL,
    BOOL_U8,
    BOOL_U32,
    F32,
    FLEX32,
    I32,
    DType,
    DTypeUsage,
    QuantScheme,
)
from burn_remote_protocol.errors import ShapeMismatch, UsageError
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends import Backend, open_backends
from support.interpreter_lock import releases_interpreter_lock
from support.waiting import PATIENCE_SECONDS

QUANTIZED = DType.quantized(QuantScheme("Q8S", "F32", "Native", None, "Symmetric"))
STORES = [BOOL, BOOL_U8, BOOL_U32]


@pytest.fixture(scope="module")
def backend() -> Backend:
    (opened,) = open_backends("numpy", 1)
    return opened


def uploaded(backend: Backend, data: TensorData) -> Any:
    """Upload data in chunks and return its array."""
    array = backend.empty(data.spec)
    backend.write(array, 0, memoryview(data.bytes))
    return backend.finished(array, data.dtype)


def test_other_threads_run_while_an_upload_is_written(backend: Backend) -> None:
    array = backend.empty(TensorSpec((2**18,), F32))
    elements = memoryview(bytes(2**20))
    assert releases_interpreter_lock(lambda: backend.write(array, 0, elements))


@given(st.data(), st.sampled_from([dtype for dtype in ALL_DTYPES if not dtype.is_bool]))
def test_elements_are_read_back_unchanged(
    backend: Backend, data: st.DataObject, dtype: DType
) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 3), max_size=3)))
    size = TensorSpec(shape, dtype).nbytes
    sent = TensorData(data.draw(st.binary(min_size=size, max_size=size)), shape, dtype)

    for array in (backend.to_device(sent), uploaded(backend, sent)):
        assert array.shape == shape
        assert array.dtype == backend.open_session().array_dtype(dtype)
        assert bytes(backend.to_bytes(array, dtype)) == sent.bytes


@pytest.mark.parametrize("dtype", STORES, ids=str)
def test_any_byte_but_zero_is_true(backend: Backend, dtype: DType) -> None:
    numbers = np.array([0, 1, 2, 255, 0, 1], dtype=f"<u{dtype.itemsize}")
    sent = TensorData(numbers.tobytes(), (2, 3), dtype)

    for array in (backend.to_device(sent), uploaded(backend, sent)):
        assert array.tolist() == [[False, True, True], [True, False, True]]
        expected = np.array([0, 1, 1, 1, 0, 1], dtype=f"<u{dtype.itemsize}")
        assert bytes(backend.to_bytes(array, dtype)) == expected.tobytes()
        assert backend.nbytes(array) == 6


@pytest.mark.parametrize("dtype", STORES, ids=str)
def test_an_empty_bool_tensor_is_uploaded(backend: Backend, dtype: DType) -> None:
    array = backend.to_device(TensorData(b"", (0, 2), dtype))

    assert (array.shape, array.dtype) == ((0, 2), np.bool_)
    assert len(backend.to_bytes(array, dtype)) == 0


def test_views_are_read_in_their_own_order(backend: Backend) -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3).T

    assert bytes(backend.to_bytes(array, I32)) == np.array([0, 3, 1, 4, 2, 5], "<i4").tobytes()


def test_contiguous_elements_are_read_without_a_copy(backend: Backend) -> None:
    array = np.arange(6, dtype=np.int32)

    assert np.shares_memory(np.frombuffer(backend.to_bytes(array, I32), np.uint8), array)


def test_data_may_change_after_its_upload(backend: Backend) -> None:
    buffer = bytearray(b"\1\0\0\0")

    array = backend.to_device(TensorData(buffer, (1,), I32))
    buffer[0] = 9

    assert array.tolist() == [1]


def test_bytes_of_another_shape_are_refused(backend: Backend) -> None:
    with pytest.raises(ShapeMismatch, match="does not have 8 bytes"):
        backend.to_device(TensorData(bytes(8), (3,), I32))


def test_a_quantized_tensor_is_stored_as_its_bytes(backend: Backend) -> None:
    content = bytes(range(6))
    held = backend.to_device(TensorData(content, (2,), QUANTIZED))
    assert backend.to_bytes(held, QUANTIZED) == content
    with pytest.raises(ShapeMismatch, match="does not have 7 bytes"):
        backend.to_device(TensorData(bytes(7), (3, 2), QUANTIZED))


def test_dtype_usage_equals_that_of_burns_cpu_server(backend: Backend) -> None:
    unused = (FLEX32, BOOL_U32)

    for dtype in ALL_DTYPES:
        assert int(backend.dtype_usage(dtype)) == (0 if dtype in unused else 3)
        assert backend.supports_dtype(dtype) == (dtype not in unused)
    assert backend.dtype_usage(QUANTIZED) == DTypeUsage.STORAGE
    assert not backend.supports_dtype(QUANTIZED)


def test_a_backend_describes_itself(backend: Backend) -> None:
    assert backend.name == "numpy"
    assert backend.device_count == 1
    assert backend.ad_enabled is False
    assert backend.memory_bytes() > 2**26
    backend.sync()
    backend.memory_cleanup()
    backend.staging([TensorData(bytes(4), (1,), F32)])
    with backend.memory_persistent_allocations():
        assert backend.empty(TensorSpec((2,), F32)).shape == (2,)


def test_a_prepared_thread_divides_by_zero_without_a_warning(backend: Backend) -> None:
    seen: list[Any] = []

    def work() -> None:
        backend.prepare_thread()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            seen.append(np.divide(np.ones(1), np.zeros(1)))
        seen.append(caught)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert seen[0].tolist() == [np.inf]
    assert seen[1] == []


def test_each_device_gets_a_backend_and_an_unknown_library_is_refused() -> None:
    assert len(open_backends("numpy", 3)) == 3
    with pytest.raises(UsageError, match=r"unknown backend 'fortran'; known are .*numpy"):
        open_backends("fortran", 1)
