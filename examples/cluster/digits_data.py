"""The images of handwritten digits for the demo; ``DIGITS.md`` names their source."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

__all__ = ["CLASSES", "PIXELS", "TRAIN_COUNT", "Digits", "load"]

PIXELS: Final = 64
CLASSES: Final = 10
TRAIN_COUNT: Final = 1440


class Digits(NamedTuple):
    """``pixels`` float32 [n, 64] in 0..1; ``labels`` int64 [n]; ``one_hot`` float32 [n, 10]."""

    pixels: np.ndarray
    labels: np.ndarray
    one_hot: np.ndarray


def load() -> tuple[Digits, Digits]:
    """Return the training and the test images, the same at each call."""
    with np.load(Path(__file__).parent / "digits.npz") as file:
        pixels, labels = file["pixels"], file["labels"].astype(np.int64)
    order = np.random.default_rng(0).permutation(len(labels))
    pixels, labels = (pixels[order] / 16).astype(np.float32), labels[order]
    one_hot = np.eye(CLASSES, dtype=np.float32)[labels]
    head, tail = slice(TRAIN_COUNT), slice(TRAIN_COUNT, None)
    return (
        Digits(pixels[head], labels[head], one_hot[head]),
        Digits(pixels[tail], labels[tail], one_hot[tail]),
    )
