"""The workloads of ``against_commit.py``, run in the environment of one commit.

    python -P compared_workloads.py

Starts a server, connects to it, and prints a line with the names of the workloads. Then reads one
name per line, runs this workload once, and prints a JSON object: the ``elapsed`` time, and the
processor times of ``client`` and ``server``, in seconds per unit. Uses only public names of the
package, which every commit has.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

import burn_remote as br

MIB = 2**20
ADDS = 10_000
ROUND_TRIPS = 400
VIEWS = 4_000
TRAINING_STEPS = 60
LOCAL_OPERATIONS = 5_000

# Runs the workload; returns the number of its units, and the elapsed seconds of one unit (``None``:
# the elapsed time divided by the number of units).
Workload = Callable[[], tuple[int, float | None]]


def remote_workloads(device: br.Device) -> dict[str, Workload]:
    """Return the workloads of a client and a server."""
    one = br.ones((16, 16), device=device)
    large = np.ones(64 * MIB // 4, np.float32)
    held = br.tensor(large, device=device)

    def adds() -> tuple[int, float | None]:
        x = one
        for _ in range(ADDS):
            x = x + one
        x.numpy()
        return ADDS, None

    def round_trip() -> tuple[int, float | None]:
        seconds = []
        for _ in range(ROUND_TRIPS):
            start = time.perf_counter()
            (one + one).numpy()
            seconds.append(time.perf_counter() - start)
        return ROUND_TRIPS, statistics.median(seconds)

    def view_and_add() -> tuple[int, float | None]:
        x = one
        for _ in range(VIEWS):
            x = x.T + 1
        x.numpy()
        return VIEWS, None

    def upload() -> tuple[int, float | None]:
        br.tensor(large, device=device)
        device.sync()
        return 1, None

    def download() -> tuple[int, float | None]:
        held.numpy()
        return 1, None

    return {
        "add": adds,
        "add + read (p50)": round_trip,
        "x.T + 1": view_and_add,
        "upload 64 MiB": upload,
        "download 64 MiB": download,
        "training step": training(device),
    }


def training(device: br.Device) -> Workload:
    """Return steps of a perceptron 784-128-10 with batches of 64, gradients by hand."""
    rng = np.random.default_rng(0)
    arrays = [
        rng.random((64, 784), np.float32), np.eye(10, dtype=np.float32)[rng.integers(0, 10, 64)],
        rng.standard_normal((784, 128), np.float32) * 0.05, np.zeros((1, 128), np.float32),
        rng.standard_normal((128, 10), np.float32) * 0.05, np.zeros((1, 10), np.float32),
    ]  # fmt: skip
    tensors = [br.tensor(array, device=device) for array in arrays]

    def run() -> tuple[int, float | None]:
        train(tensors, TRAINING_STEPS)
        return TRAINING_STEPS, None

    return run


def train(tensors: list[br.Tensor], steps: int) -> None:
    """Train a perceptron 784-128-10, and read the sum of its weights at the end."""
    x, y, w1, b1, w2, b2 = tensors
    for _ in range(steps):
        hidden = (x @ w1 + b1).relu()
        logits = hidden @ w2 + b2
        d_logits = (logits.softmax(axis=-1) - y) * (1 / 64)
        d_hidden = (d_logits @ w2.T) * (hidden > 0).astype(br.float32)
        w2 = w2 - hidden.T @ d_logits * 0.1
        b2 = b2 - d_logits.sum(axis=0, keepdims=True) * 0.1
        w1 = w1 - x.T @ d_hidden * 0.1
        b1 = b1 - d_hidden.sum(axis=0, keepdims=True) * 0.1
    w1.sum().numpy()


def local_workloads(device: br.Device) -> dict[str, Workload]:
    """Return single operations of a local device."""
    x = br.ones((16, 16), device=device)
    operations: dict[str, Callable[[], br.Tensor]] = {
        "local x + x": lambda: x + x,
        "local x[2:8]": lambda: x[2:8],
        "local x.reshape": lambda: x.reshape((4, 64)),
        "local x * 2": lambda: x * 2,
        "local x.sum()": lambda: x.sum(),
        "local x // 3": lambda: x // 3,
    }

    def repeated(operation: Callable[[], br.Tensor]) -> Workload:
        def run() -> tuple[int, float | None]:
            for _ in range(LOCAL_OPERATIONS):
                operation()
            device.sync()
            return LOCAL_OPERATIONS, None

        return run

    return {name: repeated(operation) for name, operation in operations.items()}


def start_server() -> tuple[subprocess.Popen[str], str]:
    """Start a server on a free port; return the process and its address."""
    environment = {name: value for name, value in os.environ.items() if "BURN_REMOTE" not in name}
    environment["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"  # as docs/running-a-server.md advises
    command = [sys.executable, "-m", "burn_remote_server", "--port", "0", "--log-level", "warning"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None  # started with a pipe
    words = process.stdout.readline().split()
    return process, next(word for word in words if word.startswith("ws://"))


def processor_seconds(process: int) -> float:
    """Return the processor time of another process, to the nanosecond.

    The clock's number is what Linux's ``clock_getcpuclockid`` returns. ``/proc`` counts in 10 ms.
    """
    return time.clock_gettime((~process << 3) | 2)


def main() -> None:
    """Serve the requests of ``against_commit.py`` until standard input ends."""
    process, address = start_server()
    try:
        with br.RemoteDevice(address) as remote, br.LocalDevice() as local:
            workloads = remote_workloads(remote) | local_workloads(local)
            print(json.dumps([*workloads]), flush=True)
            for line in sys.stdin:
                # Wait for drops and replies of the previous workload, so that they do not count.
                remote.sync()
                local.sync()
                server, client = processor_seconds(process.pid), time.process_time()
                start = time.perf_counter()
                units, unit_seconds = workloads[line.rstrip("\n")]()
                elapsed = time.perf_counter() - start
                figures = {
                    "elapsed": elapsed / units if unit_seconds is None else unit_seconds,
                    "client": (time.process_time() - client) / units,
                    "server": (processor_seconds(process.pid) - server) / units,
                }
                print(json.dumps(figures), flush=True)
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
