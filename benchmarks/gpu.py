"""How fast is the CuPy backend beside CuPy and PyTorch used directly? Needs a GPU.

Each side computes on arrays that are already there; times are medians, the GPU waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import cupy
import numpy as np

from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends import open_backends
from support.kernels import signature

SHAPES = {"matmul 4096³": (4096, 4096), "matmul 32 × 1024³": (32, 1024, 1024)}


def measure(run: Callable[[], Any], sync: Callable[[], Any], repeats: int = 20) -> float:
    """Return the median seconds of a call that the GPU has finished."""
    times = []
    for number in range(repeats + 3):
        sync()
        start = time.perf_counter()
        run()
        sync()
        if number >= 3:
            times.append(time.perf_counter() - start)
    return median(times)


def torch_seconds(shape: tuple[int, ...], name: str) -> float | None:
    """Return PyTorch's time for the same product; ``None`` without PyTorch."""
    try:
        import torch
    except ImportError:
        return None
    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[name]
    x = torch.randn(shape, device="cuda").to(dtype)
    return measure(lambda: torch.matmul(x, x), torch.cuda.synchronize)


def main() -> None:
    """Print one table."""
    (backend,) = open_backends("cupy", 1)
    backend.prepare_thread()
    session = backend.open_session()
    print(f"{'what':<28}{'ours':>10}{'CuPy':>10}{'PyTorch':>10}  ours/CuPy ours/PyTorch")
    for what, shape in SHAPES.items():
        for name in ("F32", "F16", "BF16"):
            spec = TensorSpec(shape, DType.from_wire(name))
            numbers = np.random.default_rng(0).standard_normal(shape, np.float32)
            held = numbers.astype(session.array_dtype(spec.dtype))
            x = backend.to_device(TensorData(held.tobytes(), shape, spec.dtype))
            run = session.bind(signature("Float.Matmul", spec, spec))
            ours = measure(lambda run=run, x=x: run(x, x), backend.sync)  # type: ignore[misc]
            try:
                direct = measure(lambda x=x: cupy.matmul(x, x), backend.sync)  # type: ignore[misc]
            except Exception:  # CuPy has no batched product of bfloat16
                direct = None
            other = torch_seconds(shape, name)
            row = "".join(
                f"{'–' if t is None else f'{t * 1e3:.3f} ms':>10}" for t in (ours, direct, other)
            )
            ratios = "".join(
                f"{'–' if t is None else f'{ours / t:.2f}':>11}" for t in (direct, other)
            )
            print(f"{what + ' ' + name:<28}{row}{ratios}")
    data = TensorData(bytes(2**28), (2**26,), DType.from_wire("F32"))
    array = backend.to_device(data)
    for what, seconds in (
        ("host to device", measure(lambda: backend.to_device(data), backend.sync, 5)),
        ("device to host", measure(lambda: backend.to_bytes(array, data.dtype), backend.sync, 5)),
    ):
        print(f"{what + ' 256 MiB':<28}{2**28 / seconds / 1e9:.1f} GB/s")
    small = np.ones(8, np.float32)
    few = TensorSpec((8,), data.dtype)
    add = session.bind(signature("Numeric.Add", few, few))
    x = backend.to_device(TensorData(small.tobytes(), (8,), data.dtype))
    for what, function in (("ours", add), ("CuPy", cupy.add)):
        function(x, x)  # compiled here
        start = time.perf_counter()
        for _ in range(10_000):
            function(x, x)
        backend.sync()
        print(f"{'host time per add, ' + what:<28}{(time.perf_counter() - start) * 100:.2f} µs")


if __name__ == "__main__":
    main()
