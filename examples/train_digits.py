"""Train a small convolutional network on handwritten digits.

`br.compile` records the training step in its first call: forward, backward and the update of Adam.
Every later step is one short message and the images of its batch, which this program prepares while
the server computes.

    python examples/train_digits.py                               computes in this process
    python examples/train_digits.py --address ws://gpu-box:3000   computes on a server
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress

import burn_remote as br
from burn_remote import functional as F
from cluster.digits_data import CLASSES, Digits, load
from command_line import run
from loss_curve import LossCurve

SIDE = 8  # pixels of an image in each direction
CHANNELS = 16
FEATURES = CHANNELS * (SIDE // 2) ** 2
BATCH = 64

Weights = dict[str, br.Tensor]

console = Console()


def initial_weights(device: br.Device) -> Weights:
    """Draw the weights of a convolution of 3×3 pixels, and of a linear layer."""
    return {
        "filters": br.init.kaiming_normal((CHANNELS, 1, 3, 3), device=device),
        "filter_bias": br.zeros((CHANNELS,), device=device),
        "linear": br.init.xavier_uniform((CLASSES, FEATURES), device=device),
        "linear_bias": br.zeros((CLASSES,), device=device),
    }


def logits_of(weights: Weights, images: br.Tensor) -> br.Tensor:
    """Return the logits ``[count, 10]`` of images ``[count, 1, 8, 8]``."""
    hidden = F.conv2d(images, weights["filters"], weights["filter_bias"], padding=1).relu()
    features = F.max_pool2d(hidden, 2).reshape((-1, FEATURES))
    return F.linear(features, weights["linear"], weights["linear_bias"])


def loss_of(weights: Weights, images: br.Tensor, labels: br.Tensor) -> br.Tensor:
    """Return the mean cross-entropy ``[]``."""
    return F.cross_entropy(logits_of(weights, images), labels)


optimizer = br.optim.AdamW(lr=3e-3, weight_decay=1e-2)


@br.compile
def step(
    weights: Weights, state: dict[str, Any], images: br.Tensor, labels: br.Tensor, rate: float
) -> tuple[Weights, dict[str, Any], br.Tensor]:
    """Take one step; return the new weights, the optimizer's new state, and the loss ``[]``.

    ``rate`` may differ in each call: it is sent with the call.
    """
    loss, grads = br.value_and_grad(loss_of)(weights, images, labels)
    weights, state = optimizer.update(weights, grads, state, lr=rate)
    return weights, state, loss


@br.compile
def correct_count(weights: Weights, images: br.Tensor, labels: br.Tensor) -> br.Tensor:
    """Return how many images the network classifies correctly, ``[]``."""
    return (logits_of(weights, images).argmax(axis=-1) == labels).sum()


def batches(digits: Digits, epochs: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Iterate over images ``[64, 1, 8, 8]`` and labels ``[64]``.

    Each image is moved by up to one pixel, so the network never sees the same one twice.
    """
    random = np.random.default_rng(0)
    images = np.pad(digits.pixels.reshape(-1, 1, SIDE, SIDE), ((0, 0), (0, 0), (1, 1), (1, 1)))
    for _ in range(epochs):
        order = random.permutation(len(images))
        for start in range(0, len(images) - BATCH + 1, BATCH):
            rows = order[start : start + BATCH]
            x, y = random.integers(0, 3, 2)
            yield images[rows, :, y : y + SIDE, x : x + SIDE], digits.labels[rows]


def main(
    address: Annotated[
        str | None,
        typer.Option(help="A running server, such as ws://gpu-box:3000. Default: this process."),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the 1,440 images.")] = 20,
    save: Annotated[
        Path | None, typer.Option(help="Save the weights here, as a safetensors file.")
    ] = None,
    chart: Annotated[Path, typer.Option(help="Draw the loss here, as SVG.")] = Path("digits.svg"),
) -> None:
    """Train, evaluate on images that the training has not seen, and draw the loss.

    The weights are a dictionary of tensors. Gradients come from
    br.value_and_grad, and br.optim.AdamW updates all weights in the same task.
    """
    training_digits, test_digits = load()
    steps = epochs * (len(training_digits.labels) // BATCH)
    rate = br.optim.schedules.one_cycle(1e-2, steps)
    curve = LossCurve()
    with br.RemoteDevice(address) if address else br.LocalDevice() as device:
        device.seed(0)
        weights = initial_weights(device)
        state = optimizer.init(weights)
        before, started = device.traffic, time.perf_counter()
        with Progress(console=console) as bar:
            task = bar.add_task("training", total=steps)
            for count, (images, labels) in enumerate(batches(training_digits, epochs)):
                # Nothing here waits for the server, until it is 30 steps behind.
                x, y = br.tensor(images, device=device), br.tensor(labels, device=device)
                weights, state, loss = step(weights, state, x, y, rate(count))
                curve.add(loss)
                bar.update(task, completed=len(curve.values), description=curve.recent)
            curve.finish()
            bar.update(task, completed=steps)
        seconds, used = time.perf_counter() - started, device.traffic - before
        x = br.tensor(test_digits.pixels.reshape(-1, 1, SIDE, SIDE), device=device)
        y = br.tensor(test_digits.labels, device=device)
        accuracy = correct_count(weights, x, y).item() / len(y)
        if save is not None:
            br.save_safetensors(save, weights)
    curve.save(chart, f"Digits: test accuracy {accuracy:.1%}")
    console.print(
        f"test accuracy {accuracy:.1%}, {steps / seconds:,.0f} steps per second, "
        f"{used.requests} reads; the loss is drawn in {chart}"
    )


if __name__ == "__main__":
    run(main)
