"""Compare all-reduces between two GPUs by the engine ``nccl`` with CuPy's NCCL alone.

Also measure how data-parallel training scales from one GPU to two.

    python benchmarks/nccl.py [--mib 64 512] [--rounds 5] [--issued 40]

The bare members are two processes that start ``--issued`` all-reduces of the same array and then
wait for their stream. The group issues as many collectives without a request in between, and waits
until both members are done. The bare members and the group take turns; the ratio is that of the
medians. The trained network has four layers of 4096; each step has 8192 rows, split over the GPUs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import burn_remote as br

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.servers import server

FLAGS = ("--backend", "cupy", "--nccl", "true")
WIDTH, ROWS, LAYERS = 4096, 8192, 4


def member(rank: int, identifiers: Any, commands: Any, done: Any) -> None:
    """Serve a bare member: each command is a number of elements, and how often to reduce them."""
    import cupy
    from cupy.cuda import nccl

    cupy.cuda.Device(rank).use()
    if not rank:
        identifier = nccl.get_unique_id()
        identifiers.put(identifier)
    else:
        identifier = identifiers.get()
    comm = nccl.NcclCommunicator(2, identifier, rank)
    stream = cupy.cuda.Stream(non_blocking=True)
    while (command := commands.get()) is not None:
        size, count = command
        source, target = cupy.ones(size, cupy.float32), cupy.empty(size, cupy.float32)
        cupy.cuda.Device().synchronize()
        start = time.perf_counter()
        for _ in range(count):
            comm.allReduce(
                source.data.ptr, target.data.ptr, size, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr
            )
        stream.synchronize()
        done.put((time.perf_counter() - start) / count)


class Bare:
    """Two processes with a communicator."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._identifiers = identifiers = context.Queue()
        self._done = context.Queue()
        self._commands = [context.Queue() for _ in range(2)]
        self._processes = []
        for rank in range(2):
            arguments = (rank, identifiers, self._commands[rank], self._done)
            process = context.Process(target=member, args=arguments, daemon=True)
            process.start()
            self._processes.append(process)

    def seconds(self, size: int, count: int) -> float:
        """Return the time of one all-reduce of the slower member."""
        for commands in self._commands:
            commands.put((size, count))
        return max([float(self._done.get(timeout=120)) for _ in range(2)])

    def close(self) -> None:
        """End the processes."""
        for commands in self._commands:
            commands.put(None)


def seconds(group: br.distributed.Group, size: int, count: int) -> float:
    """Return the time of one all-reduce of a group."""
    values = [br.ones((size,), device=device) for device in group.devices]
    group.sync()
    start = time.perf_counter()
    for _ in range(count):
        made = group.all_reduce(values)
    br.read([x[:1] for x in made])  # of both members at the same time
    taken = (time.perf_counter() - start) / count
    assert all(x[-1:].tolist() == [2] for x in made)
    return taken


def loss_of(weights: Any, x: Any, y: Any) -> Any:
    """Return the mean squared error of a network."""
    for weight in weights:
        x = (x @ weight).tanh()
    return (x - y).square().mean()


def step_seconds(devices: list[Any], steps: int) -> float:
    """Return the time of one training step."""
    random = np.random.default_rng(0)
    start = [
        random.normal(size=(WIDTH, WIDTH), scale=0.02).astype("float32") for _ in range(LAYERS)
    ]
    rows = random.normal(size=(ROWS, WIDTH)).astype("float32")
    with br.distributed.Group(devices) as group:
        trainer = br.DataParallel(loss_of, start, group, optimizer=br.optim.SGD(lr=0.01))
        batch = trainer.split(rows, rows)
        for _ in range(3):
            trainer.step(batch).item()
        begin = time.perf_counter()
        for _ in range(steps):
            loss = trainer.step(batch)
        loss.item()
        group.sync()
        return (time.perf_counter() - begin) / steps


def measure(what: str, devices: list[Any], options: argparse.Namespace, bare: Bare) -> None:
    """Print one line for each size, and one for training."""
    with br.distributed.Group(devices) as group:
        assert group.engine == "nccl", group.engine
        for mib in options.mib:
            size = int(mib * 2**18)
            times: dict[str, list[float]] = {"ours": [], "bare": []}
            for turn in range(options.rounds + 1):
                ours, theirs = (
                    seconds(group, size, options.issued),
                    bare.seconds(size, options.issued),
                )
                if turn:
                    times["ours"].append(ours)
                    times["bare"].append(theirs)
            ours, theirs = (statistics.median(one) for one in times.values())
            print(
                json.dumps(
                    {
                        "members": what,
                        "mib": mib,
                        "ms": round(ours * 1e3, 3),
                        "bare_ms": round(theirs * 1e3, 3),
                        "ratio": round(ours / theirs, 3),
                    }
                ),
                flush=True,
            )
    one, two = step_seconds(devices[:1], options.steps), step_seconds(devices, options.steps)
    print(
        json.dumps(
            {
                "members": what,
                "step_ms_1": round(one * 1e3, 2),
                "step_ms_2": round(two * 1e3, 2),
                "scaling": round(one / two, 3),
            }
        ),
        flush=True,
    )


def main() -> None:
    """Measure two GPUs of one server, and of two servers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=float, nargs="+", default=[64, 512])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--issued", type=int, default=40)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    bare = Bare()
    with contextlib.closing(bare):
        with server(*FLAGS, "--device-count", "2") as running, contextlib.ExitStack() as stack:
            places = [running.address, f"{running.address}/1"]
            devices = [stack.enter_context(br.RemoteDevice(one)) for one in places]
            measure("one server", devices, options, bare)
        with contextlib.ExitStack() as stack:
            several = [
                stack.enter_context(server(*FLAGS, CUDA_VISIBLE_DEVICES=str(n))) for n in (0, 1)
            ]
            devices = [stack.enter_context(br.RemoteDevice(one.address)) for one in several]
            measure("two servers", devices, options, bare)


if __name__ == "__main__":
    main()
