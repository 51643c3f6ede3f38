"""The arithmetic of collectives."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from burn_remote_protocol.collectives import Reduction
from burn_remote_protocol.dtypes import BF16, F16, F32, F64, I8, I32, U64, DType
from burn_remote_server.backends.numpy.backend import NumpyBackend

ARRAYS: dict[DType, Any] = {
    F64: np.float64, F32: np.float32, F16: np.float16, BF16: ml_dtypes.bfloat16, I32: np.int32,
    I8: np.int8, U64: np.uint64,
}  # fmt: skip
EXACT = {
    Reduction.SUM: np.add,
    Reduction.MIN: np.minimum,
    Reduction.MAX: np.maximum,
    Reduction.PRODUCT: np.multiply,
}


def combined(
    dtype: DType, reduction: Reduction, own: Any, received: Any, *, is_last: bool = True
) -> Any:
    """Combine two arrays as two members would; the result overwrites what was received."""
    combine = NumpyBackend().combiner(dtype, reduction, 2)
    out = received.copy()
    memory = out.view(np.uint8).data
    combine(own.view(np.uint8).data, memory, memory, is_last)
    return out


@pytest.mark.parametrize("dtype", ARRAYS, ids=str)
@pytest.mark.parametrize("reduction", EXACT, ids=str)
def test_small_integers_are_combined_exactly(dtype: DType, reduction: Reduction) -> None:
    own = np.arange(1, 11).astype(ARRAYS[dtype])
    received = np.array([7, 1, 2, 9, 9, 3, 4, 1, 5, 0]).astype(ARRAYS[dtype])
    wanted = EXACT[reduction](own.astype(np.int64), received.astype(np.int64))
    found = combined(dtype, reduction, own, received)
    assert found.dtype == own.dtype
    np.testing.assert_array_equal(found.astype(np.int64), wanted)


@pytest.mark.parametrize("dtype", [F64, F32, F16, BF16], ids=str)
def test_a_mean_divides_only_when_all_members_are_combined(dtype: DType) -> None:
    own, received = (np.array([value, 1]).astype(ARRAYS[dtype]) for value in (3, 8))
    last = combined(dtype, Reduction.MEAN, own, received)
    between = combined(dtype, Reduction.MEAN, own, received, is_last=False)
    assert last.astype(float).tolist() == [5.5, 1]
    assert between.astype(float).tolist() == [11, 2]


def test_the_mean_of_large_float16_does_not_overflow() -> None:
    own = np.full(3, 60_000, np.float16)
    assert combined(F16, Reduction.MEAN, own, own).tolist() == own.tolist()


def test_half_precision_is_rounded_once_in_each_combination() -> None:
    for dtype in (F16, BF16):
        own, received = (
            np.random.default_rng(seed).random(500).astype(ARRAYS[dtype]) for seed in (1, 2)
        )
        wanted = (own.astype(np.float32) + received.astype(np.float32)).astype(ARRAYS[dtype])
        assert combined(dtype, Reduction.SUM, own, received).tobytes() == wanted.tobytes()


def test_integers_wrap() -> None:
    own = np.array([127, -128], np.int8)
    found = combined(I8, Reduction.SUM, own, np.array([1, -1], np.int8))
    assert found.tolist() == [-128, 127]


def test_nan_passes_through_the_extremes() -> None:
    own, received = np.array([1, np.nan], np.float32), np.array([np.nan, 1], np.float32)
    for reduction in (Reduction.MIN, Reduction.MAX):
        assert np.isnan(combined(F32, reduction, own, received)).all()
