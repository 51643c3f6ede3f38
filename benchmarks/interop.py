"""Measure real Burn 0.21 and this project, each client on each server. One run, one table.

    python benchmarks/interop.py                build the real ones first: tests/interop/build.sh
    python benchmarks/interop.py --repeats 9 --json FILE

The real client measures itself (`burn-client bench`); ours does the same here: what is timed, and
the sizes, are those of tests/interop/src/bench.rs. A training step of the real client computes its
gradients by autodiff, ours by hand, in about as many operations.
"""

from __future__ import annotations

import contextlib
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import burn_remote as br

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.burn_programs import burn_server, start_burn_client
from support.servers import server

PIPELINED = 20_000
ROUND_TRIPS = 2_000
STEPS = 500
WARM_UP = 200
MEASURES = {
    "pipelined_adds_per_second": "small operations/s",
    "add_and_read_us p50": "round trip p50, µs",
    "add_and_read_us p99": "round trip p99, µs",
    "upload_gb_per_second 8": "upload 8 MiB, GB/s",
    "download_gb_per_second 8": "download 8 MiB, GB/s",
    "upload_gb_per_second 256": "upload 256 MiB, GB/s",
    "download_gb_per_second 256": "download 256 MiB, GB/s",
    "move_gb_per_second 8": "server to server 8 MiB, GB/s",
    "move_and_sync_us p50": "move of [16, 16] p50, µs",
    "train_steps_per_second": "training steps/s",
    "train_steps_per_second_reading_each": "training steps/s, loss read each",
}

Figures = dict[str, float]
console = Console()


# -- the real client --------------------------------------------------------------------------


def real_client(addresses: list[str], repeats: int) -> Figures:
    """Run the real client's own benchmark; a part that does not survive is left out."""
    figures: Figures = {}
    for part in ("adds", "latency", "copies", "moves", "train"):
        for megabytes in (8, 256) if part == "copies" else (8,):
            flags = ["--only", part, "--repeats", str(repeats), "--megabytes", str(megabytes)]
            flags += ["--timeout", "30"]  # it waits for ever for a server that closed its socket
            with start_burn_client("bench", *addresses, *flags) as client:
                out, _ = client.communicate()
            if client.returncode == 0:
                figures |= flat(json.loads(out.splitlines()[-1])["results"], megabytes)
    return figures


def flat(results: dict[str, Any], megabytes: int) -> Figures:
    """Return one number for each measure: medians, and percentiles one by one."""
    figures: dict[str, Any] = {}
    for name, value in results.items():
        if "p50" in value:
            figures |= {f"{name} {percentile}": value[percentile] for percentile in value}
        elif "gb_per_second" in name:
            figures[f"{name} {megabytes}"] = value["median"]
        else:
            figures[name] = value["median"]
    return figures


# -- our client -------------------------------------------------------------------------------


def our_client(device: br.Device, other: br.Device, repeats: int) -> Figures:
    """Measure the same with our client; what a dialect cannot do is left out."""
    figures = {
        "pipelined_adds_per_second": median(lambda: pipelined_adds(device), repeats),
        **percentiles("add_and_read_us", add_and_read(device)),
    }
    for megabytes in (8, 256):
        data = np.arange(megabytes * 2**18, dtype=np.float32)
        with contextlib.suppress(br.UsageError):
            rate = median(lambda: upload(device, data), repeats)  # noqa: B023
            figures[f"upload_gb_per_second {megabytes}"] = rate
            held = br.tensor(data, device=device)
            device.sync()
            rate = median(lambda: download(held), repeats)  # noqa: B023
            figures[f"download_gb_per_second {megabytes}"] = rate
    large = br.tensor(np.arange(2**21, dtype=np.float32), device=device)
    figures["move_gb_per_second 8"] = median(lambda: move(large, other), repeats)
    figures |= percentiles("move_and_sync_us", move_small(device, other))
    for name, reads in (("", False), ("_reading_each", True)):
        rate = median(lambda: train(device, reads), repeats)  # noqa: B023
        figures[f"train_steps_per_second{name}"] = rate
    return figures


def median(measure: Callable[[], float], repeats: int) -> float:
    """Return the median of the repetitions, after one that is thrown away."""
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
    """Steps per second of a perceptron 784-128-10, batch 64, cross-entropy and plain SGD."""
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


# -- the table --------------------------------------------------------------------------------


@contextlib.contextmanager
def two_servers(real: bool) -> Iterator[list[str]]:
    """Start two servers; return their addresses."""
    with contextlib.ExitStack() as stack:
        if real:
            yield [stack.enter_context(burn_server()) for _ in range(2)]
        else:
            yield [stack.enter_context(server()).address for _ in range(2)]


def ours_on(addresses: list[str], dialect: str, repeats: int) -> Figures:
    """Measure our client on two servers, in one dialect."""
    first, second = (br.RemoteDevice(address, dialect=dialect) for address in addresses)
    with first, second:
        return our_client(first, second, repeats)


def main(
    repeats: Annotated[int, typer.Option(help="Measurements of which the median is taken.")] = 5,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Where to write the figures.")
    ] = None,
) -> None:
    """Measure each client on each server, and print one table."""
    runs: dict[str, tuple[bool, Callable[[list[str]], Figures]]] = {
        "Rust → Rust": (True, lambda at: real_client(at, repeats)),
        "Rust → ours": (False, lambda at: real_client(at, repeats)),
        "ours → Rust": (True, lambda at: ours_on(at, "burn-0.21", repeats)),
        "ours → ours, Burn's dialect": (False, lambda at: ours_on(at, "burn-0.21", repeats)),
        "ours → ours, native": (False, lambda at: ours_on(at, "native", repeats)),
    }
    figures: dict[str, Figures] = {}
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(runs))
        for name, (real, measure) in runs.items():
            progress.update(task, description=name)
            with two_servers(real) as addresses:
                figures[name] = measure(addresses)
            progress.advance(task)
    console.print(table(figures))
    machine = f"{date.today()}, {platform.machine()}, {psutil.cpu_count()} cores"
    console.print(f"{machine}, Python {platform.python_version()}, NumPy {np.__version__}")
    if json_file is not None:
        json_file.write_text(json.dumps({"machine": machine, "figures": figures}, indent=1))


def table(figures: dict[str, Figures]) -> Table:
    """Lay the figures out, each with its ratio to the first column."""
    shown = Table("client → server", *figures)
    first = next(iter(figures.values()))
    for key, label in MEASURES.items():
        cells = []
        for column in figures.values():
            value, rival = column.get(key), first.get(key)
            if value is None:
                cells.append("—")
                continue
            text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
            cells.append(text if rival is None else f"{text} ({value / rival:.2g}×)")
        shown.add_row(label, *cells)
    return shown


if __name__ == "__main__":
    typer.run(main)
