"""Sums on a GPU along axes that are not the last."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.dtypes import F32, F64
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends import Backend
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from support.kernels import signature

pytestmark = pytest.mark.gpu

SHAPES: Any = [
    ((4096, 1024), 0), ((64, 16), 0), ((65, 33), 0), ((300_001, 17), 0), ((3, 300, 70), 1),
    ((5, 64, 2, 9), 1), ((63, 40), 0), ((70, 15), 0), ((2, 70, 5, 7), 1), ((1000, 3), 1),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_sums_along_an_axis_are_those_of_numpy(
    gpu: Backend, shape: tuple[int, ...], axis: int, dtype: Any
) -> None:
    cupy: Any = gpu.array_module  # type: ignore[attr-defined]
    array = np.random.default_rng(0).normal(size=shape).astype(array_dtype(dtype))
    session = gpu.open_session()
    session.activate()
    run = session.bind(
        signature("Numeric.SumDim", TensorSpec(shape, dtype), axis=axis, accumulator_len=1)
    )
    found = run(cupy.asarray(array))
    expected = array.astype(np.float64).sum(axis=axis, keepdims=True)
    assert found.shape == expected.shape
    scale = np.abs(array.astype(np.float64)).sum(axis=axis, keepdims=True)
    error = np.abs(found.get() - expected) / scale
    assert error.max() < (1e-6 if dtype is F32 else 1e-14)
    assert (found.get() == run(cupy.asarray(array)).get()).all()


def test_a_column_with_nan_or_infinity_leaves_the_others_alone(gpu: Backend) -> None:
    cupy: Any = gpu.array_module  # type: ignore[attr-defined]
    array = np.ones((600, 40), np.float32)
    array[7, 3], array[500, 5], array[599, 6], array[0, 6] = np.nan, np.inf, np.inf, -np.inf
    session = gpu.open_session()
    session.activate()
    spec = TensorSpec(array.shape, F32)
    run = session.bind(signature("Numeric.SumDim", spec, axis=0, accumulator_len=1))
    found = run(cupy.asarray(array)).get()[0]
    assert np.isnan(found[[3, 6]]).all()
    assert found[5] == np.inf
    assert (np.delete(found, [3, 5, 6]) == 600).all()
