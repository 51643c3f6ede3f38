"""Pooling matches its definition."""

from __future__ import annotations

import numpy as np

import burn_remote as br
from burn_remote import functional as F
from support.values import same

RNG = np.random.default_rng(0)


def test_pooling_matches_its_definition(device: br.Device) -> None:
    a = RNG.random((1, 2, 6, 6))
    x = br.tensor(a, device=device)
    blocks = a.reshape(1, 2, 3, 2, 3, 2)
    same(F.avg_pool2d(x, 2), blocks.mean((3, 5)), 1e-12)
    same(F.max_pool2d(x, 2), blocks.max((3, 5)))
    same(F.adaptive_avg_pool2d(x, 3), blocks.mean((3, 5)), 1e-12)
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
