"""Compare a PyTorch training step on a burn device with PyTorch itself, on one CPU or one GPU.

    PYTHONPATH=tests python benchmarks/torch_training.py [--backend cupy] [--rounds 7]

The model is a causal transformer of two layers, 64 channels wide, on 16 sequences of 32 tokens;
the optimizer is AdamW. The burn device is a server on this machine, in a process of its own.
PyTorch and the server use one thread each on a CPU. The variants take turns, so each round measures
all of them under the same load; the ratios are of medians. The processor times are this process's,
so those of burn devices lack the server's. Needs PyTorch; ``--backend cupy`` needs a GPU.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any, Final

import torch
from torch import nn

import burn_remote as br
import burn_remote.torch as brt
from support.servers import server

STEPS: Final = 10
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


def measure(
    variants: dict[str, Training], rounds: int
) -> dict[str, list[tuple[float, float, float]]]:
    """Return what ``Training.run`` returned in each round, after steps that compile."""
    measured: dict[str, list[tuple[float, float, float]]] = {name: [] for name in variants}
    for training in variants.values():
        training.run(5)
    for _ in range(rounds):
        for name, training in variants.items():
            measured[name].append(training.run(STEPS))
    return measured


def main() -> None:
    """Measure all variants and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=("numpy", "cupy"), default="numpy")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    on_gpu = arguments.backend == "cupy"
    if not on_gpu:
        torch.set_num_threads(1)

    own = torch.device("cuda" if on_gpu else "cpu")
    own_waits = torch.cuda.synchronize if on_gpu else (lambda: None)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # for the server
    with server("--backend", arguments.backend) as running:
        device = br.RemoteDevice(running.address)
        burn = brt.add(device)
        variants = {
            "PyTorch": Training(own, own_waits, None),
            "burn device": Training(burn, device.sync, None),
            "burn device, torch.compile": Training(burn, device.sync, "burn_remote"),
        }
        measured = measure(variants, arguments.rounds)

    name = torch.cuda.get_device_name() if on_gpu else "CPU, one thread"
    print(f"PyTorch {torch.__version__}, {name}; medians of {arguments.rounds} rounds of {STEPS}")
    base = [median(each[index] for each in measured["PyTorch"]) for index in (0, 1)]
    for name, rounds in measured.items():
        wall, processor = (median(each[index] for each in rounds) for index in (0, 1))
        print(
            f"{name:<28}{wall:8.2f} ms a step, ÷ PyTorch {wall / base[0]:.2f};"
            f" processor {processor:8.2f} ms, ÷ PyTorch {processor / base[1]:.2f};"
            f" loss {rounds[-1][2]:.6f}"
        )


if __name__ == "__main__":
    main()
