"""Matrix products of the NumPy backend beside those that the BLAS divides among its own threads.

The backend computes a product on one BLAS thread, or divides it among the threads of a pool by its
shape. Both ways alternate in one process; the times are medians of elapsed milliseconds. On a busy
machine, the BLAS's threads wait for each other in busy loops.

Run ``python benchmarks/matrix_products.py``.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from burn_remote_server.backends.array.kernels.matrix_products import cores, matmul

ROUNDS: Final = 21
SHAPES: Final = (
    ((256, 256), (256, 256)),
    ((512, 512), (512, 512)),
    ((1024, 1024), (1024, 1024)),
    ((64, 4096), (4096, 1024)),
    ((256, 1024), (1024, 1024)),
    ((32, 256, 64), (32, 64, 256)),
)


def elapsed(product: Callable[[], Any]) -> float:
    """Return how many milliseconds a product took."""
    began = time.perf_counter()
    product()
    return 1000 * (time.perf_counter() - began)


def main() -> None:
    """Print the medians for each shape."""
    random = np.random.default_rng(0)
    print(f"{cores()} cores, load average {os.getloadavg()[0]:.1f}")
    for shapes in SHAPES:
        lhs, rhs = (random.standard_normal(shape, dtype=np.float32) for shape in shapes)
        ours, blas = list[float](), list[float]()
        for _ in range(ROUNDS):
            ours.append(elapsed(lambda: matmul(np, lhs, rhs)))  # noqa: B023
            blas.append(elapsed(lambda: np.matmul(lhs, rhs)))  # noqa: B023
        ratio = statistics.median(ours) / statistics.median(blas)
        print(
            f"{shapes[0]} @ {shapes[1]}: {statistics.median(ours):.2f} ms, BLAS's threads "
            f"{statistics.median(blas):.2f} ms, ratio {ratio:.2f}"
        )


if __name__ == "__main__":
    main()
