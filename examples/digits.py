"""Train a classifier of handwritten digits on one server, move it to another, evaluate it there.

The data set is scikit-learn's, with 1,797 images of 8×8 pixels. The network is a perceptron with
one hidden layer and hand-written gradients. It trains on the first device; the trained weights move
directly to the second, so their bytes never pass through this program.

    python examples/digits.py                                   starts two servers and stops them
    python examples/digits.py --address ws://a:3000 --address ws://b:3000
    python examples/digits.py --local                           no server at all
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits

import burn_remote as br
from command_line import run
from servers import running_servers

CLASSES = 10
HIDDEN = 64
BATCH = 64
LEARNING_RATE = 0.3

console = Console()


@dataclass
class Network:
    """Two layers: 64 pixels → ``HIDDEN`` → 10 classes. Every tensor lives on one device."""

    w1: br.Tensor  # [64, HIDDEN]
    b1: br.Tensor  # [1, HIDDEN]
    w2: br.Tensor  # [HIDDEN, 10]
    b2: br.Tensor  # [1, 10]

    @classmethod
    def initial(cls, device: br.Device, pixels: int) -> Network:
        """Draw weights as He et al. (2015) advise for ReLU: normal, variance 2 / inputs."""

        def normal(rows: int, columns: int) -> br.Tensor:
            deviation = (2 / rows) ** 0.5
            return br.random.normal((rows, columns), std=deviation, device=device)

        return cls(
            normal(pixels, HIDDEN),
            br.zeros((1, HIDDEN), device=device),
            normal(HIDDEN, CLASSES),
            br.zeros((1, CLASSES), device=device),
        )

    def forward(self, x: br.Tensor) -> tuple[br.Tensor, br.Tensor]:
        """Return the hidden layer [n, HIDDEN] and the logits [n, 10] for pixels [n, 64]."""
        hidden = (x @ self.w1 + self.b1).relu()
        return hidden, hidden @ self.w2 + self.b2

    def step(self, x: br.Tensor, y: br.Tensor) -> None:
        """Take one step of gradient descent on cross-entropy; ``y`` [n, 10] is one-hot.

        Nothing waits here: every line sends operations and continues.
        """
        hidden, logits = self.forward(x)
        d_logits = (logits.softmax(axis=-1) - y) * (1 / x.shape[0])
        d_hidden = (d_logits @ self.w2.T) * (hidden > 0).astype(br.float32)
        self.w2 = self.w2 - hidden.T @ d_logits * LEARNING_RATE
        self.b2 = self.b2 - d_logits.sum(axis=0, keepdims=True) * LEARNING_RATE
        self.w1 = self.w1 - x.T @ d_hidden * LEARNING_RATE
        self.b1 = self.b1 - d_hidden.sum(axis=0, keepdims=True) * LEARNING_RATE

    def to(self, device: br.Device) -> Network:
        """Move the weights directly between the servers."""
        return Network(*(w.to(device) for w in (self.w1, self.b1, self.w2, self.b2)))

    @property
    def nbytes(self) -> int:
        """Size of all weights in bytes."""
        return sum(w.nbytes for w in (self.w1, self.b1, self.w2, self.b2))


def shuffled_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return pixels [1797, 64] in 0..1 and labels [1797], in a fixed random order."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    return (digits.data[order] / 16).astype(np.float32), digits.target[order]


def train(network: Network, x: np.ndarray, y: np.ndarray, epochs: int, device: br.Device) -> int:
    """Train in batches that live on the device; return the number of steps."""
    one_hot = np.eye(CLASSES, dtype=np.float32)[y]
    starts = range(0, len(x) - BATCH + 1, BATCH)
    batches = [
        (
            br.tensor(x[i : i + BATCH], device=device),
            br.tensor(one_hot[i : i + BATCH], device=device),
        )
        for i in starts
    ]
    for _ in track(range(epochs), description="training", console=console):
        for pixels, targets in batches:
            network.step(pixels, targets)
        device.sync()  # once per pass, so that the progress bar is accurate
    return epochs * len(batches)


@contextlib.contextmanager
def opened(addresses: list[str], local: bool) -> Iterator[tuple[br.Device, br.Device]]:
    """Open the device to train on and the device to evaluate on."""
    with contextlib.ExitStack() as stack:
        if local:
            yield br.LocalDevice(), br.LocalDevice()
            return
        if not addresses:
            addresses = stack.enter_context(running_servers(2))
        first, second = addresses[0], addresses[-1]
        yield (
            stack.enter_context(br.RemoteDevice(first)),
            stack.enter_context(br.RemoteDevice(second)),
        )


def main(
    address: Annotated[
        list[str] | None,
        typer.Option(help="A running server; give it twice. Default: two servers are started."),
    ] = None,
    local: Annotated[bool, typer.Option(help="Compute in this process, with no server.")] = False,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training data.")] = 40,
) -> None:
    """Train on the first device, move the weights to the second, evaluate there."""
    x, y = shuffled_digits()
    train_count = 1440
    with opened(address or [], local) as (trainer, evaluator):
        trainer.seed(0)
        network = Network.initial(trainer, x.shape[1])
        before = trainer.traffic
        started = time.perf_counter()
        steps = train(network, x[:train_count], y[:train_count], epochs, trainer)
        seconds = time.perf_counter() - started
        trained = trainer.traffic - before

        sent = [trainer.traffic, evaluator.traffic]
        moved = network.to(evaluator)
        evaluator.sync()
        moving = [trainer.traffic - sent[0], evaluator.traffic - sent[1]]
        client_bytes = sum(t.bytes_sent + t.bytes_received for t in moving)

        _, logits = moved.forward(br.tensor(x[train_count:], device=evaluator))
        accuracy = float(np.mean(logits.argmax(axis=-1).numpy().ravel() == y[train_count:]))
        total = trainer.traffic

    table = Table(title=f"Trained on {trainer}, evaluated on {evaluator}", show_header=False)
    table.add_row("test accuracy", f"{accuracy:.1%}")
    table.add_row("training steps per second", f"{steps / seconds:,.0f}")
    table.add_row("operations sent", f"{total.operations:,}")
    table.add_row("frames sent", f"{total.frames_sent:,}")
    table.add_row(
        "operations per frame while training", f"{trained.operations / trained.frames_sent:.0f}"
    )
    table.add_row("bytes up", f"{total.bytes_sent:,}")
    table.add_row("bytes down", f"{total.bytes_received:,}")
    table.add_row("bytes moved from server to server", f"{network.nbytes:,}")
    table.add_row("this program's bytes during the move", f"{client_bytes:,}")
    console.print(table)
    if accuracy < 0.95:
        console.print("The accuracy should be at least 95 %.", style="red")
        raise typer.Exit(1)


if __name__ == "__main__":
    run(main)
