"""Compare training of the transformer of examples/train_characters.py with the same in PyTorch.

    OPENBLAS_NUM_THREADS=1 python benchmarks/training_transformer.py
    OPENBLAS_NUM_THREADS=1 python benchmarks/training_transformer.py --rounds 30

Both take the same steps on the same cores: weights, texts, clipping and AdamW are equal, and so are
the losses of the first steps, which is checked. Ours is the compiled step on a server of this
machine; PyTorch runs in this process, with as many threads as ``OPENBLAS_NUM_THREADS`` (all cores
without it). Rounds of both alternate; figures are medians with quartiles. Without PyTorch, only our
speed is printed: the environment of ``make test-oracle`` has it.
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


def rival_run(weights: ours.Model, text: Array) -> Run:
    """Return a function that takes the same steps in PyTorch."""
    torch.set_num_threads(int(os.environ.get("OPENBLAS_NUM_THREADS", CORES)))
    functional = torch.nn.functional

    def parameter(x: br.Tensor) -> Any:
        return torch.tensor(x.numpy().copy(), requires_grad=True)

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
    texts = torch.tensor(text)

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

    def run(steps: int) -> float:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = loss_of()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
        return float(loss.item())

    return run


def rate_of(run: Run, steps: int) -> float:
    """Return the steps per second of one round."""
    start = time.perf_counter()
    run(steps)
    return steps / (time.perf_counter() - start)


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
            rate = statistics.median([rate_of(mine, steps) for _ in range(rounds)])
            print(f"transformer, compiled: {rate:.1f} steps/s; PyTorch is not installed")
            return
        rival = rival_run(weights, text)
        np.testing.assert_allclose([rival(1) for _ in range(3)], losses, rtol=1e-4)
        pairs = []
        for number in range(rounds):
            if number % 2:
                theirs = rate_of(rival, steps)
                pairs.append((rate_of(mine, steps), theirs))
            else:
                own = rate_of(mine, steps)
                pairs.append((own, rate_of(rival, steps)))
    low, middle, high = statistics.quantiles([own / other for own, other in pairs], n=4)
    own, other = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(
        f"transformer, compiled: {own:.1f} steps/s, PyTorch {torch.__version__} {other:.1f}; "
        f"ours ÷ PyTorch {middle:.2f} ({low:.2f}-{high:.2f}), target 0.7"
    )


if __name__ == "__main__":
    typer.run(main)
