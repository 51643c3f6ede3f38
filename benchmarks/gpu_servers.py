"""Compare servers that use a GPU with eager CuPy in this process. ``gpu.py`` runs this.

The servers run in processes of their own on the same machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import cupy
import numpy as np

import burn_remote as br
from support.servers import RunningServer, server


def measure(run: Callable[[], Any], sync: Callable[[], Any], repeats: int = 20) -> float:
    """Return the median seconds of a call, including waiting for the GPU."""
    times = []
    for number in range(repeats + 3):
        sync()
        start = time.perf_counter()
        run()
        sync()
        if number >= 3:
            times.append(time.perf_counter() - start)
    return median(times)


def row(what: str, ours: float, direct: float | None = None, other: float | None = None) -> None:
    """Print one line of the table, in milliseconds."""
    times = "".join(
        f"{'–' if t is None else f'{t * 1e3:.3f} ms':>12}" for t in (ours, direct, other)
    )
    ratios = "".join(f"{'–' if t is None else f'{ours / t:.2f}':>12}" for t in (direct, other))
    print(f"{what:<54}{times}{ratios}")


Arrays = tuple[Any, Any, Any, Any, Any, Any]


def weights(batch: int) -> list[Any]:
    """Return pictures, targets and the weights of a perceptron 784-1024-10."""
    rng = np.random.default_rng(0)
    return [
        rng.random((batch, 784), np.float32), np.eye(10, dtype=np.float32)[np.arange(batch) % 10],
        rng.standard_normal((784, 1024), np.float32) * 0.05, np.zeros((1, 1024), np.float32),
        rng.standard_normal((1024, 10), np.float32) * 0.05, np.zeros((1, 10), np.float32),
    ]  # fmt: skip


def direct_step(batch: int, x: Any, y: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Arrays:
    """Perform one training step, written for CuPy."""
    hidden = cupy.maximum(x @ w1 + b1, 0)
    logits = hidden @ w2 + b2
    exp = cupy.exp(logits - logits.max(axis=1, keepdims=True))
    d_logits = (exp / exp.sum(axis=1, keepdims=True) - y) * (1 / batch)
    d_hidden = (d_logits @ w2.T) * (hidden > 0).astype(np.float32)
    return (
        x, y,
        w1 - x.T @ d_hidden * 0.1, b1 - d_hidden.sum(axis=0, keepdims=True) * 0.1,
        w2 - hidden.T @ d_logits * 0.1, b2 - d_logits.sum(axis=0, keepdims=True) * 0.1,
    )  # fmt: skip


def remote_step(batch: int, x: Any, y: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Arrays:
    """Perform the same step with tensors of a remote device."""
    hidden = (x @ w1 + b1).relu()
    logits = hidden @ w2 + b2
    d_logits = (logits.softmax(axis=-1) - y) * (1 / batch)
    d_hidden = (d_logits @ w2.T) * (hidden > 0).astype(br.float32)
    return (
        x, y,
        w1 - x.T @ d_hidden * 0.1, b1 - d_hidden.sum(axis=0, keepdims=True) * 0.1,
        w2 - hidden.T @ d_logits * 0.1, b2 - d_logits.sum(axis=0, keepdims=True) * 0.1,
    )  # fmt: skip


def training(device: br.Device, sync: Callable[[], Any]) -> None:
    """Measure training steps of a perceptron 784-1024-10, with one wait after many steps.

    With fewer steps per wait, the round trip to the server has more weight.
    """

    def run(step: Callable[..., Arrays], batch: int, steps: int, arrays: Any) -> Callable[[], None]:
        def steps_in_a_row() -> None:
            state = arrays
            for _ in range(steps):
                state = step(batch, *state)

        return steps_in_a_row

    for batch, steps in ((64, 100), (4096, 100), (4096, 1000), (65536, 100)):
        arrays = weights(batch)
        own = [*map(cupy.asarray, arrays)]
        here = measure(run(direct_step, batch, steps, own), sync, 9) / steps
        tensors = [br.tensor(array, device=device) for array in arrays]
        there = measure(run(remote_step, batch, steps, tensors), device.sync, 9) / steps
        row(f"training step, batch {batch}, {steps} in a row", there, here)


def host_time(running: RunningServer, device: br.Device, count: int = 50_000) -> None:
    """Measure the total cost of one small operation in the server's worker."""
    x = y = br.ones((8,), device=device)
    device.sync()
    start = time.perf_counter()
    for _ in range(count):
        x = x + y
    device.sync()
    print(
        f"{'small operation, end to end':<34}{(time.perf_counter() - start) / count * 1e6:.2f} µs"
    )
    times = []
    for _ in range(2000):
        start = time.perf_counter()
        (y + y).numpy()
        times.append(time.perf_counter() - start)
    print(f"{'operation and read, round trip p50':<34}{median(times) * 1e6:.0f} µs")


def copies(device: br.Device) -> None:
    """Send 256 MiB to the GPU's server and back."""
    array = np.ones(2**26, np.float32)
    held: list[br.Tensor] = []

    def upload() -> None:
        held[:] = [br.tensor(array, device=device)]

    up = measure(upload, device.sync, 5)
    down = measure(lambda: held[0].numpy(), device.sync, 5)
    for what, seconds in (("upload", up), ("download", down)):
        print(f"{what + ' of 256 MiB through a socket':<34}{array.nbytes / seconds / 1e9:.2f} GB/s")


def between_processes() -> None:
    """Move 256 MiB from one server's GPU to another server, on a second GPU if there is one."""
    other = "1" if cupy.cuda.runtime.getDeviceCount() > 1 else "0"
    for what, allowed in (("by CUDA IPC", "true"), ("through a socket", "false")):
        flags = ("--backend", "cupy", "--cuda-ipc", allowed)
        with (
            server(*flags) as first,
            server(*flags, CUDA_VISIBLE_DEVICES=other) as second,
            br.RemoteDevice(first.address) as source,
            br.RemoteDevice(second.address) as target,
        ):
            x = br.ones((2**26,), device=source)
            source.sync()

            def move(x: br.Tensor = x, target: br.Device = target) -> None:
                x.to(target)[:1].numpy()

            seconds = measure(move, target.sync, 10)
        print(f"{'process to process ' + what:<34}{2**28 / seconds / 1e9:.2f} GB/s")


def through_servers(sync: Callable[[], Any]) -> None:
    """Print the rows of the table; ``sync`` waits for the GPU that this process uses."""
    with server("--backend", "cupy") as running, br.RemoteDevice(running.address) as device:
        training(device, sync)
        host_time(running, device)
        copies(device)
    between_processes()
