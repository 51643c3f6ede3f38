"""The largest elements of windows on a GPU are those of NumPy, bit by bit."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.dtypes import I64
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.kernels.networks.max_pooling import MaxPooling
from burn_remote_server.backends.array.kernels.networks.windows import Windows
from burn_remote_server.backends.cupy.maxima_kernels import maxima_launch

pytestmark = pytest.mark.gpu

# Sizes, taps, stride, padding and dilation: taps that are constants of a kernel, and others.
GEOMETRIES: Any = [
    ((56, 56), (2, 2), (2, 2), (0, 0), (1, 1)),
    ((9, 12), (2, 2), (1, 2), (1, 1), (3, 1)),
    ((28, 27), (3, 3), (2, 2), (1, 1), (1, 1)),
    ((5, 4), (3, 3), (3, 1), (5, 5), (2, 2)),
    ((17, 3), (4, 1), (3, 2), (2, 0), (1, 2)),
    ((300,), (2,), (2,), (0,), (1,)),
    ((31,), (5,), (3,), (4,), (2,)),
]


def drawn(shape: tuple[int, ...], dtype: Any) -> Any:
    """Return small integers, so that many are equal, and some that are not finite."""
    draw = np.random.default_rng(0)
    x = draw.integers(-3, 3, shape).astype(dtype)
    for value in (np.nan, np.inf, -np.inf, -0.0):
        x[draw.random(shape) < 0.05] = value
    x[:1] = -np.inf
    return x


def assert_equal(windows: Windows, x: Any) -> None:
    import cupy

    from burn_remote_server.backends.cupy.window_maxima import window_maxima

    shape = (*x.shape[:2], *windows.outputs)
    expected, positions = MaxPooling(np)._maxima_and_indices(x, windows, TensorSpec(shape, I64))
    on_gpu, where = cupy.asarray(x), cupy.full(shape, 99, np.int64)
    for found in (
        window_maxima(on_gpu, windows, shape),
        window_maxima(on_gpu, windows, shape, where),
    ):
        np.testing.assert_array_equal(found.get(), expected)
        np.testing.assert_array_equal(np.signbit(found.get()), np.signbit(expected))
    np.testing.assert_array_equal(where.get(), positions)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_maxima_and_their_positions_are_those_of_numpy(gpu: Any, geometry: Any, dtype: Any) -> None:
    sizes, *rest = geometry
    for ceil_mode in (False, True):
        windows = Windows.of("MaxPool", sizes, *rest, ceil_mode=ceil_mode)
        assert_equal(windows, drawn((3, 5, *sizes), dtype))


def test_planes_in_several_groups_have_the_same_maxima(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two planes per group; the last group has one. No other test uses this shape.
    few = partial(maxima_launch, max_count=2 * 6 * 7)
    module = "burn_remote_server.backends.cupy.window_maxima"
    monkeypatch.setattr(f"{module}.maxima_launch", few)
    windows = Windows.of("MaxPool", (12, 14), (2, 2), (2, 2), (0, 0), (1, 1))
    assert_equal(windows, drawn((3, 7, 12, 14), np.float32))


def test_an_input_without_elements_has_infinite_maxima_without_positions(gpu: Any) -> None:
    windows = Windows.of("MaxPool", (0, 3), (2, 2), (1, 1), (1, 0), (1, 1))
    assert windows.outputs == (1, 2)
    assert_equal(windows, np.zeros((2, 2, 0, 3), np.float32))
