"""Measure training by automatic differentiation: a perceptron 784-128-10 with 64 images a step.

    python benchmarks/training.py
    python benchmarks/training.py --latency 0 --rounds 30

For each latency (0, 10, 50 and 150 ms there and back), a relay between client and server delays all
bytes; without latency, there is no relay. Prints for each latency:

- the requests per step, without and with a read of the loss;
- the time of a step, eager and compiled, divided by that of the same step written by hand in
  NumPy, in a process of its own (``numpy_training.py``), with quartiles; the compiled step also
  divided by NumPy's with a glibc that keeps freed memory;
- the server's processor time of a compiled step, divided by NumPy's, which hardly depends on other
  programs.

All processes use one BLAS thread.

Then prints the processor time of issuing an operation on a tracked tensor, divided by that for an
untracked one. The sides of a ratio alternate; each figure is a median of rounds.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer
from numpy_training import NumpyProgram, cross_entropy_arrays, cross_entropy_step

import burn_remote as br
from burn_remote import functional as F

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from delayed_links import delayed_link
from graphs import server_seconds

from support.servers import RunningServer, server

ISSUED: Final = 500
RATE: Final = 0.05
ONES: Final = np.ones((16, 16), np.float32)


def loss_of(weights: list[br.Tensor], x: br.Tensor, labels: br.Tensor) -> br.Tensor:
    hidden = F.relu(F.linear(x, weights[0], weights[1]))
    # The step in NumPy ignores no labels either.
    logits = F.linear(hidden, weights[2], weights[3])
    return F.cross_entropy(logits, labels, ignore_index=None)


def step(
    weights: list[br.Tensor], x: br.Tensor, labels: br.Tensor
) -> tuple[list[br.Tensor], br.Tensor]:
    loss, grads = br.value_and_grad(loss_of)(weights, x, labels)
    return [weight - grad * RATE for weight, grad in zip(weights, grads, strict=True)], loss


def train(
    made: Callable[..., Any], weights: list[Any], x: Any, labels: Any, steps: int
) -> list[Any]:
    for _ in range(steps):
        weights, _ = made(weights, x, labels)
    return weights


def shown(ratios: list[float]) -> str:
    """Return the median and the quartiles."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def measure_steps(
    device: br.Device, milliseconds: float, running: RunningServer, rounds: int, steps: int
) -> None:
    arrays, images, classes = cross_entropy_arrays()
    weights = [device.tensor(array) for array in arrays]
    x, labels = device.tensor(images), device.tensor(classes)
    compiled = br.compile(step)
    mine, loss = step(weights, x, labels)
    theirs, expected = cross_entropy_step(arrays, images, classes)
    compiled(weights, x, labels)
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-4)
    for one, other in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=1e-3, atol=1e-6)

    before = device.traffic.requests
    for _ in range(steps):
        step(weights, x, labels)
    silent = (device.traffic.requests - before) / steps
    before = device.traffic.requests
    for _ in range(3):
        step(weights, x, labels)[1].item()
    read = (device.traffic.requests - before) / 3

    def remote(made: Callable[..., Any]) -> tuple[float, float]:
        start, start_server = time.perf_counter(), server_seconds(running)
        train(made, weights, x, labels, steps)[0].sum().item()
        return time.perf_counter() - start, server_seconds(running) - start_server

    def local(program: NumpyProgram) -> tuple[float, float]:
        found = program.run(steps)
        return found.elapsed * steps, found.processor * steps

    found = []
    with (
        NumpyProgram("cross entropy") as plain,
        NumpyProgram("cross entropy", keeps_memory=True) as keeping,
    ):
        sides = [
            partial(local, plain),
            partial(local, keeping),
            partial(remote, step),
            partial(remote, compiled),
        ]
        for side in sides:  # allocates memory and warms caches
            side()
        for number in range(rounds):
            times = [(0.0, 0.0)] * len(sides)
            # Each side goes first in a quarter of the rounds.
            for place in np.roll(range(len(sides)), number):
                times[place] = sides[place]()
            found.append(times)
    rates = [
        statistics.median(steps / elapsed for elapsed, _ in side)
        for side in zip(*found, strict=True)
    ]

    def ratio(side: int, other: int, clock: int) -> str:
        return shown([times[side][clock] / times[other][clock] for times in found])

    print(
        f"{milliseconds:5g} ms: {silent:g} requests a step, {read:g} with a read; steps/s eager "
        f"{rates[2]:,.0f}, compiled {rates[3]:,.0f}, NumPy {rates[0]:,.0f}, NumPy that keeps its "
        f"memory {rates[1]:,.0f}; time ÷ NumPy eager {ratio(2, 0, 0)}, compiled {ratio(3, 0, 0)}, "
        f"compiled ÷ NumPy that keeps its memory {ratio(3, 1, 0)}; server's processor time of "
        f"compiled ÷ NumPy's {ratio(3, 0, 1)}, ÷ NumPy's that keeps its memory {ratio(3, 1, 1)}"
    )


def measure_recording(device: br.Device, rounds: int) -> None:
    """Print the processor time of the client's thread, with the drops of intermediate tensors."""
    other = device.tensor(ONES)

    def issue(x: br.Tensor, operation: Callable[[br.Tensor], br.Tensor]) -> float:
        device.sync()
        gc.collect()
        start = time.thread_time()
        for _ in range(ISSUED):
            x = operation(x)
        del x
        return (time.thread_time() - start) / ISSUED

    operations: dict[str, Callable[[br.Tensor], br.Tensor]] = {
        "x + plain": lambda x: x + other,
        "x * 1.0": lambda x: x * 1.0,
        "exp(x)": br.exp,
    }
    for name, operation in operations.items():
        pairs = []
        for _ in range(2 * rounds):
            untracked = issue(device.tensor(ONES), operation)
            pairs.append((untracked, issue(device.tensor(ONES).requires_grad_(), operation)))
        ratio = statistics.median([tracked / plain for plain, tracked in pairs])
        plain, tracked = (statistics.median(side) * 1e6 for side in zip(*pairs, strict=True))
        print(f"{name}: {plain:.1f} µs, tracked {tracked:.1f} µs, ratio {ratio:.2f}")


def main(
    latency: Annotated[
        list[float] | None,
        typer.Option(min=0, help="Milliseconds there and back. May be repeated."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=2, help="Rounds of each measurement.")] = 9,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a round.")] = 40,
    recording: Annotated[
        bool, typer.Option(help="Also measure operations on tracked tensors.")
    ] = True,
) -> None:
    """Measure training steps of a perceptron beside NumPy, and the recording of operations."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # for the processes that it starts
    with server() as running:
        for milliseconds in latency or [0.0, 10.0, 50.0, 150.0]:
            with (
                delayed_link(running.port, milliseconds) as port,
                br.RemoteDevice(f"ws://127.0.0.1:{port}") as device,
            ):
                measure_steps(device, milliseconds, running, rounds, steps)
        if recording:
            with br.RemoteDevice(running.address) as device:
                measure_recording(device, rounds)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(main)
    app()
