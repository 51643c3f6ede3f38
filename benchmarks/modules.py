"""Measure the functions of networks on the NumPy backend beside what NumPy can do by hand.

    python benchmarks/modules.py

Each is timed on a local device, which runs the same kernels as a server without the network, and
beside a rival in the same process: the matrix product of the same number of operations, plain NumPy
written by hand, or PyTorch where it is installed. Memory is the peak that ``tracemalloc`` sees.
"""

from __future__ import annotations

import statistics
import time
import tracemalloc
from collections.abc import Callable
from datetime import date

import numpy as np
from rich.console import Console
from rich.table import Table

import burn_remote as br
import burn_remote.functional as F

try:
    import torch
except ImportError:
    torch = None

REPEATS = 5
ELEMENTS = 4 * 2**20

Rows = list[tuple[str, float, str]]


def seconds(run: Callable[[], object]) -> float:
    """Return the median time of a call after a warm-up."""
    run()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _on(device: br.Device, run: Callable[[], object]) -> float:
    """Time what a call starts on a device, to its end."""

    def settled() -> None:
        run()
        device.sync()

    return seconds(settled)


def convolution(device: br.Device) -> Rows:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((32, 64, 56, 56), np.float32)
    weight = rng.standard_normal((64, 64, 3, 3), np.float32)
    on_device = br.tensor(x, device=device), br.tensor(weight, device=device)
    ours = _on(device, lambda: F.conv2d(*on_device, padding=1))
    # The same multiply-adds as one product: [64, 576] by [576, 32·56·56].
    a, b = weight.reshape(64, -1), rng.standard_normal((576, 32 * 56 * 56), np.float32)
    rows = [("conv2d 32×64×56×56, 3×3 ÷ equal matmul", ours / seconds(lambda: a @ b), "≤ 1.8")]
    if torch is not None:
        tensors = torch.from_numpy(x), torch.from_numpy(weight)
        theirs = seconds(lambda: torch.nn.functional.conv2d(*tensors, padding=1))
        rows.append(("conv2d ÷ PyTorch", ours / theirs, "≤ 3"))
    return rows


def pooling(device: br.Device) -> Rows:
    x = np.random.default_rng(0).standard_normal((32, 64, 56, 56), np.float32)
    on_device = br.tensor(x, device=device)
    ours = _on(device, lambda: F.max_pool2d(on_device, 2))

    def by_hand() -> object:
        rows = np.maximum(x[:, :, ::2], x[:, :, 1::2])
        return np.maximum(rows[..., ::2], rows[..., 1::2])

    rows = [("max-pool 2×2 ÷ NumPy by hand", ours / seconds(by_hand), "–")]
    if torch is not None:
        tensor = torch.from_numpy(x)
        theirs = seconds(lambda: torch.nn.functional.max_pool2d(tensor, 2))
        rows.append(("max-pool 2×2 ÷ PyTorch", ours / theirs, "≤ 2"))
    return rows


def activations(device: br.Device) -> Rows:
    x = np.random.default_rng(0).standard_normal((ELEMENTS // 1024, 1024), np.float32)
    on_device = br.tensor(x, device=device)
    scale, shift = br.ones((1024,), device=device), br.zeros((1024,), device=device)

    def softmax() -> object:
        out = x - x.max(axis=-1, keepdims=True)
        np.exp(out, out=out)
        out /= out.sum(axis=-1, keepdims=True)
        return out

    def layer_norm() -> object:
        out = x - x.mean(axis=-1, keepdims=True)
        out /= np.sqrt((out * out).mean(axis=-1, keepdims=True) + 1e-5)
        return out

    def tanh_gelu() -> object:
        inner = x * x
        inner *= 0.044715
        inner += 1
        inner *= x
        inner *= 0.7978845608
        np.tanh(inner, out=inner)
        inner += 1
        inner *= x
        inner *= 0.5
        return inner

    measured: list[tuple[str, Callable[[], object], Callable[[], object]]] = [
        ("softmax", lambda: F.softmax(on_device, -1), softmax),
        ("layer norm", lambda: F.layer_norm(on_device, (1024,), scale, shift), layer_norm),
        ("gelu", lambda: F.gelu(on_device), tanh_gelu),
    ]
    return [
        (f"{name}, 4 Mi elements ÷ NumPy by hand", _on(device, ours) / seconds(by_hand), "≤ 1.5")
        for name, ours, by_hand in measured
    ]


def attention(device: br.Device) -> Rows:
    shape = (8, 12, 1024, 64)
    rng = np.random.default_rng(0)
    q, k, v = (br.tensor(rng.standard_normal(shape, np.float32), device=device) for _ in range(3))
    size = 4 * q.nbytes  # three inputs and the output
    device.sync()
    tracemalloc.start()
    out = F.scaled_dot_product_attention(q, k, v)
    device.sync()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    del out
    # The inputs were there before tracing began.
    return [
        (
            "attention 8×12×1024×64, peak memory ÷ in- and outputs",
            (peak + 3 * q.nbytes) / size,
            "≤ 4",
        )
    ]


def main() -> None:
    """Measure all and print one table of ratios."""
    table = Table("measure", "ratio", "reach", title=f"{date.today()}, NumPy {np.__version__}")
    with br.LocalDevice() as device:
        for part in (convolution, pooling, activations, attention):
            for name, ratio, reach in part(device):
                table.add_row(name, f"{ratio:.2f}", reach)
    console = Console()
    console.print(table)
    if torch is None:
        console.print("PyTorch is not installed: its ratios were not measured.")


if __name__ == "__main__":
    main()
