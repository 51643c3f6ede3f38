"""Compare neural network functions on the NumPy backend with hand-written NumPy.

    python benchmarks/modules.py

Each function is timed on a local device, which runs the same kernels as a server, without a
connection. It is compared in the same process with a matrix product of as many multiplications,
with hand-written NumPy, or with PyTorch if it is installed (``make bench-modules`` installs it).
The calls alternate and the medians are compared, so that other load affects both alike. Memory is
the peak that ``tracemalloc`` measures.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import tracemalloc
from collections.abc import Callable
from datetime import date
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import burn_remote as br
import burn_remote.functional as F

try:
    import torch
except ImportError:
    torch = None

ELEMENTS = 4 * 2**20
BLOCK = (
    32 * 1024
)  # block size of the hand-written functions, so that scratch memory stays in the cache
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

Array = np.ndarray[Any, Any]
Run = Callable[[], object]
Row = tuple[str, float, float, str]


class Comparison:
    """Times alternating calls of a device and of the compared function."""

    def __init__(self, device: br.Device, repeats: int, clock: Callable[[], float]) -> None:
        self.device = device
        self._repeats = repeats
        self._clock = clock

    def seconds(self, run: Run) -> float:
        """Return how long a call takes."""
        start = self._clock()
        run()
        return self._clock() - start

    def row(self, name: str, ours: Run, rival: Run, reach: str) -> Row:
        """Return our median milliseconds, and their ratio to the other function's."""

        def settled() -> None:
            ours()
            self.device.sync()

        settled()
        rival()
        pairs = [(self.seconds(settled), self.seconds(rival)) for _ in range(self._repeats)]
        mine, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
        return name, mine * 1000, mine / theirs, reach


def convolution(against: Comparison) -> list[Row]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((32, 64, 56, 56), np.float32)
    weight = rng.standard_normal((64, 64, 3, 3), np.float32)
    x_there, weight_there = (br.tensor(array, device=against.device) for array in (x, weight))
    # The same multiply-adds as one product: [64, 576] by [576, 32·56·56].
    a, b = weight.reshape(64, -1), rng.standard_normal((576, 32 * 56 * 56), np.float32)
    name = "conv2d 32×64×56×56, 64 filters 3×3"

    def ours() -> object:
        return F.conv2d(x_there, weight_there, padding=1)

    rows = [against.row(f"{name} ÷ equal matmul", ours, lambda: a @ b, "≤ 1.8")]
    if torch is not None:
        tensors = torch.from_numpy(x), torch.from_numpy(weight)

        def theirs() -> object:
            return torch.nn.functional.conv2d(*tensors, padding=1)

        rows.append(against.row(f"{name} ÷ PyTorch", ours, theirs, "≤ 3"))
    return rows


def pooling(against: Comparison) -> list[Row]:
    x = np.random.default_rng(0).standard_normal((32, 64, 56, 56), np.float32)
    on_device = br.tensor(x, device=against.device)

    def ours() -> object:
        return F.max_pool2d(on_device, 2)

    def by_hand() -> object:
        rows = np.maximum(x[:, :, ::2], x[:, :, 1::2])
        return np.maximum(rows[..., ::2], rows[..., 1::2])

    rows = [against.row("max-pool 2×2 ÷ NumPy by hand", ours, by_hand, "–")]
    if torch is not None:
        tensor = torch.from_numpy(x)
        theirs = torch.nn.functional.max_pool2d
        rows.append(against.row("max-pool 2×2 ÷ PyTorch", ours, lambda: theirs(tensor, 2), "≤ 2"))
    return rows


def activations(against: Comparison) -> list[Row]:
    x = np.random.default_rng(0).standard_normal((ELEMENTS // 1024, 1024), np.float32)
    scale, shift = np.full(1024, 1.5, np.float32), np.full(1024, 0.5, np.float32)
    on_device, *affine = (br.tensor(item, device=against.device) for item in (x, scale, shift))

    def softmax() -> object:
        out = np.empty_like(x)
        for start in range(0, len(x), BLOCK // 1024):
            rows, part = x[start : start + BLOCK // 1024], out[start : start + BLOCK // 1024]
            np.subtract(rows, rows.max(axis=-1, keepdims=True), out=part)
            np.exp(part, out=part)
            part /= part.sum(axis=-1, keepdims=True)
        return out

    def layer_norm() -> object:
        out = np.empty_like(x)
        for start in range(0, len(x), BLOCK // 1024):
            rows, part = x[start : start + BLOCK // 1024], out[start : start + BLOCK // 1024]
            np.subtract(rows, rows.mean(axis=-1, keepdims=True), out=part)
            part /= np.sqrt(np.square(part).mean(axis=-1, keepdims=True) + 1e-5)
            part *= scale
            part += shift
        return out

    def ours(function: Callable[..., object], *arguments: object) -> Run:
        return lambda: function(on_device, *arguments)

    by_hand: list[tuple[str, Run, Run]] = [
        ("softmax ÷ by hand", ours(F.softmax, -1), softmax),
        ("layer norm ÷ by hand", ours(F.layer_norm, (1024,), *affine), layer_norm),
        ("gelu, exact ÷ exact by hand", ours(F.gelu), lambda: exact_gelu(x)),
        ("gelu, exact ÷ tanh by hand", ours(F.gelu), lambda: tanh_gelu(x)),
        ("gelu, tanh ÷ tanh by hand", ours(F.gelu, "tanh"), lambda: tanh_gelu(x)),
    ]
    return [
        against.row(f"{name}, 4 Mi elements", run, rival, "≤ 1.5") for name, run, rival in by_hand
    ]


# NumPy has no error function. The fastest substitute is a rational approximation such as Eigen's,
# x P(x²) / Q(x²), here in one pass over blocks that stay in the cache.
ERF_P = (2.1237322e-06, 2.86197959e-04, 3.65804834e-03, 5.24330214e-02, 1.87416077e-01, 1.12837911)
ERF_Q = (3.89185734e-05, 1.14329602e-03, 1.47520881e-02, 1.12945676e-01, 4.99425799e-01, 1.0)


def exact_gelu(x: Array) -> Array:
    flat, out = x.reshape(-1), np.empty(x.size, np.float32)
    bounded, square, above, below = np.empty((4, BLOCK), np.float32)
    for start in range(0, flat.size, BLOCK):
        part, result = flat[start : start + BLOCK], out[start : start + BLOCK]
        np.multiply(part, 0.5**0.5, out=bounded)
        np.clip(bounded, -3.8325, 3.8325, out=bounded)
        np.multiply(bounded, bounded, out=square)
        for total, coefficients in ((above, ERF_P), (below, ERF_Q)):
            np.multiply(square, coefficients[0], out=total)
            for coefficient in coefficients[1:-1]:
                total += coefficient
                total *= square
            total += coefficients[-1]
        above *= bounded
        above /= below
        above += 1
        above *= 0.5
        np.multiply(above, part, out=result)
    return out.reshape(x.shape)


def tanh_gelu(x: Array) -> Array:
    flat, out = x.reshape(-1), np.empty(x.size, np.float32)
    for start in range(0, flat.size, BLOCK):
        part, inner = flat[start : start + BLOCK], out[start : start + BLOCK]
        np.multiply(part, part, out=inner)
        inner *= 0.044715 * 0.7978845608
        inner += 0.7978845608
        inner *= part
        np.tanh(inner, out=inner)
        inner += 1
        inner *= 0.5
        inner *= part
    return out.reshape(x.shape)


def attention(against: Comparison) -> list[Row]:
    device, rng = against.device, np.random.default_rng(0)
    shape = (8, 12, 1024, 64)
    q, k, v = (br.tensor(rng.standard_normal(shape, np.float32), device=device) for _ in range(3))
    size = 4 * q.nbytes  # three inputs and the output
    device.sync()

    def attend() -> None:
        out = F.scaled_dot_product_attention(q, k, v)
        device.sync()
        del out

    tracemalloc.start()
    milliseconds = 1000 * against.seconds(attend)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # The inputs were allocated before tracing began.
    ratio = (peak + 3 * q.nbytes) / size
    return [("attention 8×12×1024×64, memory ÷ in- and outputs", milliseconds, ratio, "≤ 4")]


def main() -> None:
    """Measure all and print one table of ratios."""
    parser = argparse.ArgumentParser(
        description="Compare neural network functions with hand-written NumPy and with PyTorch."
    )
    parser.add_argument("--repeats", type=int, default=15, help="pairs of calls (default 15)")
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="count the time of one thread, on a machine that does other work too "
        "(set OPENBLAS_NUM_THREADS=1)",
    )
    options = parser.parse_args()
    threads = 1 if options.processor_time else CORES
    clock = time.process_time if options.processor_time else time.perf_counter
    if torch is not None:
        torch.set_num_threads(threads)
    title = f"{date.today()}, {threads} of {CORES} cores, NumPy {np.__version__}" + (
        f", PyTorch {torch.__version__}" if torch else ""
    )
    table = Table("measure", "ms", "ratio", "target", title=title)
    busy = os.getloadavg()[0]
    with br.LocalDevice() as device:
        against = Comparison(device, options.repeats, clock)
        for part in (convolution, pooling, activations, attention):
            for name, milliseconds, ratio, reach in part(against):
                table.add_row(name, f"{milliseconds:.1f}", f"{ratio:.2f}", reach)
    console = Console()
    console.print(table)
    console.print(f"Load average before the measurements: {busy:.1f} on {CORES} cores.")
    if torch is None:
        console.print("PyTorch is not installed: its ratios were not measured.")


if __name__ == "__main__":
    main()
