"""Matrix products of the NumPy backend beside those that the BLAS divides among its own threads.

The backend computes a product on one BLAS thread, or divides it among the threads of a pool by its
shape. Each way runs in processes of its own, in turns, because the BLAS's threads continue to spin
for some time after a product and would slow the other way down. The times are medians of elapsed
milliseconds.

Run ``python benchmarks/matrix_products.py``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from burn_remote_server.backends.array.kernels.matrix_products import cores, matmul

PROCESSES: Final = 3
ROUNDS: Final = 21
SHAPES: Final = (
    ((256, 256), (256, 256)),
    ((512, 512), (512, 512)),
    ((1024, 1024), (1024, 1024)),
    ((64, 4096), (4096, 1024)),
    ((256, 1024), (1024, 1024)),
    ((32, 256, 64), (32, 64, 256)),
)
WAYS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "backend": lambda lhs, rhs: matmul(np, lhs, rhs),
    "blas": np.matmul,
}


def measure(multiply: Callable[[Any, Any], Any]) -> list[float]:
    """Return the median time of a product of each shape, in milliseconds."""
    random = np.random.default_rng(0)
    medians = []
    for shapes in SHAPES:
        lhs, rhs = (random.standard_normal(shape, dtype=np.float32) for shape in shapes)
        times = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            multiply(lhs, rhs)
            times.append(1000 * (time.perf_counter() - began))
        medians.append(statistics.median(times))
    return medians


def in_process(way: str) -> list[float]:
    """Measure one way in a process of its own."""
    done = subprocess.run([sys.executable, __file__, way], check=True, capture_output=True)
    return list(json.loads(done.stdout))


def main() -> None:
    """Print the medians for each shape."""
    if len(sys.argv) > 1:
        print(json.dumps(measure(WAYS[sys.argv[1]])))
        return
    print(f"{cores()} cores, load average {os.getloadavg()[0]:.1f}")
    found: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for _ in range(PROCESSES):
        for way, runs in found.items():
            runs.append(in_process(way))
    times = {way: [*map(statistics.median, zip(*runs, strict=True))] for way, runs in found.items()}
    for (lhs, rhs), ours, blas in zip(SHAPES, times["backend"], times["blas"], strict=True):
        print(
            f"{lhs} @ {rhs}: {ours:.2f} ms, BLAS's threads {blas:.2f} ms, ratio {ours / blas:.2f}"
        )


if __name__ == "__main__":
    main()
