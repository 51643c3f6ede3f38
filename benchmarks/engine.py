"""Compare the engine with alternatives: operations, round trips, training steps, large tensors.

    python benchmarks/engine.py                 a table, and JSON with --json FILE
    python benchmarks/engine.py --burn DIR      also runs the real Burn 0.21 of tests/interop

The alternatives: a bare echo over the same WebSocket stack (a round trip without tensors), the
same program in NumPy without a network, and Burn 0.21 on the same machine in the same run.
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import typer
from compared_workloads import train
from echo import echo_round_trip_seconds
from rich.console import Console
from rich.progress import track
from rich.table import Table

import burn_remote as br

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.servers import RunningServer, server

MIB = 2**20
REPEATS = 7
BURN_PORTS = (3941, 3942)

Figures = dict[str, Any]
console = Console()


def median_seconds(run: Callable[[], object], repeats: int = REPEATS) -> float:
    """Time a call several times after a warm-up; return the median."""
    run()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def operations_per_second(device: br.Device, count: int = 50_000) -> Figures:
    one = br.ones((16, 16), device=device)

    def chain() -> None:
        x = one
        for _ in range(count):
            x = x + one
        x.numpy()

    def issue() -> None:
        x = one
        start = time.perf_counter()
        for _ in range(count):
            x = x + one
        issued.append((time.perf_counter() - start) / count)
        x.numpy()

    issued: list[float] = []
    rate = count / median_seconds(chain)
    issue()
    return {"operations per second": rate, "issuing one, µs": issued[0] * 1e6}


def round_trip(device: br.Device, count: int = 3000) -> Figures:
    one = br.ones((16, 16), device=device)
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        (one + one).numpy()
        seconds.append(time.perf_counter() - start)
    ordered = sorted(seconds[count // 10 :])
    return {
        "round trip p50, µs": ordered[len(ordered) // 2] * 1e6,
        "round trip p99, µs": ordered[len(ordered) * 99 // 100] * 1e6,
    }


def frames_of_a_burst(device: br.Device) -> Figures:
    x = br.ones((16, 16), device=device)
    device.sync()
    before = device.traffic
    for _ in range(1000):
        x = x + 1
    x.numpy()
    return {"frames of 1,000 operations": (device.traffic - before).frames_sent}


def training_step(device: br.Device, steps: int = 200) -> Figures:
    """Measure a step of a perceptron 784-128-10, batch 64, with one read after all steps."""
    rng = np.random.default_rng(0)
    arrays = [
        rng.random((64, 784), np.float32), np.eye(10, dtype=np.float32)[rng.integers(0, 10, 64)],
        rng.standard_normal((784, 128), np.float32) * 0.05, np.zeros((1, 128), np.float32),
        rng.standard_normal((128, 10), np.float32) * 0.05, np.zeros((1, 10), np.float32),
    ]  # fmt: skip

    def local() -> None:
        x, y, w1, b1, w2, b2 = arrays
        for _ in range(steps):
            hidden = np.maximum(x @ w1 + b1, 0)
            logits = hidden @ w2 + b2
            exp = np.exp(logits - logits.max(axis=1, keepdims=True))
            d_logits = (exp / exp.sum(axis=1, keepdims=True) - y) * (1 / 64)
            d_hidden = (d_logits @ w2.T) * (hidden > 0).astype(np.float32)
            w2 = w2 - hidden.T @ d_logits * 0.1
            b2 = b2 - d_logits.sum(axis=0, keepdims=True) * 0.1
            w1 = w1 - x.T @ d_hidden * 0.1
            b1 = b1 - d_hidden.sum(axis=0, keepdims=True) * 0.1

    tensors = [br.tensor(array, device=device) for array in arrays]
    here, there = (
        median_seconds(local, 5) / steps,
        median_seconds(lambda: train(tensors, steps), 5) / steps,
    )
    return {
        "training step, local NumPy, ms": here * 1e3,
        "training step, remote, ms": there * 1e3,
        "training step, remote ÷ local": there / here,
    }


def large_tensors(device: br.Device, other: br.Device, megabytes: int = 256) -> Figures:
    array = np.ones(megabytes * MIB // 4, np.float32)
    held: list[br.Tensor] = []

    def upload() -> None:
        held[:] = [br.tensor(array, device=device)]
        device.sync()

    def move() -> None:
        moved = held[0].to(other)  # kept: a dropped tensor is not fetched
        other.sync()
        del moved

    up = median_seconds(upload, 5)
    down = median_seconds(lambda: held[0].numpy(), 5)
    across = median_seconds(move, 5)
    size = array.nbytes / 1e9
    return {
        f"upload {megabytes} MiB, GB/s": size / up,
        f"download {megabytes} MiB, GB/s": size / down,
        f"server to server {megabytes} MiB, GB/s": size / across,
    }


def memory_while_receiving(running: RunningServer, device: br.Device) -> Figures:
    """Watch the server's peak memory while it receives one GiB."""
    array = np.ones(2**30 // 4, np.float32)
    device.sync()
    process = psutil.Process(running.process.pid)
    before = process.memory_info().rss
    tensor = br.tensor(array, device=device)
    device.sync()
    peak = int(Path(f"/proc/{process.pid}/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
    del tensor
    return {"server memory ÷ size of a 1 GiB tensor": (peak - before) / array.nbytes}


def real_burn(binaries: Path) -> Figures:
    """Run the real client's own benchmark against the real server."""
    servers = [
        subprocess.Popen(
            [str(binaries / "burn-server"), "--port", str(port)], stdout=subprocess.PIPE, text=True
        )
        for port in BURN_PORTS
    ]
    try:
        for each in servers:
            assert each.stdout is not None  # started with a pipe
            while not each.stdout.readline().startswith("listening "):
                pass
        figures: Figures = {}
        for part in ("adds", "latency", "copies", "moves", "train"):
            figures |= _burn_part(binaries, part).get("results", {})
        return figures
    finally:
        for each in servers:
            each.kill()
            each.communicate()


def _burn_part(binaries: Path, part: str) -> Figures:
    addresses = [f"ws://127.0.0.1:{port}" for port in BURN_PORTS]
    command = [str(binaries / "burn-client"), "bench", *addresses, "--only", part]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        text = f"the real client ended with {run.returncode}: {run.stderr.strip()[-200:]}"
        return {"results": {part: text}}
    found: Figures = json.loads(run.stdout.splitlines()[-1])
    return found


def main(
    burn: Annotated[
        Path | None, typer.Option(help="Folder with burn-server and burn-client.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures here.")
    ] = None,
) -> None:
    """Measure, print one table, and optionally save the figures."""
    figures: Figures = {}
    with (
        server() as first,
        server() as second,
        br.RemoteDevice(first.address) as device,
        br.RemoteDevice(second.address) as other,
    ):
        parts: list[Callable[[], Figures]] = [
            lambda: {"bare echo p50, µs": echo_round_trip_seconds() * 1e6},
            lambda: round_trip(device),
            lambda: operations_per_second(device),
            lambda: frames_of_a_burst(device),
            lambda: training_step(device),
            lambda: large_tensors(device, other),
        ]
        for part in track(parts, description="measuring", console=console):
            figures |= part()
    with server() as fresh, br.RemoteDevice(fresh.address) as device:
        figures |= memory_while_receiving(fresh, device)
    figures["round trip ÷ bare echo"] = figures["round trip p50, µs"] / figures["bare echo p50, µs"]
    table = Table(
        "measure",
        "figure",
        title=f"{date.today()}, {platform.python_version()}, {psutil.cpu_count()} cores",
    )
    for name, figure in figures.items():
        table.add_row(name, f"{figure:,.3g}" if figure < 1000 else f"{figure:,.0f}")
    console.print(table)
    if burn is not None:
        figures["burn 0.21"] = real_burn(burn)
        console.print("real Burn 0.21, Rust client on Rust server:", figures["burn 0.21"])
    if json_file is not None:
        json_file.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(main)
    app()
