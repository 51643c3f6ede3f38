"""Compare a PyTorch training step on a burn device with PyTorch itself, on one CPU or one GPU.

    PYTHONPATH=tests python benchmarks/torch_training.py [--backend cupy] [--rounds 7]

The model is a causal transformer of two layers, 64 channels wide, on 16 sequences of 32 tokens;
the optimizer is AdamW. The burn device is a server on this machine, in a process of its own.
PyTorch and the server use one thread each on a CPU. PyTorch's own variant runs in another process,
because no CUDA tensor can run a backward pass in a process with burn devices. The variants take
turns, so each round measures all of them under the same load; the ratios are of medians. Processor
times are the program's, and beside them those of the server, which works at the same time. Needs
PyTorch; ``--backend cupy`` needs a GPU.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median
from typing import Any, Final

import psutil
import torch
from torch import nn

import burn_remote as br
from support.servers import server

STEPS: Final = 10
# A server compiles the functions of a graph at its 32nd call, beside the calls.
WARM_UP: Final = 40
TOKENS: Final = 96


class Transformer(nn.Module):  # type: ignore[misc]
    """A causal language model of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, 64), nn.Embedding(32, 64)
        layer = nn.TransformerEncoderLayer(
            64, 4, dim_feedforward=256, dropout=0.0, activation="gelu", batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, TOKENS)

    def forward(self, x: Any) -> Any:
        """Return the logits of each next token: ``[batch * length, TOKENS]``."""
        mask = torch.full((x.shape[1], x.shape[1]), float("-inf"), device=x.device).triu(1)
        places = torch.arange(x.shape[1], device=x.device)
        hidden = self.layers(self.tokens(x) + self.places(places), mask=mask, is_causal=True)
        return self.head(hidden).flatten(0, 1)


class Training:
    """One variant: a model with its optimizer on a device, eager or compiled."""

    def __init__(self, device: Any, wait: Callable[[], Any], backend: str | None) -> None:
        torch.manual_seed(0)
        model = Transformer().to(device)
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        drawn = torch.randint(0, TOKENS, (16, 33), generator=torch.Generator().manual_seed(1))
        self._x = drawn[:, :-1].contiguous().to(device)
        self._y = drawn[:, 1:].flatten().to(device)
        self._wait = wait

        def loss_of(x: Any, y: Any) -> Any:
            return nn.functional.cross_entropy(model(x), y)

        self._loss_of: Any = loss_of
        self._update: Any = self._optimizer.step
        if backend:
            self._loss_of = torch.compile(loss_of, backend=backend)
            self._update = torch.compile(self._update, backend=backend)

    def run(self, steps: int) -> tuple[float, float, float]:
        """Return wall and processor milliseconds per step, and the last loss."""
        wall, processor = time.perf_counter(), time.process_time()
        for _ in range(steps):
            loss = self._loss_of(self._x, self._y)
            loss.backward()
            self._update()
            self._optimizer.zero_grad()
        self._wait()
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        return wall / steps * 1e3, processor / steps * 1e3, loss.item()


_alone: list[Training] = []


def run_alone(device: str, steps: int) -> tuple[float, float, float]:
    """Run PyTorch's own variant, in a process where nothing imports ``burn_remote.torch``."""
    if not _alone:
        torch.set_num_threads(1)
        waits = torch.cuda.synchronize if device == "cuda" else (lambda: None)
        _alone.append(Training(torch.device(device), waits, None))
    return _alone[0].run(steps)


def measure(
    variants: Mapping[str, Callable[[int], tuple[float, float, float]]],
    rounds: int,
    server_seconds: Callable[[], float],
) -> dict[str, list[tuple[float, ...]]]:
    """Return what each variant returned in each round, and the server's processor milliseconds."""
    measured: dict[str, list[tuple[float, ...]]] = {name: [] for name in variants}
    for run in variants.values():
        run(WARM_UP)
    for _ in range(rounds):
        for name, run in variants.items():
            before = server_seconds()
            found = run(STEPS)
            measured[name].append((*found, (server_seconds() - before) / STEPS * 1e3))
    return measured


def main() -> None:
    """Measure all variants and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=("numpy", "cupy"), default="numpy")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # PyTorch's, of the functions that it compiles
    on_gpu = arguments.backend == "cupy"
    own = "cuda" if on_gpu else "cpu"
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # for the server
    with (
        ProcessPoolExecutor(1, get_context("spawn")) as other,
        server("--backend", arguments.backend) as running,
    ):
        import burn_remote.torch as brt  # not at the top, which the other process imports

        device = br.RemoteDevice(running.address)
        burn = brt.add(device)
        variants = {
            "PyTorch": lambda steps: other.submit(run_alone, own, steps).result(),
            "burn device": Training(burn, device.sync, None).run,
            "burn device, torch.compile": Training(burn, device.sync, "burn_remote").run,
        }
        process = psutil.Process(running.process.pid)
        measured = measure(variants, arguments.rounds, lambda: sum(process.cpu_times()[:2]))

    name = torch.cuda.get_device_name() if on_gpu else "CPU, one thread"
    print(f"PyTorch {torch.__version__}, {name}; medians of {arguments.rounds} rounds of {STEPS}")
    base = [median(each[index] for each in measured["PyTorch"]) for index in (0, 1)]
    for name, rounds in measured.items():
        wall, processor, served = (median(each[index] for each in rounds) for index in (0, 1, 3))
        print(
            f"{name:<28}{wall:8.2f} ms a step, ÷ PyTorch {wall / base[0]:.2f};"
            f" processor {processor:8.2f} ms, ÷ PyTorch {processor / base[1]:.2f},"
            f" server {served:8.2f} ms, ÷ PyTorch {served / base[1]:.2f};"
            f" loss {rounds[-1][2]:.6f}"
        )


if __name__ == "__main__":
    main()
