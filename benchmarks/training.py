"""Measure training by automatic differentiation: a perceptron 784-128-10 with 64 images a step.

    OPENBLAS_NUM_THREADS=1 python benchmarks/training.py
    OPENBLAS_NUM_THREADS=1 python benchmarks/training.py --latency 0 --rounds 30

For each latency (0, 10, 50 and 150 ms there and back), a relay between client and server delays all
bytes; without latency, there is no relay. Prints for each latency:

- the requests per step, without and with a read of the loss;
- the time of a step, eager and compiled, divided by that of the same step written by hand in NumPy
  in this process, with quartiles;
- the server's processor time of a compiled step, divided by NumPy's, which hardly depends on other
  programs.

Then prints the processor time of issuing an operation on a tracked tensor, divided by that for an
untracked one. The sides of a ratio alternate; each figure is a median of rounds.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import psutil
import typer

import burn_remote as br
from burn_remote import functional as F

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.servers import server

ISSUED: Final = 500
BATCH: Final = 64
RATE: Final = 0.05
SHAPES: Final = ((128, 784), (128,), (10, 128), (10,))
ONES: Final = np.ones((16, 16), np.float32)

Array = np.ndarray[Any, Any]


@contextmanager
def delaying_relay(port: int, seconds: float) -> Iterator[int]:
    """Relay connections to a port and delay all bytes in each direction; yields its own port."""
    loop = asyncio.new_event_loop()

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(2**18):
            loop.call_later(seconds, target.write, data)
        loop.call_later(seconds, target.close)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, back), copy(there, writer))

    listening = loop.run_until_complete(asyncio.start_server(relay, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield listening.sockets[0].getsockname()[1]
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


def loss_of(weights: list[br.Tensor], x: br.Tensor, labels: br.Tensor) -> br.Tensor:
    hidden = F.relu(F.linear(x, weights[0], weights[1]))
    return F.cross_entropy(F.linear(hidden, weights[2], weights[3]), labels)


def step(
    weights: list[br.Tensor], x: br.Tensor, labels: br.Tensor
) -> tuple[list[br.Tensor], br.Tensor]:
    loss, grads = br.value_and_grad(loss_of)(weights, x, labels)
    return [weight - grad * RATE for weight, grad in zip(weights, grads, strict=True)], loss


def local_step(weights: list[Array], x: Array, labels: Array) -> tuple[list[Array], Array]:
    """Compute the same step by hand."""
    first, bias, second, out_bias = weights
    hidden = x @ first.T + bias
    active = np.maximum(hidden, 0)
    scores = active @ second.T + out_bias
    scores -= scores.max(axis=1, keepdims=True)
    scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
    rows = np.arange(len(x))
    loss = -scores[rows, labels].mean()
    to_scores = np.exp(scores)
    to_scores[rows, labels] -= 1
    to_scores /= len(x)
    to_hidden = to_scores @ second
    to_hidden[hidden <= 0] = 0
    grads = (to_hidden.T @ x, to_hidden.sum(axis=0), to_scores.T @ active, to_scores.sum(axis=0))
    return [w - g * np.float32(RATE) for w, g in zip(weights, grads, strict=True)], loss


def seconds_of(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def train(
    made: Callable[..., Any], weights: list[Any], x: Any, labels: Any, steps: int
) -> list[Any]:
    for _ in range(steps):
        weights, _ = made(weights, x, labels)
    return weights


def processor_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def shown(ratios: list[float]) -> str:
    """Return the median and the quartiles."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def measure_steps(
    device: br.Device, milliseconds: float, process: psutil.Process, rounds: int, steps: int
) -> None:
    random = np.random.default_rng(0)
    arrays = [random.normal(0, 0.05, shape).astype(np.float32) for shape in SHAPES]
    images = random.uniform(0, 1, (BATCH, 784)).astype(np.float32)
    classes = random.integers(0, 10, BATCH)
    weights = [device.tensor(array) for array in arrays]
    x, labels = device.tensor(images), device.tensor(classes)
    compiled = br.compile(step)
    mine, loss = step(weights, x, labels)
    theirs, expected = local_step(arrays, images, classes)
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

    def remote(made: Callable[..., Any]) -> Callable[[], object]:
        return lambda: train(made, weights, x, labels, steps)[0].sum().item()

    eager_ratios, compiled_ratios, processor_ratios, rates = [], [], [], []
    sides: list[Callable[[], object]] = [
        lambda: train(local_step, arrays, images, classes, steps),
        remote(step),
        remote(compiled),
    ]
    for side in sides:  # allocates memory and warms caches
        side()
    for number in range(rounds):
        seconds = [0.0] * len(sides)
        processor = [0.0] * len(sides)
        # Each side goes first in a third of the rounds.
        for place in np.roll(range(len(sides)), number):
            before_local, before_server = time.process_time(), processor_seconds(process)
            seconds[place] = seconds_of(sides[place])
            used_here = time.process_time() - before_local
            used_there = processor_seconds(process) - before_server
            processor[place] = used_there if place else used_here
        local, eager, graph = seconds
        processor_ratios.append(processor[2] / processor[0])
        eager_ratios.append(eager / local)
        compiled_ratios.append(graph / local)
        rates.append((steps / eager, steps / graph, steps / local))
    of_eager, of_graph, of_local = map(statistics.median, zip(*rates, strict=True))
    print(
        f"{milliseconds:5g} ms: {silent:g} requests a step, {read:g} with a read; steps/s eager "
        f"{of_eager:,.0f}, compiled {of_graph:,.0f}, NumPy {of_local:,.0f}; time ÷ NumPy eager "
        f"{shown(eager_ratios)}, compiled {shown(compiled_ratios)}; server's processor time "
        f"of compiled ÷ NumPy's {shown(processor_ratios)}"
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
    with server() as running:
        process = psutil.Process(running.process.pid)
        for milliseconds in latency or [0.0, 10.0, 50.0, 150.0]:
            with (
                delaying_relay(running.port, milliseconds / 2000)
                if milliseconds
                else nullcontext(running.port) as port,
                br.RemoteDevice(f"ws://127.0.0.1:{port}") as device,
            ):
                measure_steps(device, milliseconds, process, rounds, steps)
        if recording:
            with br.RemoteDevice(running.address) as device:
                measure_recording(device, rounds)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(main)
    app()
