"""Pooling matches its definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import burn_remote as br
from burn_remote import functional as F
from burn_remote import gradients
from support.values import same

RNG = np.random.default_rng(0)


def test_pooling_matches_its_definition(device: br.Device) -> None:
    a = RNG.random((1, 2, 6, 6))
    x = br.tensor(a, device=device)
    blocks = a.reshape(1, 2, 3, 2, 3, 2)
    same(F.avg_pool2d(x, 2), blocks.mean((3, 5)), 1e-12)
    same(F.max_pool2d(x, 2), blocks.max((3, 5)))
    same(F.adaptive_avg_pool2d(x, 3), blocks.mean((3, 5)), 1e-12)
    same(F.adaptive_avg_pool2d(x, (None, 1)), a.mean(3, keepdims=True), 1e-12)
    same(F.adaptive_avg_pool2d(x[0], (1, None)), a[0].mean(1, keepdims=True), 1e-12)
    same(F.adaptive_avg_pool3d(x, (None, 1, 1)), a.mean((2, 3), keepdims=True), 1e-12)
    with pytest.raises(br.UsageError, match="neither an integer nor a sequence of one for each"):
        F.adaptive_avg_pool2d(x, (None, 1, 1))
    with pytest.raises(br.ShapeMismatch, match=r"at least 1 on each axis, not \[6, 0\]"):
        F.adaptive_avg_pool2d(x, (None, 0))
    row = x[:, :, 0]
    pairs = a[:, :, 0].reshape(1, 2, 3, 2)
    same(F.avg_pool1d(row, 2), pairs.mean(3), 1e-12)
    same(F.max_pool1d(row, 2), pairs.max(3))
    same(F.adaptive_avg_pool1d(row, 3), pairs.mean(3), 1e-12)
    values, places = F.max_pool1d_with_indices(row, 2)
    same(values, pairs.max(3))
    same(places, pairs.argmax(3) + np.arange(0, 6, 2))
    values, places = F.max_pool2d_with_indices(x, 2)
    flat = a.reshape(1, 2, 36)
    same(values, np.take_along_axis(flat, places.numpy().reshape(1, 2, 9), 2).reshape(1, 2, 3, 3))


def windows_of(size: int, kernel: int, stride: int, padding: int) -> list[range]:
    """Return the elements in each window of PyTorch's ceil mode; padding counts as elements.

    A window ends at the padding behind the input. Each starts in the input, or before it, and the
    one before it does not reach the end of the padding.
    """
    windows, start = [], -padding
    while start < size + padding:
        windows.append(range(start, min(start + kernel, size + padding)))
        if start + kernel >= size + padding:
            break
        start += stride
    return [window for window in windows if window.start < size]


def mean_of(padded: np.ndarray[Any, Any], rows: range, columns: range) -> float:
    """Return the mean of a window of an image with 9 zeros on each side."""
    inside = padded[9 + rows.start : 9 + rows.stop, 9 + columns.start : 9 + columns.stop]
    return float(inside.mean())


LINES = st.tuples(st.integers(1, 7), st.integers(1, 5), st.integers(1, 5)).flatmap(
    lambda sizes: st.tuples(*map(st.just, sizes), st.integers(0, sizes[1] // 2))
)


@given(LINES, LINES)
def test_ceil_mode_has_the_windows_of_pytorch(
    device: br.Device, rows: tuple[int, ...], columns: tuple[int, ...]
) -> None:
    (height, *_), (width, *_) = rows, columns
    both = [windows_of(*rows), windows_of(*columns)]
    a = RNG.random((1, 1, height, width))
    padded = np.pad(a[0, 0], ((9, 9), (9, 9)))
    means = [[mean_of(padded, high, wide) for wide in both[1]] for high in both[0]]
    kernel, stride, padding = zip(rows[1:], columns[1:], strict=True)
    x = br.tensor(a, device=device)
    fits = all(size + 2 * p > k - s for size, k, s, p in (rows, columns))
    if not fits:
        with pytest.raises(br.ShapeMismatch, match="does not fit"):
            F.avg_pool2d(x, kernel, stride, padding, ceil_mode=True)
        return
    same(F.avg_pool2d(x, kernel, stride, padding, ceil_mode=True), np.array([[means]]), 1e-12)
    maxima, places = F.max_pool2d_with_indices(x, kernel, stride, padding, ceil_mode=True)
    np.testing.assert_array_equal(maxima.numpy(), a.reshape(-1)[places.numpy()])
    assert maxima.shape == (1, 1, len(both[0]), len(both[1]))


def test_ceil_mode_drops_windows_behind_the_input_and_takes_a_kernel_that_reaches_past_it(
    device: br.Device,
) -> None:
    x = br.tensor(np.arange(6, dtype=np.float32).reshape(1, 2, 3), device=device)
    # Computed by torch.nn.functional 2.15.
    assert F.avg_pool1d(x, 2, 4, 1, ceil_mode=True).tolist() == [[[0.0], [1.5]]]
    assert F.avg_pool1d(x, 4, 2, ceil_mode=True).tolist() == [[[1.0], [4.0]]]
    assert F.max_pool1d(x, 3, 9, 1, 2, ceil_mode=True).tolist() == [[[1.0], [4.0]]]
    with pytest.raises(br.ShapeMismatch, match=r"a kernel of 4 .* does not fit an axis of 3"):
        F.avg_pool1d(x, 4, 2)


def test_gradients_of_ceil_mode_take_the_shape_of_its_output(device: br.Device) -> None:
    x = br.tensor(np.arange(6, dtype=np.float32).reshape(1, 2, 3), device=device)
    grad = br.tensor(np.array([[[1.0], [3.0]]], np.float32), device=device)
    found = gradients.avg_pool_backward(x, grad, 2, 4, 1, ceil_mode=True)
    assert found.tolist() == [[[0.5, 0, 0], [1.5, 0, 0]]]
    maxima, indices = F.max_pool1d_with_indices(x, 2, 4, 1, ceil_mode=True)
    assert maxima.tolist() == [[[0.0], [3.0]]]
    found = gradients.max_pool_backward(x, grad, indices, 2, 4, 1, ceil_mode=True)
    assert found.tolist() == [[[1.0, 0, 0], [3.0, 0, 0]]]
