"""Compare compiled functions on a server's GPU with eager CuPy and PyTorch. Needs a GPU.

    PYTHONPATH=tests python benchmarks/gpu_graphs.py

Prints one line per workload: the time of one call in microseconds, and its ratio to each comparison
in the same run. A round waits once, after 300 training steps of batch 64, 1,000 of batch 4,096,
1,000 chains of 1,024 elements or 50 of 16 Mi.
The server runs in a process of its own on the same machine. PyTorch's rows are missing where it is
not installed.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final

import cupy
import numpy as np
from gpu_servers import copies, direct_step, remote_step, weights
from training_transformer import BATCH, CHARACTERS, CONTEXT, our_run, rival_run

import burn_remote as br
from support.servers import RunningServer, server

try:
    import torch
except ImportError:
    torch = None

ROUNDS: Final = 7
CHAIN: Final = 20
RATE: Final = 0.1
COMPILED: Final = ("burn_remote_kernels_compiled_total", "burn_remote_graph_captures_total")
# NVIDIA's compiler takes 0.3 s for a kernel.
QUIET_SECONDS: Final = 2.0


def per_call(call: Callable[[], Any], sync: Callable[[], Any], calls: int) -> float:
    """Return the median time of a call in microseconds, of several rounds of calls."""
    times = []
    for round_number in range(ROUNDS + 2):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        sync()
        if round_number >= 2:
            times.append((time.perf_counter() - start) / calls * 1e6)
    return median(times)


def row(what: str, ours: float, **others: float) -> None:
    """Print one line of the table."""
    ratios = "  ".join(
        f"÷ {name} ({each:.1f} µs) {ours / each:.3f}" for name, each in others.items()
    )
    print(f"{what:<44}{ours:>9.1f} µs  {ratios}", flush=True)


def repeated(step: Callable[..., Any], state: list[Any], *first: Any) -> Callable[[], None]:
    """Return a call that applies a step to the results of the call before."""

    def call() -> None:
        state[:] = step(*first, *state)

    return call


def torch_steps(batch: int) -> dict[str, float]:
    """Measure the training step in PyTorch: with autograd, and as a CUDA graph."""
    if torch is None:
        return {}
    x, y, *start = (torch.tensor(array, device="cuda") for array in weights(batch))
    parameters = [array.requires_grad_() for array in start]

    def step() -> None:
        hidden = torch.relu(x @ parameters[0] + parameters[1])
        logits = hidden @ parameters[2] + parameters[3]
        loss = -(torch.log_softmax(logits, 1) * y).sum() / batch
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(gradient, alpha=RATE)

    found = {"torch eager": per_call(step, torch.cuda.synchronize, 200)}
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return {**found, "torch graph": per_call(graph.replay, torch.cuda.synchronize, 200)}


def training(device: br.Device, running: RunningServer) -> None:
    """Measure a training step of a perceptron 784-1024-10."""
    for batch, calls in ((64, 300), (4096, 1000)):
        arrays = weights(batch)
        own = [*map(cupy.asarray, arrays)]

        def eager(*state: Any, batch: int = batch) -> Any:
            return direct_step(batch, *state)

        there = per_call(repeated(eager, own), cupy.cuda.Device().synchronize, calls)
        others = {"CuPy": there, **torch_steps(batch)}
        tensors = [br.tensor(array, device=device) for array in arrays]

        def remote(*state: Any, batch: int = batch) -> Any:
            return remote_step(batch, *state)

        single = per_call(repeated(remote, [*tensors]), device.sync, calls)
        row(f"training step, batch {batch}, single operations", single, **others)

        @br.compile
        def compiled(x: br.Tensor, y: br.Tensor, *parameters: br.Tensor, batch: int = batch) -> Any:
            return remote_step(batch, x, y, *parameters)[2:]

        step = repeated(compiled, tensors[2:], *tensors[:2])
        prepared(step, device, running)
        row(f"training step, batch {batch}, compiled", per_call(step, device.sync, calls), **others)


def prepared(call: Callable[[], Any], device: br.Device, running: RunningServer) -> None:
    """Call a function until the server has compiled and captured nothing new for a while."""
    seen: list[float] = []
    end = since = time.monotonic()
    while end - since < QUIET_SECONDS:
        for _ in range(5):
            call()
        device.sync()
        found = [running.metric(name) for name in COMPILED]
        end = time.monotonic()
        if found != seen:
            seen, since = found, end


def chains(device: br.Device, running: RunningServer) -> None:
    """Measure 20 element-wise operations."""
    for size, calls in ((2**10, 1000), (2**24, 50)):
        array = np.linspace(-1, 1, size, dtype=np.float32)
        own = cupy.asarray(array)

        def chain(x: Any) -> Any:
            for place in range(CHAIN // 2):
                x = (x + 0.25) * (1 - place / 64)
            return x

        there = per_call(lambda own=own: chain(own), cupy.cuda.Device().synchronize, calls)  # type: ignore[misc]
        x = br.tensor(array, device=device)
        compiled = br.compile(chain)
        prepared(functools.partial(compiled, x), device, running)
        ours = per_call(functools.partial(compiled, x), device.sync, calls)
        row(f"chain of {CHAIN} operations, {size:,} elements", ours, CuPy=there)


def transformer(device: br.Device, running: RunningServer) -> None:
    """Measure a training step of the transformer of examples/train_characters.py."""
    text = np.random.default_rng(0).integers(0, CHARACTERS, (BATCH, CONTEXT + 1))
    device.seed(0)
    mine, weights = our_run(device, text)
    losses = [mine(1) for _ in range(3)]
    prepared(lambda: mine(1), device, running)
    others = {}
    if torch is not None:
        for name, is_compiled in (("torch eager", False), ("torch.compile", True)):
            try:
                rival = rival_run(weights, text, "cuda", is_compiled=is_compiled)
                np.testing.assert_allclose([rival(1) for _ in range(3)], losses, rtol=1e-3)
            except Exception as error:
                print(f"{name} cannot run here: {type(error).__name__}: {str(error)[:200]}")
                continue
            others[name] = per_step(rival)
    row("transformer, compiled", per_step(mine), **others)


def per_step(run: Callable[[int], Any]) -> float:
    """Return the microseconds of a step; the loss is read after every 20."""
    return per_call(lambda: run(20), lambda: None, 1) / 20


def small_operations(device: br.Device) -> None:
    """Measure one small operation after the other."""
    x = y = br.ones((8,), device=device)
    own = other = cupy.ones(8, np.float32)

    def remote() -> None:
        nonlocal x
        x = x + y

    def eager() -> None:
        nonlocal own
        own = own + other

    there = per_call(eager, cupy.cuda.Device().synchronize, 5000)
    row("small operation, end to end", per_call(remote, device.sync, 5000), CuPy=there)


def counts(running: RunningServer) -> None:
    """Print how many graphs were captured and launched."""
    for name, value in running.metrics().items():
        if "_graph" in name and "created" not in name:
            print(f"{name} {value:.0f}")


def main() -> None:
    """Print the table."""
    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    print(f"{name}, CuPy {cupy.__version__}, PyTorch {getattr(torch, '__version__', 'none')}")
    with server("--backend", "cupy") as running, br.RemoteDevice(running.address) as device:
        training(device, running)
        chains(device, running)
        small_operations(device)
        transformer(device, running)
        copies(device)
        counts(running)


if __name__ == "__main__":
    main()
