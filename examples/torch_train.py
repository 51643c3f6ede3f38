"""Train a PyTorch model on a burn device: a program to start from.

The model is PyTorch's, and so are losses, gradients and the optimizer. A compiled step is three
messages, and nothing waits for the server until the program reads the loss. The program prints the
losses beside those of the same training on the CPU, and the number of round trips.

    pip install ".[torch]"
    python examples/torch_train.py
    python examples/torch_train.py --address ws://gpu-box:3000 --no-compiled
"""

from __future__ import annotations

import copy
from typing import Annotated, Any

import typer
from rich.console import Console

from command_line import run
from optional_packages import check_packages

console = Console()


def model() -> Any:
    """Return a small network for images of 8 × 8 pixels and two classes."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 32), nn.GELU(), nn.Linear(32, 2),
    )  # fmt: skip


def batches(count: int, size: int = 32) -> list[tuple[Any, Any]]:
    """Return noise with a brighter left (0) or right (1) half: ``[size, 1, 8, 8]``, ``[size]``."""
    import torch

    drawn = torch.Generator().manual_seed(0)
    result = []
    for _ in range(count):
        labels = torch.randint(0, 2, (size,), generator=drawn)
        images = torch.randn(size, 1, 8, 8, generator=drawn)
        images[labels == 0, :, :, :4] += 0.5
        images[labels == 1, :, :, 4:] += 0.5
        result.append((images, labels))
    return result


def train(network: Any, data: list[tuple[Any, Any]], device: Any, compiled: bool) -> list[float]:
    """Train for one pass over the data, and return all losses, read at the end."""
    import torch

    network.to(device).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)

    def loss_of(images: Any, labels: Any) -> Any:
        return torch.nn.functional.cross_entropy(network(images), labels)

    update = optimizer.step
    if compiled:
        loss_of = torch.compile(loss_of, backend="burn_remote")
        update = torch.compile(update, backend="burn_remote")
    losses = []
    for images, labels in data:
        loss = loss_of(images.to(device), labels.to(device))
        loss.backward()
        update()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [float(loss) for loss in torch.stack(losses).cpu()]


def compare(address: str = "", steps: int = 40, compiled: bool = True) -> tuple[Any, Any, int]:
    """Return the losses on the device and on the CPU, and the round trips of the training."""
    check_packages("torch", install='pip install ".[torch]"')
    import torch

    import burn_remote as br
    import burn_remote.torch as brt

    torch.manual_seed(0)
    network, data = model(), batches(steps)
    alone = copy.deepcopy(network)
    server = br.RemoteDevice(address) if address else br.LocalDevice()
    device = brt.add(server)
    before = server.traffic.requests
    losses = train(network, data, device, compiled)
    round_trips = server.traffic.requests - before
    return losses, train(alone, data, torch.device("cpu"), False), round_trips


def main(
    address: Annotated[
        str,
        typer.Option(help="A running server, such as ws://gpu-box:3000. Default: this process."),
    ] = "",
    steps: Annotated[int, typer.Option(min=1, help="Steps of training.")] = 40,
    compiled: Annotated[bool, typer.Option(help="Compile the step by torch.compile.")] = True,
) -> None:
    """Train a small network, and compare its losses with those of the CPU."""
    losses, expected, round_trips = compare(address, steps, compiled)
    for step in range(0, steps, 10):
        console.print(f"step {step}: loss {losses[step]:.6f}, on the CPU {expected[step]:.6f}")
    farthest = max(abs(one - other) for one, other in zip(losses, expected, strict=True))
    console.print(f"round trips: {round_trips}; largest difference from the CPU: {farthest:.1e}")


if __name__ == "__main__":
    run(main)
