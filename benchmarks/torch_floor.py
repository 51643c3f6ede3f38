"""Measure how much of a training step on a burn device is PyTorch's own.

    PYTHONPATH=tests python benchmarks/torch_floor.py [--rounds 7] [--other PATH] [--compiled]

The step is that of ``torch_training.py``, without ``torch.compile``. The floor is the same step in
which each operation only makes tensors with the metadata that its results had in a recorded step:
PyTorch's modules, autograd, optimizer and dispatch to Python remain, and nothing is computed.
``--other`` names a checkout of another commit. It runs in another process, and its steps take turns
with those of this checkout. ``--compiled`` measures the step with ``torch.compile`` instead, which
has no floor. Prints medians and minima of wall and processor milliseconds, the
latter without the servers'.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from torch_transformer import Training

import burn_remote as br
import burn_remote.torch as brt
from support.servers import server

try:
    from burn_remote.torch import burn_tensor
except ImportError:  # with --answer, the package is another commit's, which may lack the module
    burn_tensor = None  # type: ignore[assignment]

STEPS: Final = 10

Run = Callable[[int], tuple[float, float]]


def timed(run: Callable[[int], Any]) -> Run:
    """Return a function that returns wall and processor milliseconds per step."""

    def measure(steps: int) -> tuple[float, float]:
        wall, processor = time.perf_counter(), time.process_time()
        run(steps)
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        return wall / steps * 1e3, processor / steps * 1e3

    return measure


class Floor:
    """A training whose operations make tensors with recorded metadata and compute nothing."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._results: list[Any] = []
        self._next = 0
        self._depth = 0
        self._handlers, self._resolve = burn_tensor._dispatcher
        burn_tensor._dispatcher[0] = self._recorder()
        self._step()
        burn_tensor._dispatcher[0] = self._handlers

    def run(self, steps: int) -> None:
        """Run steps."""
        replay = self._replay

        class Replaying(dict[Any, Any]):
            def get(self, func: Any, default: Any = None) -> Any:
                return replay

        burn_tensor._dispatcher[0] = Replaying()
        try:
            for _ in range(steps):
                self._next = 0
                self._step()
        finally:
            burn_tensor._dispatcher[0] = self._handlers

    def _step(self) -> None:
        training = self._training
        training._loss_of(training._x, training._y).backward()
        training._update()
        training._optimizer.zero_grad()

    def _recorder(self) -> Any:
        floor = self

        class Recording(dict[Any, Any]):
            def get(self, func: Any, default: Any = None) -> Any:
                handler = floor._handlers.get(func) or floor._resolve(func)

                def handle(args: Any, kwargs: Any) -> Any:
                    floor._depth += 1
                    try:
                        result = handler(args, kwargs)
                    finally:
                        floor._depth -= 1
                    if not floor._depth:
                        floor._results.append(_described(result, args))
                    return result

                return handle

        return Recording()

    def _replay(self, args: Any, kwargs: Any) -> Any:
        described = self._results[self._next]
        self._next += 1
        return _made(described, args)


def _described(result: Any, args: Any) -> Any:
    if type(result) is burn_tensor.BurnTensor:
        for place, x in enumerate(args):
            if x is result:
                return place
        return (
            tuple(result.shape),
            {
                "strides": result.stride(),
                "storage_offset": result.storage_offset(),
                "dtype": result.dtype,
                "device": result.device,
            },
        )
    return [_described(x, args) for x in result] if isinstance(result, list | tuple) else None


def _made(described: Any, args: Any) -> Any:
    if type(described) is tuple:
        return torch.Tensor._make_wrapper_subclass(
            burn_tensor.BurnTensor, described[0], **described[1]
        )
    if type(described) is int:
        return args[described]
    return [_made(one, args) for one in described] if type(described) is list else None


class Other:
    """The step of another checkout, in a process that measures when it is asked."""

    def __init__(self, checkout: Path, *options: str) -> None:
        folders = ("client", "server", "protocol", "tests")
        path = os.pathsep.join(str(checkout / folder) for folder in folders)
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--answer", *options],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, steps: int) -> tuple[float, float]:
        """Return wall and processor milliseconds per step."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        wall, processor = self._process.stdout.readline().split()
        return float(wall), float(processor)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def main() -> None:
    """Measure all variants in turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--other", type=Path)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # for the server
    with server("--backend", "numpy") as running:
        device = br.RemoteDevice(running.address)
        backend = "burn_remote" if arguments.compiled else None
        ours = Training(brt.add(device), device.sync, backend)
        if arguments.answer:
            measure = timed(ours.run)
            for line in sys.stdin:
                print(*measure(int(line)), flush=True)
            return
        ours.run(40 if arguments.compiled else 3)  # a server compiles graphs at their 32nd call
        on_cpu = Training(torch.device("cpu"), lambda: None, None)
        variants: dict[str, Run] = {"PyTorch on the CPU": timed(on_cpu.run)}
        if not arguments.compiled:
            variants["floor"] = timed(Floor(ours).run)
        variants["burn device"] = timed(ours.run)
        options = ["--compiled"] if arguments.compiled else []
        other = Other(arguments.other, *options) if arguments.other else None
        if other is not None:
            variants[str(arguments.other)] = other.run
        measured: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
        for run in variants.values():
            run(40 if arguments.compiled else 5)
        for _ in range(arguments.rounds):
            for name, run in variants.items():
                measured[name].append(run(STEPS))
        if other is not None:
            other.close()
    print(f"PyTorch {torch.__version__}; {arguments.rounds} rounds of {STEPS} steps")
    for name, rounds in measured.items():
        wall, processor = zip(*rounds, strict=True)
        print(
            f"{name:<28} wall {median(wall):7.2f} (least {min(wall):7.2f}) ms, "
            f"processor {median(processor):7.2f} (least {min(processor):7.2f}) ms"
        )


if __name__ == "__main__":
    main()
