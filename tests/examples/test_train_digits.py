"""The training of a convolutional network."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

import burn_remote as br
import train_digits
from cluster import digits_data
from support.example_runs import points_of, printed_by
from support.servers import server


def test_the_saved_weights_classify_unseen_images(tmp_path: Path) -> None:
    file, chart = tmp_path / "weights", tmp_path / "chart.svg"
    printed_by(train_digits.main, "--epochs", "6", "--save", str(file), "--chart", str(chart))
    assert len(points_of(chart)) == 6 * (digits_data.TRAIN_COUNT // train_digits.BATCH)
    _, test = digits_data.load()
    with br.LocalDevice() as device:
        weights = {
            name: one.numpy() for name, one in br.load_safetensors(file, device=device).items()
        }
    # The network by its definition.
    padded = np.pad(test.pixels.reshape(-1, 8, 8), ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    convolved = np.einsum("nhwij,cij->nchw", windows, weights["filters"][:, 0])
    active = np.maximum(convolved + weights["filter_bias"][:, None, None], 0)
    pooled = active.reshape(len(padded), -1, 4, 2, 4, 2).max(axis=(3, 5))
    logits = pooled.reshape(len(padded), -1) @ weights["linear"].T + weights["linear_bias"]
    assert np.mean(logits.argmax(axis=1) == test.labels) > 0.85


def test_it_trains_on_a_server_and_rarely_reads(tmp_path: Path) -> None:
    with server() as running:
        chart = str(tmp_path / "chart.svg")
        printed = printed_by(
            train_digits.main, "--address", running.address, "--epochs", "2", "--chart", chart
        )
    (reads,) = re.findall(r"(\d+) reads", printed)
    assert int(reads) <= 5
