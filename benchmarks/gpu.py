"""Compare the CuPy backend with direct use of CuPy and PyTorch. Needs a GPU.

Kernels compute on arrays already on the GPU; gpu_servers.py measures servers.
Times are medians and include waiting for the GPU.

    PYTHONPATH=tests python benchmarks/gpu.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import cupy
import numpy as np
from gpu_servers import measure, row, through_servers

from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends import Backend, BackendSession, open_backends
from burn_remote_server.backends.cupy.backend import CupyBackend
from support.kernels import signature

try:
    import torch
except ImportError:
    torch = None

F32 = DType.from_wire("F32")
SHAPES = {"matmul 4096³": (4096, 4096), "matmul 32 × 1024³": (32, 1024, 1024)}


def uploaded(backend: Backend, session: BackendSession, array: Any, dtype: DType) -> Any:
    """Return an array on the GPU, in a dtype."""
    held = array.astype(session.array_dtype(dtype), copy=False)
    data = TensorData(held.tobytes(), held.shape, dtype)
    return session.adopt(backend.to_device(data))


def products(backend: Backend, session: BackendSession) -> None:
    """Measure matrix products in three precisions, single and in batches."""
    for what, shape in SHAPES.items():
        for name in ("F32", "F16", "BF16"):
            spec = TensorSpec(shape, DType.from_wire(name))
            numbers = np.random.default_rng(0).standard_normal(shape, np.float32)
            x = uploaded(backend, session, numbers, spec.dtype)
            run = session.bind(signature("Float.Matmul", spec, spec))
            ours = measure(lambda run=run, x=x: run(x, x), backend.sync)  # type: ignore[misc]
            try:
                direct = measure(lambda x=x: cupy.matmul(x, x), backend.sync)  # type: ignore[misc]
            except Exception:  # CuPy has no batched product of bfloat16
                direct = None
            other = None
            if torch is not None:
                dtypes = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
                y = torch.randn(shape, device="cuda").to(dtypes[name])
                other = measure(lambda y=y: torch.matmul(y, y), torch.cuda.synchronize)  # type: ignore[misc]
            row(f"{what} {name}", ours, direct, other)


def convolutions(backend: CupyBackend, precision: str) -> None:
    """Measure a convolution of 32×64×56×56 by 64 filters 3×3, and its gradients.

    Compares cuDNN in a server (if it is installed) and our own kernels with cuDNN in PyTorch.
    """
    rng = np.random.default_rng(1)
    of = DType.from_wire(precision)
    images, filters = TensorSpec((32, 64, 56, 56), of), TensorSpec((64, 64, 3, 3), of)
    options: dict[str, Any] = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    numbers = [rng.standard_normal(spec.shape, np.float32) for spec in (images, filters)]
    theirs: list[Callable[[], Any]] = []
    if torch is not None:
        dtypes = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
        a, b = (torch.as_tensor(array).cuda().to(dtypes[precision]) for array in numbers)
        functional, grad = torch.nn.functional, torch.nn.grad
        theirs = [
            lambda: functional.conv2d(a, b, padding=1),
            lambda: grad.conv2d_input(a.shape, b, a, padding=1),
            lambda: grad.conv2d_weight(a, b.shape, a, padding=1),
        ]
    chosen = {"own kernels": CupyBackend(uses_cudnn=False)}
    if backend.cudnn is not None:
        chosen[f"cuDNN {backend.cudnn.version}"] = backend
    for number, (what, direction, third) in enumerate(
        [("", "", None), (" to x", "XBackward", images), (" to filters", "WeightBackward", images)]
    ):
        for by, computing in chosen.items():
            session = computing.open_session()
            session.activate()
            x, weight = (uploaded(computing, session, array, of) for array in numbers)
            name = f"Module.Conv2d{direction}"
            run = session.bind(signature(name, images, filters, third, **options))
            given = (x, weight, None if third is None else x)
            ours = measure(lambda run=run, given=given: run(*given), computing.sync)  # type: ignore[misc]
            label = f"conv2d {precision}{what}, {by}"
            for allowed in (True, False) if theirs and precision == "F32" else (False,):
                other = None
                if theirs:
                    torch.backends.cudnn.allow_tf32 = allowed
                    other = measure(theirs[number], torch.cuda.synchronize)
                row(f"{label}{', PyTorch in TF32' if allowed else ''}", ours, None, other)
            session.close()


def pooling(backend: Backend, session: BackendSession) -> None:
    """Measure a pooling of 32×64×56×56."""
    images = TensorSpec((32, 64, 56, 56), F32)
    array = np.random.default_rng(1).standard_normal(images.shape, np.float32)
    x = uploaded(backend, session, array, F32)
    options: dict[str, Any] = {"padding": (0, 0), "dilation": (1, 1), "ceil_mode": False}
    options |= {"kernel_size": (2, 2), "stride": (2, 2)}
    run = session.bind(signature("Module.MaxPool2d", images, **options))
    other = None
    if torch is not None:
        y = torch.as_tensor(array).cuda()
        other = measure(lambda: torch.nn.functional.max_pool2d(y, 2), torch.cuda.synchronize)
    row("max_pool2d 2×2", measure(lambda: run(x), backend.sync), None, other)


def dispatch(backend: Backend, session: BackendSession) -> None:
    """Measure the host time of an operation that needs almost no GPU time."""
    few = TensorSpec((8,), F32)
    add = session.bind(signature("Numeric.Add", few, few))
    x = uploaded(backend, session, np.ones(8, np.float32), F32)
    for what, function in (("ours", add), ("CuPy", cupy.add)):
        function(x, x)  # compiled here
        start = time.perf_counter()
        for _ in range(10_000):
            function(x, x)
        backend.sync()
        print(f"{'host time per add, ' + what:<34}{(time.perf_counter() - start) * 100:.2f} µs")


def between_gpus() -> None:
    """Copy 1 GiB from one GPU to another, if there are two."""
    if cupy.cuda.runtime.getDeviceCount() < 2:
        return
    first, second = open_backends("cupy", 2)
    spec = TensorSpec((2**28,), F32)
    shared = first.to_device(TensorData(bytes(2**30), spec.shape, F32))

    def sync() -> None:
        first.sync()
        second.sync()

    seconds = measure(lambda: second.import_shared(shared, spec, first), sync, 10)
    print(f"{'GPU to GPU, 1 GiB':<34}{2**30 / seconds / 1e9:.0f} GB/s")


def array_copies(backend: Backend, session: BackendSession) -> None:
    """Copy 256 MiB between host memory and the GPU, without a socket."""
    data = TensorData(bytes(2**28), (2**26,), F32)
    array = session.adopt(backend.to_device(data))
    for what, run in (
        ("host to GPU", lambda: backend.to_device(data)),
        ("GPU to host", lambda: backend.to_bytes(array, F32)),
    ):
        print(f"{what + ', 256 MiB':<34}{2**28 / measure(run, backend.sync, 5) / 1e9:.1f} GB/s")


def main() -> None:
    """Print one table."""
    backend = CupyBackend()
    backend.prepare_thread()
    session = backend.open_session()
    session.activate()
    print(f"{backend.device_name}, CuPy {cupy.__version__}, NumPy {np.__version__}", end="")
    print(f", PyTorch {torch.__version__}" if torch is not None else "")
    print(f"{'what':<54}{'ours':>12}{'CuPy':>12}{'PyTorch':>12}{'÷ CuPy':>12}{'÷ PyTorch':>12}")
    products(backend, session)
    pooling(backend, session)
    for precision in ("F32", "F16", "BF16"):
        convolutions(backend, precision)
    session.activate()
    dispatch(backend, session)
    array_copies(backend, session)
    between_gpus()
    through_servers(backend.sync)


if __name__ == "__main__":
    main()
