"""Compare a device over Iroh with the same device over a WebSocket, on one machine.

    python benchmarks/iroh_devices.py

Both connections lead to one server process, and each measurement alternates between them.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

import burn_remote as br

ROUNDS = 5
ADDS = 3000
READS = 200
TRANSFER_BYTES = 8 * 2**20


def adds(device: br.Device) -> float:
    """Return small additions per second, pipelined."""
    x = br.zeros((16, 16), device=device)
    device.sync()
    started = time.perf_counter()
    for _ in range(ADDS):
        x = x + 1
    device.sync()
    return ADDS / (time.perf_counter() - started)


def round_trip(device: br.Device) -> float:
    """Return the median time of an addition that is read, in microseconds."""
    x = br.zeros((4,), device=device)
    times = []
    for _ in range(READS):
        started = time.perf_counter()
        (x + 1).numpy()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6


def upload(device: br.Device) -> float:
    """Return the rate of an upload in MB/s."""
    values = np.random.default_rng(0).standard_normal(TRANSFER_BYTES // 8)
    started = time.perf_counter()
    tensor = br.asarray(values, device=device)
    device.sync()
    elapsed = time.perf_counter() - started
    del tensor
    return TRANSFER_BYTES / elapsed / 1e6


def download(device: br.Device) -> float:
    """Return the rate of a read in MB/s."""
    tensor = br.zeros((TRANSFER_BYTES // 4,), device=device)
    device.sync()
    started = time.perf_counter()
    tensor.numpy()
    return TRANSFER_BYTES / (time.perf_counter() - started) / 1e6


MEASURES: dict[str, Callable[[br.Device], float]] = {
    "[16,16] additions, pipelined, per second": adds,
    "addition and read, µs": round_trip,
    "upload of 8 MiB, MB/s": upload,
    "read of 8 MiB, MB/s": download,
}


def main() -> None:
    """Print the median of each measure, and the smallest and largest value."""
    command = [sys.executable, "-m", "burn_remote_server", "--port", "0", "--iroh-port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None  # started with a pipe
        words = process.stdout.readline().split(" at ")[1].split()
        with br.RemoteDevice(words[0]) as websocket, br.RemoteDevice(words[1]) as iroh:
            for name, measure in MEASURES.items():
                for label, device in (("WebSocket", websocket), ("Iroh", iroh)):
                    measure(device)
                    values = [measure(device) for _ in range(ROUNDS)]
                    middle = statistics.median(values)
                    print(
                        f"{name:42} {label:10} {middle:10,.0f}"
                        f"  [{min(values):,.0f}–{max(values):,.0f}]"
                    )
        process.terminate()


if __name__ == "__main__":
    main()
