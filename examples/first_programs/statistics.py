"""Classical machine learning: logistic regression, k-means and principal components."""

from __future__ import annotations

import numpy as np

import burn_remote as br
from burn_remote import functional as F


def logistic_regression(
    features: np.ndarray, labels: np.ndarray, device: br.Device, steps: int = 400
) -> np.ndarray:
    """Fit weights and an intercept by gradient descent, with the L2 penalty of scikit-learn."""
    x = br.tensor(features, device=device)
    y = br.tensor(labels, dtype=x.dtype, device=device)
    weights = br.zeros(x.shape[1] + 1, dtype=x.dtype, device=device)

    def loss_of(weights: br.Tensor) -> br.Tensor:
        logits = x @ weights[:-1] + weights[-1]
        penalty = 0.5 * (weights[:-1] ** 2).sum()
        return F.binary_cross_entropy_with_logits(logits, y, reduction="sum") + penalty

    for _ in range(steps):
        weights = weights - 0.02 * br.grad(loss_of)(weights)
    return weights.numpy()


def k_means(points: np.ndarray, centers: np.ndarray, device: br.Device) -> np.ndarray:
    """Move each center to the mean of its nearest points, ten times."""
    x = br.tensor(points, device=device)
    c = br.tensor(centers, device=device)
    for _ in range(10):
        distances = ((x[:, None] - c[None]) ** 2).sum(axis=-1)
        nearest = distances.argmin(axis=1)
        belongs = (nearest[:, None] == br.arange(len(c), device=device)).astype(x.dtype)
        c = (belongs.mT @ x) / belongs.sum(axis=0)[:, None]
    return c.numpy()


def principal_components(samples: np.ndarray, count: int, device: br.Device) -> np.ndarray:
    """Project samples onto the directions of largest variance."""
    x = br.tensor(samples, device=device)
    centered = x - x.mean(axis=0)
    _, _, directions = br.linalg.svd(centered, full_matrices=False)
    return (centered @ directions[:count].mT).numpy()
