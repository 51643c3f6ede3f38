"""Neural networks: an LSTM, and a convolutional network that Adam trains."""

from __future__ import annotations

import numpy as np

import burn_remote as br
from burn_remote import functional as F


def lstm(sequence: np.ndarray, weights: dict[str, np.ndarray], device: br.Device) -> np.ndarray:
    """Return the last hidden state of an LSTM for a sequence ``[steps, features]``."""
    w = {name: br.tensor(array, device=device) for name, array in weights.items()}
    hidden = cell = br.zeros(w["recurrent"].shape[1], dtype=w["input"].dtype, device=device)
    for x in br.unstack(br.tensor(sequence, device=device)):
        gates = w["input"] @ x + w["recurrent"] @ hidden + w["bias"]
        enter, forget, new, leave = br.split(gates, 4)
        cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
        hidden = leave.sigmoid() * cell.tanh()
    return hidden.numpy()


def train_network(images: np.ndarray, labels: np.ndarray, device: br.Device) -> list[float]:
    """Train a small convolutional network with Adam; return the loss of each step."""
    device.seed(0)
    x, y = br.tensor(images, device=device), br.tensor(labels, device=device)
    weights = {
        "filters": br.init.kaiming_uniform((8, 1, 3, 3), device=device),
        "classes": br.init.kaiming_uniform((10, 8 * 4 * 4), device=device),
    }
    optimizer = br.optim.Adam(lr=1e-2)
    state = optimizer.init(weights)

    def loss_of(weights: dict[str, br.Tensor]) -> br.Tensor:
        maps = F.max_pool2d(F.conv2d(x, weights["filters"], padding=1).relu(), 2)
        return F.cross_entropy(F.linear(maps.flatten(1), weights["classes"]), y)

    losses = []
    for _ in range(60):
        loss, grads = br.value_and_grad(loss_of)(weights)
        weights, state = optimizer.update(weights, grads, state)
        losses.append(loss)
    return [float(one) for one in br.read(losses)]
