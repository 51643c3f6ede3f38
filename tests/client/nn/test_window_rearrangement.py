"""unfold, fold, pixel_shuffle and pixel_unshuffle match PyTorch's definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote import functional as F
from support.values import same

RNG = np.random.default_rng(4)

# kernel, dilation, padding, stride
GEOMETRIES = [
    ((2, 3), (1, 1), (0, 0), (1, 1)),
    ((3, 3), (1, 2), (1, 2), (2, 1)),
    ((1, 2), (1, 1), (0, 1), (3, 2)),
]


def windows(x: np.ndarray[Any, Any], geometry: Any) -> Any:
    """Yield each window and its slices in the padded image."""
    (kh, kw), (dh, dw), (ph, pw), (sh, sw) = geometry
    padded = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)))
    height, width = padded.shape[2:]
    for top in range(0, height - dh * (kh - 1), sh):
        for left in range(0, width - dw * (kw - 1), sw):
            rows, columns = slice(top, top + dh * kh, dh), slice(left, left + dw * kw, dw)
            yield padded[:, :, rows, columns], (rows, columns)


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_unfold_returns_windows_as_columns(device: br.Device, geometry: Any) -> None:
    a = RNG.random((2, 3, 6, 7))
    expected = np.stack([w.reshape(2, -1) for w, _ in windows(a, geometry)], axis=-1)
    x = br.tensor(a, device=device)
    same(F.unfold(x, *geometry), expected)
    same(F.unfold(x[0], *geometry), expected[0])


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_fold_sums_columns_at_their_windows(device: br.Device, geometry: Any) -> None:
    kernel, _, (ph, pw), _ = geometry
    places = [place for _, place in windows(np.zeros((1, 1, 6, 7)), geometry)]
    columns = RNG.random((2, 3 * kernel[0] * kernel[1], len(places)))
    expected = np.zeros((2, 3, 6 + 2 * ph, 7 + 2 * pw))
    for number, place in enumerate(places):
        expected[(..., *place)] += columns[..., number].reshape(2, 3, *kernel)
    expected = expected[:, :, ph : ph + 6, pw : pw + 7]
    x = br.tensor(columns, device=device)
    same(F.fold(x, (6, 7), *geometry), expected, 1e-12)
    same(F.fold(x[0], (6, 7), *geometry), expected[0], 1e-12)


def test_pixel_unshuffle_inverts_pixel_shuffle(device: br.Device) -> None:
    a = RNG.random((2, 12, 2, 3))
    expected = np.empty((2, 3, 4, 6))
    for c, i, j in np.ndindex(3, 2, 2):
        expected[:, c, i::2, j::2] = a[:, 4 * c + 2 * i + j]
    x = br.tensor(a, device=device)
    same(F.pixel_shuffle(x, 2), expected)
    same(F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2), a)
    same(F.pixel_shuffle(x[0], 2), expected[0])


def test_invalid_shapes_and_factors_are_refused(device: br.Device) -> None:
    x = br.ones((1, 4, 3, 3), device=device)
    with pytest.raises(br.ShapeMismatch, match="does not fit"):
        F.unfold(x, 4)
    with pytest.raises(br.ShapeMismatch, match=r"must be \[batch, channels \* 4, 9\]"):
        F.fold(br.ones((1, 8, 5), device=device), 4, 2)
    with pytest.raises(br.ShapeMismatch, match=r"not divisible by 3 . 3"):
        F.pixel_shuffle(x, 3)
    with pytest.raises(br.ShapeMismatch, match="not divisible by 2"):
        F.pixel_unshuffle(x, 2)
    with pytest.raises(br.UsageError, match="the factor must be a positive integer, not 0"):
        F.pixel_shuffle(x, 0)
