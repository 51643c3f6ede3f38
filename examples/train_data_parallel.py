"""Train a network on handwritten digits with the rows of each batch split over several devices.

Each device has the same weights. It computes the gradients of its rows, and the servers exchange
them directly. This program sends the batches and a few short messages; it waits only at the end.

    python examples/train_data_parallel.py                      starts two servers for it
    python examples/train_data_parallel.py --address ws://gpu-a:3000 --address ws://gpu-b:3000

With --within 1e-6, the exit code is 1 if a request was sent while training, if the replicas differ,
or if a weight differs by more than 1e-6 from that of a training on one device. On equal hardware,
the weights differ by less.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

import burn_remote as br
from burn_remote import functional as F
from cluster.digits_data import CLASSES, PIXELS, Digits, load
from command_line import run
from servers import running_servers

HIDDEN = 64
BATCH = 112  # the last batch of an epoch has 96 images

Weights = dict[str, br.Tensor]

console = Console()


def initial_weights() -> dict[str, np.ndarray]:
    """Draw weights as He et al. (2015) advise for ReLU, always the same ones."""
    random = np.random.default_rng(0)

    def drawn(rows: int, columns: int) -> np.ndarray:
        return random.normal(0, (2 / columns) ** 0.5, (rows, columns)).astype(np.float32)

    return {
        "hidden": drawn(HIDDEN, PIXELS),
        "hidden_bias": np.zeros(HIDDEN, np.float32),
        "output": drawn(CLASSES, HIDDEN),
        "output_bias": np.zeros(CLASSES, np.float32),
    }


def logits_of(weights: Weights, pixels: br.Tensor) -> br.Tensor:
    """Return the logits ``[count, 10]`` of images ``[count, 64]``."""
    hidden = F.linear(pixels, weights["hidden"], weights["hidden_bias"]).relu()
    return F.linear(hidden, weights["output"], weights["output_bias"])


def loss_of(weights: Weights, pixels: br.Tensor, labels: br.Tensor) -> br.Tensor:
    """Return the mean cross-entropy ``[]``."""
    return F.cross_entropy(logits_of(weights, pixels), labels)


def batches(digits: Digits, epochs: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Iterate over images ``[112, 64]`` and labels ``[112]``."""
    random = np.random.default_rng(1)
    for _ in range(epochs):
        order = random.permutation(len(digits.labels))
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            yield digits.pixels[rows], digits.labels[rows]


def train(
    devices: list[br.Device], digits: Digits, epochs: int, *, shards: bool
) -> tuple[br.DataParallel, list[br.Tensor]]:
    """Train on the devices; return the trainer and the loss of each step. Does not wait."""
    optimizer = br.optim.SGD(lr=0.05, momentum=0.9)
    trainer = br.DataParallel(
        loss_of, initial_weights(), devices, optimizer=optimizer, shards_state=shards
    )
    losses = [trainer.step(*batch) for batch in batches(digits, epochs)]
    return trainer, losses


def main(
    address: Annotated[
        list[str] | None,
        typer.Option(help="A running server, once for each. Default: local servers are started."),
    ] = None,
    servers: Annotated[int, typer.Option(min=1, help="How many local servers to start.")] = 2,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the 1,440 images.")] = 6,
    shards: Annotated[
        bool, typer.Option(help="Keep one part of the optimizer's state on each device (ZeRO).")
    ] = False,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token. Default: $BURN_REMOTE_TOKEN.")
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="PEM file with the authority of wss:// servers.")
    ] = None,
    within: Annotated[
        float | None, typer.Option(help="Largest difference from one device that is a success.")
    ] = None,
) -> None:
    """Train on several servers, and compare the weights with those of one device."""
    digits, test_digits = load()
    token = token_file.read_text(encoding="utf-8").strip() if token_file else None
    with contextlib.ExitStack() as stack:
        addresses = address or stack.enter_context(running_servers(servers))
        devices: list[br.Device] = [
            stack.enter_context(br.RemoteDevice(one, token=token, tls=ca)) for one in addresses
        ]
        before, started = [device.traffic for device in devices], time.perf_counter()
        trainer, losses = train(devices, digits, epochs, shards=shards)
        used = [device.traffic - past for device, past in zip(devices, before, strict=True)]
        trainer.group.sync()
        seconds = time.perf_counter() - started
        pixels = br.tensor(test_digits.pixels, device=devices[0])
        predicted = logits_of(trainer.params, pixels).argmax(axis=-1).numpy().ravel()
        replicas = [br.read(br.tree.leaves(one)) for one in trainer.replicas]
        alone, _ = train([stack.enter_context(br.LocalDevice())], digits, epochs, shards=False)
        weights = br.read(br.tree.leaves(alone.params))
        console.print(
            f"test accuracy {np.mean(predicted == test_digits.labels):.1%}, loss "
            f"{losses[-1].item():.4f}, {len(losses) / seconds:,.0f} steps per second on "
            f"{len(devices)} devices by {trainer.group.engine}"
        )
    same = all(
        one.tobytes() == first.tobytes()
        for replica in replicas
        for one, first in zip(replica, replicas[0], strict=True)
    )
    difference = max(
        float(np.abs(one - other).max()) for one, other in zip(replicas[0], weights, strict=True)
    )
    requests = sum(one.requests for one in used)
    console.print(f"requests while training: {requests}")
    console.print(f"replicas are bit-identical: {same}")
    console.print(f"largest difference from one device: {difference:.1e}")
    if within is not None and (requests or not same or not difference <= within):
        raise typer.Exit(1)


if __name__ == "__main__":
    run(main)
