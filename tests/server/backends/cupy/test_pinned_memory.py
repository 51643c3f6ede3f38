"""Copies go on where there is no pinned memory left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from burn_remote_server.backends.cupy.pinned_memory import HostMemory, is_pinned


class CudaError(RuntimeError):
    """What CuPy raises for a call that failed."""

    def __init__(self, status: int) -> None:
        super().__init__(f"CUDA error {status}")
        self.status = status


class Pinned:
    """Pinned memory that there is, or the error in its place."""

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


def test_memory_is_pinned_where_there_is_some(pinned: Pinned) -> None:
    array = HostMemory(pinned).empty(7)
    assert array.base is pinned.memory
    assert array.size == 7
    assert is_pinned(array)


@pytest.mark.parametrize("status", [2, 304])
def test_without_pinned_memory_any_other_is_taken_and_the_log_says_so_once(
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


def test_pinned_memory_is_taken_again_when_there_is_some(pinned: Pinned) -> None:
    memory = HostMemory(pinned)
    pinned.error = CudaError(2)
    memory.empty(7)
    pinned.error = None
    assert memory.empty(7).base is pinned.memory


@pytest.mark.parametrize("error", [CudaError(700), RuntimeError(), MemoryError()])
def test_other_errors_are_nothing_to_copy_by_another_way_for(
    pinned: Pinned, error: Exception
) -> None:
    pinned.error = error
    with pytest.raises(type(error)):
        HostMemory(pinned).empty(7)
