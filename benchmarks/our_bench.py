"""The measurements of Burn's own benchmark (tests/interop/src/bench.rs), for our client."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console

import burn_remote as br

__all__ = ["Figures", "GivenUp", "console", "our_client", "size_of"]

PIPELINED = 20_000
ROUND_TRIPS = 2_000
STEPS = 500
WARM_UP = 200

Figures = dict[str, float]


class GivenUp(Exception):
    """A measurement took too long; earlier figures remain valid."""


console = Console()


def our_client(part: str, device: br.Device, other: br.Device, repeats: int) -> Figures:
    """Measure a part with our client; omit figures that the dialect does not support."""
    match part:
        case "adds":
            return {"pipelined_adds_per_second": median(lambda: pipelined_adds(device), repeats)}
        case "latency":
            return percentiles("add_and_read_us", add_and_read(device))
        case "moves":
            return moves(device, other, repeats)
        case "train":
            return {
                f"train_steps_per_second{name}": median(lambda: train(device, reads), repeats)  # noqa: B023
                for name, reads in (("", False), ("_reading_each", True))
            }
        case _:
            return copies(device, size_of(part), repeats)


def size_of(part: str) -> int:
    """Return how many MiB a part copies or moves at once."""
    return 256 if part == "large copies" else 8


def moves(device: br.Device, other: br.Device, repeats: int) -> Figures:
    """Measure moves from server to server, large ones and small ones."""
    large = br.tensor(np.arange(2**21, dtype=np.float32), device=device)
    figures = {"move_gb_per_second 8": median(lambda: move(large, other), repeats)}
    try:
        return figures | percentiles("move_and_sync_us", move_small(device, other))
    except GivenUp as error:
        console.print(f"small moves from {device}: {error}")
        return figures


def copies(device: br.Device, megabytes: int, repeats: int) -> Figures:
    """Measure uploads and downloads of one size."""
    data = np.arange(megabytes * 2**18, dtype=np.float32)
    try:
        up = median(lambda: upload(device, data), repeats)
    except br.UsageError:  # exceeds the message limit of Burn's dialect
        return {}
    held = br.tensor(data, device=device)
    device.sync()
    down = median(lambda: download(held), repeats)
    return {f"upload_gb_per_second {megabytes}": up, f"download_gb_per_second {megabytes}": down}


def median(measure: Callable[[], float], repeats: int) -> float:
    """Return the median of the repetitions, after a warm-up."""
    measure()
    return statistics.median(measure() for _ in range(repeats))


def percentiles(name: str, once: Callable[[], object]) -> Figures:
    """Return the median and the 99th percentile of the round trips, in µs."""
    for _ in range(WARM_UP):
        once()
    taken = []
    for _ in range(ROUND_TRIPS):
        start = time.perf_counter()
        once()
        taken.append((time.perf_counter() - start) * 1e6)
    taken.sort()
    return {f"{name} p50": taken[len(taken) // 2], f"{name} p99": taken[len(taken) * 99 // 100]}


def pipelined_adds(device: br.Device) -> float:
    total = br.zeros((16, 16), device=device)
    one = br.ones((16, 16), device=device)
    device.sync()
    start = time.perf_counter()
    for _ in range(PIPELINED):
        total = total + one
    array = total.numpy()
    seconds = time.perf_counter() - start
    assert (array == PIPELINED).all(), "the server added wrongly"
    return PIPELINED / seconds


def add_and_read(device: br.Device) -> Callable[[], object]:
    left, right = (br.tensor(np.ones((16, 16), np.float32), device=device) for _ in range(2))
    return lambda: (left + right).numpy()


def upload(device: br.Device, data: Any) -> float:
    start = time.perf_counter()
    tensor = br.tensor(data, device=device)
    device.sync()
    rate = float(data.nbytes) / 1e9 / (time.perf_counter() - start)
    del tensor
    return rate


def download(tensor: br.Tensor) -> float:
    start = time.perf_counter()
    array = tensor.numpy()
    return float(array.nbytes) / 1e9 / (time.perf_counter() - start)


def move(tensor: br.Tensor, other: br.Device) -> float:
    start = time.perf_counter()
    moved = tensor.to(other)
    other.sync()
    rate = tensor.nbytes / 1e9 / (time.perf_counter() - start)
    del moved
    return rate


def move_small(device: br.Device, other: br.Device) -> Callable[[], object]:
    tensor = br.tensor(np.ones((16, 16), np.float32), device=device)

    def once() -> None:
        tensor.to(other)
        other.sync()

    return once


def train(device: br.Device, reads: bool) -> float:
    """Return training steps per second of a perceptron 784-128-10, batch 64, with plain SGD."""
    rng = np.random.default_rng(0)
    x, labels, w1, b1, w2, b2 = (
        br.tensor(array.astype(np.float32), device=device)
        for array in (
            rng.random((64, 784)) - 0.5,
            np.eye(10)[rng.integers(0, 10, 64)],
            (rng.random((784, 128)) - 0.5) / 14,
            np.zeros((1, 128)),
            (rng.random((128, 10)) - 0.5) / 6,
            np.zeros((1, 10)),
        )
    )
    device.sync()
    start = time.perf_counter()
    for _ in range(STEPS):
        hidden = (x @ w1 + b1).relu()
        logits = hidden @ w2 + b2
        if reads:
            (-(logits.log_softmax(axis=-1) * labels).sum() / 64).item()
        d_logits = (logits.softmax(axis=-1) - labels) * (1 / 64)
        d_hidden = (d_logits @ w2.T) * (hidden > 0).astype(br.float32)
        w2 = w2 - hidden.T @ d_logits * 0.1
        b2 = b2 - d_logits.sum(axis=0, keepdims=True) * 0.1
        w1 = w1 - x.T @ d_hidden * 0.1
        b1 = b1 - d_hidden.sum(axis=0, keepdims=True) * 0.1
    w1.sum().item()
    return STEPS / (time.perf_counter() - start)
