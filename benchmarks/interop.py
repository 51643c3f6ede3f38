"""Measure real Burn 0.21 and this project, each client on each server. One run, one table.

    python benchmarks/interop.py                build the real ones first: tests/interop/build.sh
    python benchmarks/interop.py --repeats 9 --json FILE

The real client measures itself (`burn-client bench`); ours does the same here: what is timed, and
the sizes, are those of tests/interop/src/bench.rs. A training step of the real client computes its
gradients by autodiff, ours by hand, in about as many operations. Each part is measured on all
pairs in turn before the next, so that a machine's other work disturbs them alike.
"""

from __future__ import annotations

import contextlib
import json
import platform
import signal
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

PARTS = ("adds", "latency", "copies", "large copies", "moves", "train")
# The real client waits for ever where the real server closed its socket, as it does at large
# uploads, and both clients do where it stops answering in the midst of moves; there they are soon
# given up.
TIMEOUT_SECONDS = {"large copies": 30, "moves": 40}
USUAL_TIMEOUT_SECONDS = 120

Figures = dict[str, float]


class GivenUp(Exception):
    """Something took too long; the figures so far stand."""


console = Console()


# -- the real client --------------------------------------------------------------------------


def real_client(part: str, addresses: list[str], repeats: int) -> Figures:
    """Run a part of the real client's own benchmark. Raises ``GivenUp``."""
    megabytes = size_of(part)
    timeout = TIMEOUT_SECONDS.get(part, USUAL_TIMEOUT_SECONDS)
    flags = {"only": part.split()[-1], "repeats": repeats, "megabytes": megabytes}
    flags["timeout"] = timeout
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    with start_burn_client("bench", *addresses, *words) as client:
        out, error = client.communicate()
    if client.returncode != 0:
        raise GivenUp(error.splitlines()[-1])
    return flat(json.loads(out.splitlines()[-1])["results"], megabytes)


def size_of(part: str) -> int:
    """Return how many MiB a part copies or moves at once."""
    return 256 if part == "large copies" else 8


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


def our_client(part: str, device: br.Device, other: br.Device, repeats: int) -> Figures:
    """Measure a part with our client; what a dialect cannot do has no figures."""
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
    except br.UsageError:  # more than one message of Burn's dialect may hold
        return {}
    held = br.tensor(data, device=device)
    device.sync()
    down = median(lambda: download(held), repeats)
    return {f"upload_gb_per_second {megabytes}": up, f"download_gb_per_second {megabytes}": down}


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
def two_real_servers() -> Iterator[list[str]]:
    """Start two real servers, which may not survive; return their addresses."""
    with burn_server() as first, burn_server() as second:
        yield [first, second]


def ours_on(part: str, addresses: list[str], dialect: str, repeats: int) -> Figures:
    """Measure our client on two servers, in one dialect. Raises ``GivenUp``."""
    first, second = (br.RemoteDevice(address, dialect=dialect) for address in addresses)
    with first, second, given_up_after(TIMEOUT_SECONDS.get(part, USUAL_TIMEOUT_SECONDS)):
        return our_client(part, first, second, repeats)


@contextlib.contextmanager
def given_up_after(seconds: int) -> Iterator[None]:
    """Raise ``GivenUp`` in the midst of whatever takes longer."""

    def give_up(*_: object) -> None:
        raise GivenUp(f"given up after {seconds} seconds")

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def main(
    repeats: Annotated[int, typer.Option(help="Measurements of which the median is taken.")] = 3,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Where to write the figures.")
    ] = None,
) -> None:
    """Measure each client on each server, and print one table."""
    pairs: dict[str, tuple[bool, Callable[[str, list[str]], Figures]]] = {
        "Rust → Rust": (True, lambda part, at: real_client(part, at, repeats)),
        "Rust → ours": (False, lambda part, at: real_client(part, at, repeats)),
        "ours → Rust": (True, lambda part, at: ours_on(part, at, "burn-0.21", repeats)),
        "ours → ours, Burn's dialect": (
            False,
            lambda part, at: ours_on(part, at, "burn-0.21", repeats),
        ),
        "ours → ours, native": (False, lambda part, at: ours_on(part, at, "native", repeats)),
    }
    figures: dict[str, Figures] = {name: {} for name in pairs}
    with contextlib.ExitStack() as stack:
        ours = [stack.enter_context(server()).address for _ in range(2)]
        progress = stack.enter_context(Progress(console=console, transient=True))
        task = progress.add_task("", total=len(PARTS) * len(pairs))
        for part in PARTS:
            for name, (real, measure) in pairs.items():
                progress.update(task, description=f"{part}: {name}")
                with two_real_servers() if real else contextlib.nullcontext(ours) as addresses:
                    try:
                        figures[name] |= measure(part, addresses)
                    except (br.BurnRemoteError, GivenUp) as error:
                        progress.console.print(f"{part}: {name}: {error}")
                progress.advance(task)
    console.print(table(figures))
    busy = psutil.getloadavg()[1]
    machine = f"{date.today()}, {platform.machine()}, {psutil.cpu_count()} cores, load {busy:.1f}"
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
