"""The training of a transformer on characters."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

import burn_remote as br
import train_characters
from support.example_runs import points_of, printed_by

SMALL = (
    "--width", "16", "--heads", "2", "--layers", "1", "--context", "16", "--batch", "8",
)  # fmt: skip


def test_it_learns_writes_and_saves(tmp_path: Path) -> None:
    file, chart = tmp_path / "model", tmp_path / "chart.svg"
    printed = printed_by(
        train_characters.main, *SMALL, "--steps", "60", "--rate", "0.03", "--sample", "20",
        "--save", str(file), "--chart", str(chart),
    )  # fmt: skip
    alphabet = br.safetensors_metadata(file)["alphabet"]
    losses = points_of(chart)
    assert len(losses) == 60
    (shown,) = re.findall(r"loss (\d\.\d+); it is drawn", printed)
    assert float(shown) == pytest.approx(sum(losses[-10:]) / 10, rel=0.01)
    # At first it knows nothing but the number of characters.
    assert abs(losses[0] - math.log(len(alphabet))) < 0.3
    assert sum(losses[-10:]) / 10 < 3.6
    with br.LocalDevice() as device:
        model = train_characters.initial(device, len(alphabet), 16, 16, 1)
        assert br.load_safetensors(file, like=model).places.shape == (16, 16)


def test_a_character_depends_only_on_those_before_it() -> None:
    with br.LocalDevice() as device:
        device.seed(1)
        model = train_characters.initial(device, 7, 5, 8, 2)
        first, second = ([[1, 2, 3, 4, 5]], [[1, 2, 3, 6, 0]])
        logits = [
            train_characters.logits_of(model, br.tensor(one, device=device), 2).numpy()
            for one in (first, second)
        ]
    assert abs(logits[0][:, :3] - logits[1][:, :3]).max() < 1e-6
    assert abs(logits[0][:, 3:] - logits[1][:, 3:]).max() > 1e-4
