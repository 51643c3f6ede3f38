"""Train a small convolutional network on handwritten digits with a compiled step.

`br.compile` records the training step in its first call. Every later step sends one short message,
although the step has 51 operations. Its gradients are written by hand with
`burn_remote.gradients`, because there is no automatic differentiation yet.

    python examples/train_digits.py                          starts a server and stops it
    python examples/train_digits.py --device ws://a:3000
    python examples/train_digits.py --local                  no server at all
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress

import burn_remote as br
from burn_remote import functional, gradients
from cluster.digits_data import CLASSES, Digits, load
from servers import running_servers

SIDE = 8  # pixels of an image in each direction
CHANNELS = 16
FEATURES = CHANNELS * (SIDE // 2) ** 2
BATCH = 64
LEARNING_RATE = 0.3

Weights = dict[str, br.Tensor]

console = Console()


def initial_weights(device: br.Device) -> Weights:
    """Draw the weights of a convolution of 3×3 pixels, and of a linear layer."""
    return {
        "filters": br.init.kaiming_normal((CHANNELS, 1, 3, 3), device=device),
        "filter_bias": br.zeros((CHANNELS,), device=device),
        "linear": br.random.normal((FEATURES, CLASSES), std=FEATURES**-0.5, device=device),
        "linear_bias": br.zeros((CLASSES,), device=device),
    }


@br.compile
def step(
    weights: Weights, images: br.Tensor, labels: br.Tensor, rows: br.Tensor, rate: float
) -> tuple[Weights, br.Tensor]:
    """Take one step of gradient descent; return the new weights and the mean loss ``[]``.

    ``images`` is ``[count, 1, 8, 8]``, ``labels`` ``[count]``; ``rows`` are those of the batch.
    ``rate`` may differ in each call: it is sent with the call.
    """
    x, y = images.take(rows, axis=0), labels.take(rows)
    # Forward.
    convolved = functional.conv2d(x, weights["filters"], weights["filter_bias"], padding=1)
    active = convolved.relu()
    pooled, places = functional.max_pool2d_with_indices(active, 2)
    features = pooled.reshape((-1, FEATURES))
    logits = features @ weights["linear"] + weights["linear_bias"]
    loss = functional.cross_entropy(logits, y)
    # Backward, in the opposite order.
    wanted = functional.one_hot(y, CLASSES).astype(br.float32)
    d_logits = (logits.softmax(axis=-1) - wanted) / len(rows)
    d_features = gradients.linear_x_backward(weights["linear"], d_logits)
    d_pooled = d_features.reshape(pooled.shape)
    d_active = gradients.max_pool_backward(active, d_pooled, places, 2, 2)
    d_convolved = d_active * (convolved > 0).astype(br.float32)
    found = {
        "filters": gradients.conv_weight_backward(x, weights["filters"], d_convolved, padding=1),
        "filter_bias": gradients.conv_bias_backward(x, weights["filter_bias"], d_convolved),
        "linear": gradients.linear_weight_backward(features, d_logits),
        "linear_bias": gradients.linear_bias_backward(d_logits),
    }
    return {name: weight - found[name] * rate for name, weight in weights.items()}, loss


@br.compile
def correct_count(weights: Weights, images: br.Tensor, labels: br.Tensor) -> br.Tensor:
    """Return how many images the network classifies correctly, ``[]``."""
    hidden = functional.conv2d(images, weights["filters"], weights["filter_bias"], padding=1)
    features = functional.max_pool2d(hidden.relu(), 2).reshape((-1, FEATURES))
    logits = features @ weights["linear"] + weights["linear_bias"]
    return (logits.argmax(axis=-1) == labels).sum()


def sent(digits: Digits, device: br.Device) -> tuple[br.Tensor, br.Tensor]:
    """Send images ``[count, 1, 8, 8]`` and labels ``[count]`` to a device."""
    images = digits.pixels.reshape(-1, 1, SIDE, SIDE)
    return br.tensor(images, device=device), br.tensor(digits.labels, device=device)


def train(weights: Weights, images: br.Tensor, labels: br.Tensor, epochs: int) -> Weights:
    """Train with a learning rate that falls from ``LEARNING_RATE`` to 0 along a cosine."""
    count, device = len(labels), images.device
    steps = epochs * (count // BATCH)
    done = 0
    with Progress(*Progress.get_default_columns(), "{task.fields[loss]}", console=console) as bar:
        task = bar.add_task("training", total=steps, loss="")
        for _ in range(epochs):
            order = br.random.permutation(count, device=device)
            for start in range(0, count - BATCH + 1, BATCH):
                rate = LEARNING_RATE * (1 + math.cos(math.pi * done / steps)) / 2
                rows = order[start : start + BATCH]
                weights, loss = step(weights, images, labels, rows, rate)
                done += 1
            # The only read: once per epoch, because it waits for the server.
            bar.update(task, completed=done, loss=f"loss {loss.item():.3f}")
    return weights


def save(weights: Weights, file: Path) -> None:
    """Read all weights in one round trip and save them for ``numpy.load``."""
    arrays = br.read([*weights.values()])
    np.savez(file, allow_pickle=False, **dict(zip(weights, arrays, strict=True)))


@contextlib.contextmanager
def opened(address: str | None, local: bool) -> Iterator[br.Device]:
    """Open the device, and start a server for it if there is no address."""
    with contextlib.ExitStack() as stack:
        if local:
            yield stack.enter_context(br.LocalDevice())
            return
        if address is None:
            (address,) = stack.enter_context(running_servers(1))
        yield stack.enter_context(br.RemoteDevice(address))


def main(
    device: Annotated[
        str | None, typer.Option(help="Address of a running server, such as ws://gpu-box:3000.")
    ] = None,
    local: Annotated[bool, typer.Option(help="Compute in this process, with no server.")] = False,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training data.")] = 20,
    weights_file: Annotated[
        Path | None, typer.Option("--save", help="Save the weights here, as a .npz file.")
    ] = None,
) -> None:
    """Train, evaluate on images that the training has not seen, and save the weights."""
    training_digits, test_digits = load()
    with opened(device, local) as place:
        place.seed(0)
        images, labels = sent(training_digits, place)
        weights = initial_weights(place)
        before, started = place.traffic, time.perf_counter()
        weights = train(weights, images, labels, epochs)
        place.sync()
        seconds, used = time.perf_counter() - started, place.traffic - before
        steps = epochs * (len(training_digits.labels) // BATCH)
        accuracy = correct_count(weights, *sent(test_digits, place)).item()
        accuracy /= len(test_digits.labels)
        if weights_file is not None:
            save(weights, weights_file)
    console.print(
        f"test accuracy {accuracy:.1%}, {steps / seconds:,.0f} steps per second, "
        f"{used.bytes_sent / steps:,.0f} bytes sent per step"
    )


if __name__ == "__main__":
    typer.run(main)
