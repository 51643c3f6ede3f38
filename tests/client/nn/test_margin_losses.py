"""Distances, losses with margins and likelihoods match PyTorch's documentation."""

from __future__ import annotations

import math

import numpy as np
import pytest

import burn_remote as br
from burn_remote import functional as F
from support.values import same

RNG = np.random.default_rng(6)


def test_pairwise_distances_match_numpy(device: br.Device) -> None:
    a, b = RNG.normal(size=(2, 4, 3))
    x, y = br.tensor(a, device=device), br.tensor(b, device=device)
    for p in (1.0, 2.0, 3.0, math.inf):
        expected = np.linalg.norm(a - b + 1e-6, ord=p, axis=-1)
        same(F.pairwise_distance(x, y, p), expected, 1e-12)
        same(F.pairwise_distance(x, y, p, keepdim=True), expected[:, None], 1e-12)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_losses_with_a_margin_match_their_definitions(device: br.Device, reduction: str) -> None:
    a, b, c = RNG.normal(size=(3, 5, 3))
    t = np.array([1.0, -1, 1, -1, -1])
    x, y, z, target = (br.tensor(one, device=device) for one in (a, b, c, t))

    def check(found: br.Tensor, losses: np.ndarray) -> None:
        expected = {"none": losses, "sum": losses.sum(), "mean": losses.mean()}[reduction]
        same(found, expected, 1e-12)

    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    check(
        F.cosine_embedding_loss(x, y, target, 0.1, reduction),
        np.where(t > 0, 1 - cosine, np.maximum(cosine - 0.1, 0)),
    )
    row, other = a[:, 0], b[:, 0]
    check(
        F.hinge_embedding_loss(x[:, 0], target, 0.7, reduction),
        np.where(t > 0, row, np.maximum(0.7 - row, 0)),
    )
    check(
        F.margin_ranking_loss(x[:, 0], y[:, 0], target, 0.3, reduction),
        np.maximum(-t * (row - other) + 0.3, 0),
    )
    check(F.soft_margin_loss(x[:, 0], target, reduction), np.log1p(np.exp(-t * row)))

    def far(one: np.ndarray, two: np.ndarray) -> np.ndarray:
        return np.asarray(np.linalg.norm(one - two + 1e-6, axis=1))

    for swap in (False, True):
        away = np.minimum(far(a, c), far(b, c)) if swap else far(a, c)
        check(
            F.triplet_margin_loss(x, y, z, 0.5, swap=swap, reduction=reduction),
            np.maximum(far(a, b) - away + 0.5, 0),
        )


def test_likelihood_losses_match_their_definitions(device: br.Device) -> None:
    a, v = RNG.normal(size=(2, 6))
    counts = np.array([0.0, 1, 2, 3, 7, 50])
    x, n, var = (br.tensor(one, device=device) for one in (a, counts, v))
    same(F.poisson_nll_loss(x, n, reduction="none"), np.exp(a) - counts * a, 1e-12)
    rate = br.tensor(np.exp(a), device=device)
    expected = np.exp(a) - counts * np.log(np.exp(a) + 1e-8)
    same(F.poisson_nll_loss(rate, n, log_input=False, reduction="sum"), expected.sum(), 1e-12)
    some = np.where(counts > 1, counts, 1)
    stirling = some * np.log(some) - some + np.log(2 * np.pi * some) / 2
    expected = np.exp(a) - counts * a + np.where(counts > 1, stirling, 0)
    same(F.poisson_nll_loss(x, n, full=True), expected.mean(), 1e-12)

    spread = np.maximum(v, 1e-6)
    expected = (np.log(spread) + (a - counts) ** 2 / spread) / 2
    same(F.gaussian_nll_loss(x, n, var, reduction="none"), expected, 1e-12)
    constant = math.log(2 * math.pi) / 2
    same(F.gaussian_nll_loss(x, n, var, full=True), (expected + constant).mean(), 1e-12)


@pytest.mark.parametrize("keepdim", [False, True])
def test_the_distance_of_order_0_counts_differing_elements(
    device: br.Device, keepdim: bool
) -> None:
    x = br.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], device=device)
    y = br.tensor([[1.0, 0.0, 0.0], [4.0, 5.0, 6.0]], device=device)
    found = F.pairwise_distance(x, y, p=0, eps=0, keepdim=keepdim).numpy()
    np.testing.assert_array_equal(found, np.reshape([2.0, 0.0], (2, 1) if keepdim else (2,)))
