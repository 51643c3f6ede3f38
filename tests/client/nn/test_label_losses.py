"""Losses of classes, and of sequences of classes, match their definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote import functional as F
from support.values import same

RNG = np.random.default_rng(0)


def softmax(a: np.ndarray, axis: int = -1) -> Any:
    powers = np.exp(a - a.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def test_losses_of_classes_match_their_definitions(device: br.Device) -> None:
    a, w = RNG.normal(size=(5, 4, 2)), RNG.random(4)
    labels = RNG.integers(0, 4, (5, 2))
    x, weight, y = (br.tensor(one, device=device) for one in (a, w, labels))
    logs = np.log(softmax(a, 1))
    picked = -np.take_along_axis(logs, labels[:, None], 1)[:, 0]
    same(F.cross_entropy(x, y), picked.mean(), 1e-12)
    same(F.cross_entropy(x, y, reduction="none"), picked, 1e-12)
    same(F.cross_entropy(x, y, weight), (picked * w[labels]).sum() / w[labels].sum(), 1e-12)
    counts = labels != 2
    same(F.cross_entropy(x, y, ignore_index=2), picked[counts].mean(), 1e-12)
    marked = br.tensor(np.where(counts, labels, -100), device=device)
    same(F.cross_entropy(x, marked), picked[counts].mean(), 1e-12)
    same(F.cross_entropy(x, marked, reduction="sum"), picked[counts].sum(), 1e-12)
    same(F.cross_entropy(x, marked, reduction="none"), np.where(counts, picked, 0), 1e-12)
    same(F.nll_loss(F.log_softmax(x, dim=1), marked), picked[counts].mean(), 1e-12)
    same(F.cross_entropy(x, y, ignore_index=None), picked.mean(), 1e-12)
    same(F.cross_entropy(x, y.astype(br.uint8)), picked.mean(), 1e-12)
    with pytest.raises(br.OperationFailed, match="index -100 is out of range"):
        F.cross_entropy(x, marked, ignore_index=None).numpy()
    shifted = (softmax(a, 1) - np.moveaxis(np.eye(4)[labels], -1, 1)) * counts[:, None]
    gradient = br.grad(F.cross_entropy)(x, marked)
    same(gradient, shifted / counts.sum(), 1e-12)
    assert np.isnan(F.cross_entropy(x, br.full_like(y, -100)).item())
    shares = w[labels] * counts
    same(F.cross_entropy(x, y, weight, 2), (picked * shares).sum() / shares.sum(), 1e-12)
    same(F.nll_loss(F.log_softmax(x, dim=1), y, reduction="sum"), picked.sum(), 1e-12)
    smooth = 0.9 * picked.mean() - 0.1 * logs.mean(1).mean()
    same(F.cross_entropy(x, y, label_smoothing=0.1), smooth, 1e-12)
    hot = np.moveaxis(np.eye(4)[labels], -1, 1)
    soft = br.tensor(hot, device=device)
    same(F.cross_entropy(x, soft, label_smoothing=0.1), smooth, 1e-12)
    same(F.cross_entropy(x, soft, weight, reduction="none"), picked * w[labels], 1e-12)
    one = F.cross_entropy(x[0, :, 0], y[0, 0])
    same(one, picked[0, 0], 1e-12)
    with pytest.raises(br.ShapeMismatch, match="targets"):
        F.nll_loss(x, y[:, 0])


def test_the_ctc_loss_of_a_single_path_is_its_negative_log_likelihood(device: br.Device) -> None:
    probabilities = softmax(RNG.normal(size=(2, 1, 3)))
    x = br.tensor(np.log(probabilities), device=device)
    targets = br.tensor([[1, 2]], device=device)
    expected = -np.log(probabilities[0, 0, 1] * probabilities[1, 0, 2])
    same(F.ctc_loss(x, targets, [2], [2], reduction="none"), np.array([expected]), 1e-12)
    same(F.ctc_loss(x, targets, [2], [2]), expected / 2, 1e-12)
    same(F.ctc_loss(x, targets, [1], [2], reduction="sum", zero_infinity=True), 0.0)
