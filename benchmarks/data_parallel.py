"""Measure how much of the exchange of gradients a backward pass hides, and what engines cost.

    OPENBLAS_NUM_THREADS=1 python benchmarks/data_parallel.py

A network of eight linear layers (8 MiB of float32) is differentiated on local servers, in turns:
without an exchange, with one bucket after the backward pass, and with buckets that leave during it.
``--link-mbit 1000`` has the kernel bound the rate at which each server sends to the others; this
needs root. ``--rows`` sets the rows of a batch: a backward pass that is shorter than the exchange
cannot hide all of it.

``--scaling 1 --scaling 2 --scaling 4`` measures whole training steps on 1, 2 and 4 servers instead,
as multiples of the speed of one server: once with the same rows for each server (weak scaling), and
once with the same rows in all (strong scaling).
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from shaped_links import shaped_servers

import burn_remote as br

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.servers import server

WIDTH = 512
LAYERS = 8
ROWS = 512
# The first rounds connect the servers, and define signatures.
WARM_UP = 4

# Bytes of a bucket, by the name of a way to exchange gradients.
WAYS = {"no exchange": 2**20, "one bucket": 2**30, "buckets of 4 MiB": 2**22, "of 1 MiB": 2**20}

console = Console()


def loss_of(params: list[br.Tensor], x: br.Tensor) -> br.Tensor:
    """Return the mean square of the last layer ``[]``."""
    for weight in params:
        x = (x @ weight).relu()
    return x.square().mean()


def seconds_of(trainer: br.DataParallel, batch: br.distributed.SplitBatch, way: str) -> float:
    """Return the duration of one backward pass on all members."""
    trainer.group.sync()
    start = time.perf_counter()
    with trainer.no_sync() if way == "no exchange" else contextlib.nullcontext():
        trainer.backward(batch)
    trainer.group.sync()
    seconds = time.perf_counter() - start
    trainer.zero_grad()
    return seconds


def started_devices(
    stack: contextlib.ExitStack, servers: int, link_mbit: float | None
) -> list[br.Device]:
    """Start servers, which end with the stack, and return a device of each."""
    if link_mbit is None:
        running = [stack.enter_context(server()) for _ in range(servers)]
        return [stack.enter_context(br.RemoteDevice(one.address)) for one in running]
    shaped = stack.enter_context(shaped_servers(servers, link_mbit))
    return [stack.enter_context(br.RemoteDevice(one.address, token=one.token)) for one in shaped]


def step_seconds(servers: int, rows: int, rounds: int) -> float:
    """Return the median duration of a training step of ``rows`` rows on local servers."""
    random = np.random.default_rng(0)
    params = [random.normal(0, 0.05, (WIDTH, WIDTH)).astype(np.float32) for _ in range(LAYERS)]
    batch = random.normal(size=(rows, WIDTH)).astype(np.float32)
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(server()) for _ in range(servers)]
        devices = [stack.enter_context(br.RemoteDevice(one.address)) for one in running]
        trainer = stack.enter_context(
            br.DataParallel(loss_of, params, devices, optimizer=br.optim.SGD(lr=1e-3))
        )
        split = trainer.split(batch)
        times = []
        for _ in range(WARM_UP + rounds):
            trainer.group.sync()
            start = time.perf_counter()
            trainer.step(split)
            trainer.group.sync()
            times.append(time.perf_counter() - start)
        return statistics.median(times[WARM_UP:])


def show_scaling(counts: list[int], rounds: int) -> None:
    """Print the speed of training steps as a multiple of that on one server."""
    table = Table("servers", f"{ROWS} rows each", "speed", f"{ROWS} rows in all", "speed")
    alone = step_seconds(1, ROWS, rounds)
    for count in counts:
        weak = step_seconds(count, count * ROWS, rounds)
        strong = step_seconds(count, ROWS, rounds)
        table.add_row(
            str(count),
            f"{1e3 * weak:.1f} ms",
            f"{count * alone / weak:.2f}",
            f"{1e3 * strong:.1f} ms",
            f"{alone / strong:.2f}",
        )
    console.print(table)
    console.print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


def main(
    servers: Annotated[int, typer.Option(min=2, help="How many local servers.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that count.")] = 15,
    link_mbit: Annotated[
        float | None, typer.Option(min=1, help="The rate of the links between servers.")
    ] = None,
    rows: Annotated[int, typer.Option(min=2, help="Rows of a batch, of all servers.")] = ROWS,
    scaling: Annotated[
        list[int] | None, typer.Option(min=1, help="Measure steps on this number of servers.")
    ] = None,
) -> None:
    """Print the median duration of each way to exchange gradients, for each engine."""
    if scaling:
        show_scaling(scaling, rounds)
        return
    random = np.random.default_rng(0)
    params = [random.normal(0, 0.05, (WIDTH, WIDTH)).astype(np.float32) for _ in range(LAYERS)]
    inputs = random.normal(size=(rows, WIDTH)).astype(np.float32)
    table = Table("engine", *WAYS, "hidden by 4 MiB", "by 1 MiB")
    with contextlib.ExitStack() as stack:
        devices = started_devices(stack, servers, link_mbit)
        for engine in ("ring", "moves"):
            group = stack.enter_context(br.distributed.Group(devices, engine=engine))
            trainers = {
                way: br.DataParallel(loss_of, params, group, bucket_bytes=size)
                for way, size in WAYS.items()
            }
            batch = trainers["one bucket"].split(inputs)
            times: dict[str, list[float]] = {way: [] for way in WAYS}
            for _ in range(WARM_UP + rounds):
                for way, trainer in trainers.items():
                    times[way].append(seconds_of(trainer, batch, way))
            alone, last, *early = [statistics.median(one[WARM_UP:]) for one in times.values()]
            hidden = [f"{(last - one) / (last - alone):.0%}" for one in early]
            shown = [f"{1e3 * one:.1f} ms" for one in (alone, last, *early)]
            table.add_row(engine, *shown, *hidden)
    console.print(table)
    console.print(f"{servers} servers, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(main)
    app()
