"""Compare training of the transformer of examples/train_characters.py with the same in PyTorch.

    OPENBLAS_NUM_THREADS=1 python benchmarks/training_transformer.py
    OPENBLAS_NUM_THREADS=1 python benchmarks/training_transformer.py --rounds 30

Both take the same steps on the same cores: weights, texts, clipping and AdamW are equal, and so are
the losses of the first steps, which is checked. Ours is the compiled step on a server of this
machine; PyTorch runs in this process, with as many threads as ``OPENBLAS_NUM_THREADS`` (all cores
without it). Rounds of both alternate; figures are medians with quartiles. The ratio of the
processor times, PyTorch's ÷ the server's, hardly depends on other programs. Without PyTorch, only
our speed is printed: the environment of ``make test-oracle`` has it.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import psutil
import typer

import burn_remote as br

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import train_characters as ours
from support.servers import server

try:
    import torch
except ImportError:
    torch = None

CHARACTERS: Final = 100
CONTEXT: Final = 64
WIDTH: Final = 96
HEADS: Final = 4
LAYERS: Final = 2
BATCH: Final = 16
RATE: Final = 1e-3
CORES: Final = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1

Array = np.ndarray[Any, Any]
# Takes steps and returns the loss of the last one.
Run = Callable[[int], float]


def our_run(device: br.Device, text: Array) -> tuple[Run, ours.Model]:
    """Return a function that takes compiled steps on a device, and the first weights."""
    model = first = ours.initial(device, CHARACTERS, CONTEXT, WIDTH, LAYERS)
    state = ours.optimizer.init(model)
    texts = device.tensor(text)

    def run(steps: int) -> float:
        nonlocal model, state
        for _ in range(steps):
            model, state, loss = ours.step(model, state, texts, HEADS, RATE)
        return float(loss.item())

    return run, first


def rival_run(
    weights: ours.Model, text: Array, place: str = "cpu", *, is_compiled: bool = False
) -> Run:
    """Return a function that takes the same steps in PyTorch, on a CPU or a GPU."""
    torch.set_num_threads(int(os.environ.get("OPENBLAS_NUM_THREADS", CORES)))
    functional = torch.nn.functional

    def parameter(x: br.Tensor) -> Any:
        return torch.tensor(x.numpy().copy(), device=place, requires_grad=True)

    characters, places = parameter(weights.characters), parameter(weights.places)
    scale, shift = parameter(weights.scale), parameter(weights.shift)
    blocks = [
        {
            "scales": [parameter(one) for one in block.scale],
            "shifts": [parameter(one) for one in block.shift],
            "weights": [
                parameter(one) for one in (block.attention, block.joined, block.wide, block.narrow)
            ],
        }
        for block in weights.blocks
    ]
    parameters = [characters, places, scale, shift]
    for block in blocks:
        for group in block.values():
            parameters += group
    optimizer = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.1)
    texts = torch.tensor(text, device=place)

    def loss_of() -> Any:
        given = texts[:, :-1]
        batch, count = given.shape
        x = functional.embedding(given, characters) + places[:count]
        for block in blocks:
            (first, second), (low, high) = block["scales"], block["shifts"]
            attention, joined, wide, narrow = block["weights"]
            y = functional.layer_norm(x, (WIDTH,), first, low)
            every = functional.linear(y, attention)
            q, k, v = every.view(batch, count, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
            found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            found = found.transpose(1, 2).reshape(batch, count, WIDTH)
            x = x + functional.linear(found, joined)
            y = functional.layer_norm(x, (WIDTH,), second, high)
            y = functional.gelu(functional.linear(y, wide), approximate="tanh")
            x = x + functional.linear(y, narrow)
        logits = functional.linear(functional.layer_norm(x, (WIDTH,), scale, shift), characters)
        return functional.cross_entropy(logits.transpose(1, 2), texts[:, 1:])

    forward = torch.compile(loss_of) if is_compiled else loss_of

    def run(steps: int) -> float:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = forward()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
        return float(loss.item())

    return run


def measured(run: Run, steps: int, processor_seconds: Callable[[], float]) -> tuple[float, float]:
    """Return the steps per second of one round, and the processor seconds of a step."""
    start, before = time.perf_counter(), processor_seconds()
    run(steps)
    return steps / (time.perf_counter() - start), (processor_seconds() - before) / steps


def main(
    rounds: Annotated[int, typer.Option(min=2, help="Rounds of both sides.")] = 9,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a round.")] = 10,
) -> None:
    """Compare the steps per second of a transformer with PyTorch's."""
    text = np.random.default_rng(0).integers(0, CHARACTERS, (BATCH, CONTEXT + 1))
    with server() as running, br.RemoteDevice(running.address) as device:
        device.seed(0)
        mine, weights = our_run(device, text)
        losses = [mine(1) for _ in range(3)]
        if torch is None:
            rates = [measured(mine, steps, time.process_time)[0] for _ in range(rounds)]
            rate = statistics.median(rates)
            print(f"transformer, compiled: {rate:.1f} steps/s; PyTorch is not installed")
            return
        rival = rival_run(weights, text)
        np.testing.assert_allclose([rival(1) for _ in range(3)], losses, rtol=1e-4)
        process = psutil.Process(running.process.pid)

        def server_seconds() -> float:
            times = process.cpu_times()
            return float(times.user + times.system)

        pairs = []
        for number in range(rounds):
            if number % 2:
                theirs = measured(rival, steps, time.process_time)
                pairs.append((measured(mine, steps, server_seconds), theirs))
            else:
                own = measured(mine, steps, server_seconds)
                pairs.append((own, measured(rival, steps, time.process_time)))
    ours_rate, rival_rate = (
        statistics.median([side[0] for side in sides]) for sides in zip(*pairs, strict=True)
    )
    print(
        f"transformer, compiled: {ours_rate:.1f} steps/s, PyTorch {torch.__version__} "
        f"{rival_rate:.1f}; ours ÷ PyTorch {shown([own[0] / other[0] for own, other in pairs])}, "
        "target 0.7; processor time of a step, PyTorch's ÷ the server's "
        f"{shown([other[1] / own[1] for own, other in pairs])}"
    )


def shown(ratios: list[float]) -> str:
    """Return the median and the quartiles."""
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(main)
    app()
