"""The training program with a compiled step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer import Typer
from typer.testing import CliRunner

import burn_remote as br
import train_digits
from cluster import digits_data
from support.servers import server

STEP = 1e-6
ROWS = 5


def logits_by_definition(weights: dict[str, Any], images: np.ndarray) -> np.ndarray:
    """Return the logits of the network for images ``[n, 1, 8, 8]``, in float64."""
    padded = np.pad(images[:, 0].astype(np.float64), ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    convolved = np.einsum("nhwij,cij->nchw", windows, weights["filters"][:, 0])
    active = np.maximum(convolved + weights["filter_bias"][:, None, None], 0)
    pooled = active.reshape(len(images), -1, 4, 2, 4, 2).max(axis=(3, 5))
    features = pooled.reshape(len(images), -1)
    return np.asarray(features @ weights["linear"] + weights["linear_bias"])


def loss_by_definition(weights: dict[str, Any], images: np.ndarray, labels: np.ndarray) -> float:
    logits = logits_by_definition(weights, images)
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return -float(np.log(chances[np.arange(len(labels)), labels]).mean())


def test_the_gradients_match_finite_differences() -> None:
    train, _ = digits_data.load()
    images, labels = train.pixels[:ROWS].reshape(-1, 1, 8, 8), train.labels[:ROWS]
    with br.LocalDevice() as device:
        device.seed(0)
        weights = train_digits.initial_weights(device)
        # Not 0: ReLU has no derivative there, and black pixels would give exactly 0.
        bias = br.random.uniform((train_digits.CHANNELS,), low=0.1, high=0.5, device=device)
        weights["filter_bias"] = bias
        given = (br.tensor(images, device=device), br.tensor(labels, device=device))
        rows = br.arange(ROWS, device=device)
        changed, loss = train_digits.step(weights, *given, rows, 1.0)
        before = {name: weight.numpy().astype(np.float64) for name, weight in weights.items()}
        found = {name: before[name] - changed[name].numpy() for name in weights}
        assert loss.item() == pytest.approx(loss_by_definition(before, images, labels), rel=1e-5)
    random = np.random.default_rng(1)
    for name, weight in before.items():
        for place in random.choice(weight.size, min(weight.size, 10), replace=False):
            index = np.unravel_index(place, weight.shape)
            losses = []
            for moved in (STEP, -STEP):
                nearby = {**before, name: weight.copy()}
                nearby[name][index] += moved
                losses.append(loss_by_definition(nearby, images, labels))
            slope = (losses[0] - losses[1]) / (2 * STEP)
            assert found[name][index] == pytest.approx(slope, rel=1e-3, abs=1e-5), name


def printed(*arguments: str) -> str:
    program = Typer()
    program.command()(train_digits.main)
    result = CliRunner().invoke(program, [*arguments, "--epochs", "6"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_program_saves_weights_that_classify_unseen_images(tmp_path: Path) -> None:
    file = tmp_path / "weights.npz"
    printed("--local", "--save", str(file))
    _, test = digits_data.load()
    with np.load(file) as weights:
        logits = logits_by_definition(dict(weights), test.pixels.reshape(-1, 1, 8, 8))
    assert np.mean(logits.argmax(axis=1) == test.labels) > 0.9


def test_the_program_sends_less_than_256_bytes_per_step_to_a_server() -> None:
    with server() as running:
        last = printed("--device", running.address).splitlines()[-1]
    bytes_per_step = int(last.partition(" bytes sent per step")[0].rpartition(" ")[2])
    assert bytes_per_step < 256
