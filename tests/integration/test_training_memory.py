"""The maximum of the tensor bytes that a server counts in a training step."""

from __future__ import annotations

import numpy as np
import pytest

import burn_remote as br
from burn_remote import functional as F
from burn_remote_server.access.quota import Quota

LAYERS, WIDTH, BATCH = 48, 64, 4096


def test_a_step_takes_at_most_five_percent_more_than_it_keeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quotas: list[Quota] = []
    counts: list[int] = []
    take = Quota.take

    def counted(quota: Quota, size: int, count: int) -> None:
        take(quota, size, count)
        quotas.append(quota)
        counts.append(quota.bytes)

    monkeypatch.setattr(Quota, "take", counted)
    random = np.random.default_rng(0)
    with br.LocalDevice() as device:
        weights = [
            device.tensor(random.normal(0, 0.1, (WIDTH, WIDTH)).astype(np.float32))
            for _ in range(LAYERS)
        ]
        optimizer = br.optim.AdamW()
        state = optimizer.init(weights)
        x = device.tensor(np.zeros((BATCH, WIDTH), np.float32))
        labels = device.tensor(np.zeros(BATCH, np.int64))
        held: list[int] = []

        def loss_of(weights: list[br.Tensor]) -> br.Tensor:
            hidden = x
            for weight in weights:
                hidden = F.relu(F.linear(hidden, weight))
            loss = F.cross_entropy(hidden, labels)
            device.sync()  # everything that was dropped before is freed
            held.append(quotas[-1].bytes)
            return loss

        _, grads = br.value_and_grad(loss_of)(weights)
        made = optimizer.update(weights, grads, state)
        device.sync()
        del made
    # One tensor for each layer is saved, beside the parameters and the optimizer's two moments.
    saved, parameters = LAYERS * BATCH * WIDTH * 4, LAYERS * WIDTH * WIDTH * 4
    assert saved + 3 * parameters < held[0] < 1.1 * (saved + 3 * parameters)
    assert max(counts) <= 1.05 * held[0]
