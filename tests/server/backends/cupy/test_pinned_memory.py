"""Copies work without pinned memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from burn_remote_server.backends.cupy.pinned_memory import HostMemory, is_pinned


class CudaError(RuntimeError):
    """The error that CuPy raises for a failed call."""

    def __init__(self, status: int) -> None:
        super().__init__(f"CUDA error {status}")
        self.status = status


class Pinned:
    """A fake allocator of pinned memory that may raise an error."""

    def __init__(self) -> None:
        self.memory = np.zeros(100, np.uint8)
        self.error: Exception | None = None

    def __call__(self, size: int) -> Any:
        if self.error is not None:
            raise self.error
        return self.memory[:size]


@pytest.fixture
def pinned() -> Pinned:
    return Pinned()


def test_memory_is_pinned_if_possible(pinned: Pinned) -> None:
    array = HostMemory(pinned).empty(7)
    assert array.base is pinned.memory
    assert array.size == 7
    assert is_pinned(array)


@pytest.mark.parametrize("status", [2, 304])
def test_pageable_memory_replaces_pinned_memory_with_one_log_entry(
    pinned: Pinned, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    memory = HostMemory(pinned)
    pinned.error = CudaError(status)
    for _ in range(3):
        array = memory.empty(7)
        assert (array.dtype, array.shape) == (np.uint8, (7,))
        assert array.flags.writeable
        assert not is_pinned(array)
    (record,) = caplog.records
    assert "no pinned memory left" in record.getMessage()


def test_pinned_memory_is_used_again_when_it_is_available(pinned: Pinned) -> None:
    memory = HostMemory(pinned)
    pinned.error = CudaError(2)
    memory.empty(7)
    pinned.error = None
    assert memory.empty(7).base is pinned.memory


@pytest.mark.parametrize("error", [CudaError(700), RuntimeError(), MemoryError()])
def test_other_errors_are_passed_on(pinned: Pinned, error: Exception) -> None:
    pinned.error = error
    with pytest.raises(type(error)):
        HostMemory(pinned).empty(7)
