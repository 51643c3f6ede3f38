"""Train a network whose first layer is on one server and whose second layer is on another.

`x.to(device)` moves the hidden layer from server to server. Its gradient moves back the same way,
without passing through this program. Nothing waits until the end.

    python examples/pipeline_two_servers.py                     starts two servers for it
    python examples/pipeline_two_servers.py --address ws://gpu-a:3000 --address ws://gpu-b:3000
"""

from __future__ import annotations

import contextlib
import time
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

import burn_remote as br
from burn_remote import functional as F
from cluster.digits_data import CLASSES, PIXELS, load
from command_line import run
from servers import running_servers

HIDDEN = 64
BATCH = 96

console = Console()


def hidden_of(weights: dict[str, br.Tensor], pixels: br.Tensor) -> br.Tensor:
    """Return the hidden layer ``[count, 64]`` of images ``[count, 64]``."""
    return F.linear(pixels, weights["weight"], weights["bias"]).relu()


def parameters(rows: int, columns: int, device: br.Device) -> dict[str, br.Tensor]:
    """Draw the tracked weights of a linear layer on a device."""
    return {
        "weight": br.init.kaiming_normal((rows, columns), device=device).requires_grad_(),
        "bias": br.zeros((rows,), device=device).requires_grad_(),
    }


def main(
    address: Annotated[
        list[str] | None,
        typer.Option(help="A running server; give it twice. Default: two servers are started."),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the 1,440 images.")] = 10,
) -> None:
    """Train over two servers, and classify images that the training has not seen."""
    digits, test_digits = load()
    with contextlib.ExitStack() as stack:
        addresses = address or stack.enter_context(running_servers(2))
        if len(addresses) != 2:
            raise typer.BadParameter("give --address twice")
        front, back = [stack.enter_context(br.RemoteDevice(one)) for one in addresses]
        front.seed(0)
        back.seed(1)
        first, second = parameters(HIDDEN, PIXELS, front), parameters(CLASSES, HIDDEN, back)
        # Each server updates its own layer.
        optimizers = [br.optim.Adam(layer, lr=3e-3) for layer in (first, second)]
        before = front.traffic, back.traffic
        started, steps = time.perf_counter(), 0
        for epoch in range(epochs):
            order = np.random.default_rng(epoch).permutation(len(digits.labels))
            for start in range(0, len(order), BATCH):
                rows = order[start : start + BATCH]
                hidden = hidden_of(first, br.tensor(digits.pixels[rows], device=front)).to(back)
                logits = F.linear(hidden, second["weight"], second["bias"])
                loss = F.cross_entropy(logits, br.tensor(digits.labels[rows], device=back))
                for optimizer in optimizers:
                    optimizer.zero_grad()
                loss.backward()
                for optimizer in optimizers:
                    optimizer.step()
                steps += 1
        requests = (front.traffic - before[0]).requests + (back.traffic - before[1]).requests
        console.print(f"loss {loss.item():.4f} after {steps} steps, {requests} requests before it")
        seconds = time.perf_counter() - started
        with br.no_grad():
            hidden = hidden_of(first, br.tensor(test_digits.pixels, device=front)).to(back)
            predicted = F.linear(hidden, second["weight"], second["bias"]).argmax(axis=-1)
        accuracy = np.mean(predicted.numpy().ravel() == test_digits.labels)
        console.print(f"test accuracy {accuracy:.1%}, {steps / seconds:,.0f} steps per second")


if __name__ == "__main__":
    run(main)
