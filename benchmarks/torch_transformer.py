"""The training step that ``torch_training.py`` measures, and a program that measures it on request.

    python benchmarks/torch_transformer.py cuda

As a program, it needs PyTorch and nothing of this project. It prints the version of PyTorch and
the name of the device. Then it reads lines: ``-``, or a backend of ``torch.compile``, and a number
of steps. It answers each with a line of JSON: what ``Training.run`` returns, or the text of an
error.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

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


def main() -> None:
    """Measure steps on the device that the command line names, as standard input asks."""
    device = sys.argv[1]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU, one thread"
    print(f"PyTorch {torch.__version__}, {name}", flush=True)
    trainings: dict[str, Training] = {}
    for line in sys.stdin:
        backend, steps = line.split()
        try:
            if backend not in trainings:
                chosen = None if backend == "-" else backend
                trainings[backend] = Training(torch.device(device), wait, chosen)
            answer: Any = trainings[backend].run(int(steps))
        except Exception as error:  # the compiler of PyTorch raises errors of many classes
            answer = f"{type(error).__name__}: {error}"
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
