"""How fast is the CuPy backend beside CuPy and PyTorch used directly? Needs a GPU.

Kernels compute on arrays that are already there; training steps and copies go through a server in
a process of its own, on the same machine. Times are medians, the GPU waited for.

    PYTHONPATH=tests python benchmarks/gpu.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import cupy
import numpy as np

import burn_remote as br
from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends import Backend, BackendSession, open_backends
from burn_remote_server.backends.cupy import CupyBackend
from support.kernels import signature
from support.servers import RunningServer, server

try:
    import torch
except ImportError:
    torch = None

F32 = DType.from_wire("F32")
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


def row(what: str, ours: float, direct: float | None = None, other: float | None = None) -> None:
    """Print one line of the table, in milliseconds."""
    times = "".join(
        f"{'–' if t is None else f'{t * 1e3:.3f} ms':>12}" for t in (ours, direct, other)
    )
    ratios = "".join(f"{'–' if t is None else f'{ours / t:.2f}':>12}" for t in (direct, other))
    print(f"{what:<54}{times}{ratios}")


def uploaded(backend: Backend, session: BackendSession, array: Any, dtype: DType) -> Any:
    """Return an array on the GPU, in a dtype."""
    held = array.astype(session.array_dtype(dtype), copy=False)
    data = TensorData(held.tobytes(), held.shape, dtype)
    return session.adopt(backend.to_device(data))


def products(backend: Backend, session: BackendSession) -> None:
    """Matrix products in three precisions, alone and in batches."""
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
    """A convolution of 32×64×56×56 by 64 filters 3×3 and its gradients: as a server computes them,
    by cuDNN where it is installed, and by our own kernels; beside cuDNN as PyTorch calls it."""
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
    """A pooling of 32×64×56×56."""
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
    """Host time of an operation that leaves the GPU next to nothing to do."""
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
    """One step as one writes it in CuPy."""
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
    """The same with tensors of a remote device."""
    hidden = (x @ w1 + b1).relu()
    logits = hidden @ w2 + b2
    d_logits = (logits.softmax(axis=-1) - y) * (1 / batch)
    d_hidden = (d_logits @ w2.T) * (hidden > 0).astype(br.float32)
    return (
        x, y,
        w1 - x.T @ d_hidden * 0.1, b1 - d_hidden.sum(axis=0, keepdims=True) * 0.1,
        w2 - hidden.T @ d_logits * 0.1, b2 - d_logits.sum(axis=0, keepdims=True) * 0.1,
    )  # fmt: skip


def training(device: br.Device, sync: Callable[[], Any], steps: int = 100) -> None:
    """A training step of a perceptron 784-1024-10, many without waiting."""

    def run(step: Callable[..., Arrays], batch: int, arrays: Any) -> Callable[[], None]:
        def steps_in_a_row() -> None:
            state = arrays
            for _ in range(steps):
                state = step(batch, *state)

        return steps_in_a_row

    for batch in (64, 4096, 65536):
        arrays = weights(batch)
        here = measure(run(direct_step, batch, [*map(cupy.asarray, arrays)]), sync, 9) / steps
        tensors = [br.tensor(array, device=device) for array in arrays]
        there = measure(run(remote_step, batch, tensors), device.sync, 9) / steps
        row(f"training step, batch {batch}", there, here)


def host_time(running: RunningServer, device: br.Device, count: int = 50_000) -> None:
    """What one small operation costs the server's worker, all in all."""
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


def between_gpus() -> None:
    """1 GiB from one GPU's memory to another's, where there are two."""
    if cupy.cuda.runtime.getDeviceCount() < 2:
        return
    first, second = open_backends("cupy", 2)
    spec = TensorSpec((2**28,), F32)
    shared = first.to_device(TensorData(bytes(2**30), spec.shape, F32))

    def sync() -> None:
        first.sync()
        second.sync()

    seconds = measure(lambda: second.brought(shared, spec, first), sync, 10)
    print(f"{'GPU to GPU, 1 GiB':<34}{2**30 / seconds / 1e9:.0f} GB/s")


def copies(device: br.Device) -> None:
    """256 MiB to the GPU's server and back."""
    array = np.ones(2**26, np.float32)
    held: list[br.Tensor] = []

    def upload() -> None:
        held[:] = [br.tensor(array, device=device)]

    up = measure(upload, device.sync, 5)
    down = measure(lambda: held[0].numpy(), device.sync, 5)
    for what, seconds in (("upload", up), ("download", down)):
        print(f"{what + ' of 256 MiB through a socket':<34}{array.nbytes / seconds / 1e9:.2f} GB/s")


def between_processes() -> None:
    """256 MiB from one server's GPU to another's, the other GPU where there are two."""
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


def array_copies(backend: Backend, session: BackendSession) -> None:
    """256 MiB between the host's memory and the GPU, without a socket."""
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
    with server("--backend", "cupy") as running, br.RemoteDevice(running.address) as device:
        training(device, backend.sync)
        host_time(running, device)
        copies(device)
    between_processes()


if __name__ == "__main__":
    main()
