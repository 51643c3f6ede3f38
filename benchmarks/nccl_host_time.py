"""Measure the host time of a collective by the engine ``nccl``, without GPUs.

    python benchmarks/nccl_host_time.py [--servers 1] [--issued 200] [--rounds 6] [--micros 250]

The servers' GPUs and NCCL are simulated (tests/support/simulated_cuda.py): a collective takes
``--micros`` once its members have started it, and moves no elements. Prints the time of a
collective when ``--issued`` are issued before a wait, and per collective: each server thread's
processor time and switches, and the calls of CUDA and NCCL. While other programs use the cores,
only the numbers of calls are reliable.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import burn_remote as br

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.servers import RunningServer, server

TESTS = Path(__file__).parent.parent / "tests"
# Threads below this many microseconds for each collective are not printed.
LEAST_MICROS = 0.5


def read_statistics(running: RunningServer, path: Path) -> dict[str, Any]:
    """Return a server's statistics."""
    path.unlink(missing_ok=True)
    running.process.send_signal(signal.SIGUSR1)
    while not path.exists():
        time.sleep(0.01)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def report(before: dict[str, Any], after: dict[str, Any], count: int) -> None:
    """Print the differences between two statistics, for each of ``count`` collectives."""
    for name, values in sorted(after["threads"].items()):
        earlier = before["threads"].get(name, [0, 0, 0])
        micros, voluntary, involuntary = [
            (late - early) / count for late, early in zip(values, earlier, strict=True)
        ]
        if micros >= LEAST_MICROS:
            label = name[:16]
            print(f"  {label:16} {micros:6.1f} µs, {voluntary:5.2f} + {involuntary:5.2f} switches")
    calls = {
        name: (number - before["calls"].get(name, 0)) / count
        for name, number in sorted(after["calls"].items())
    }
    print(
        "  calls:", ", ".join(f"{name} {each:.2f}" for name, each in calls.items() if each > 0.05)
    )


def main() -> None:
    """Measure one configuration."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, choices=(1, 2), default=1)
    parser.add_argument("--issued", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--micros", type=float, default=250)
    options = parser.parse_args()
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    environment = {"PYTHONPATH": path, "SECONDS": str(options.micros / 1e6)}
    flags = ["--backend", "numpy", "--nccl", "true"]
    flags += ["--device-count", "2"] if options.servers == 1 else []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        paths = [folder / str(number) for number in range(options.servers)]
        running = [
            stack.enter_context(
                server(*flags, module="support.simulated_gpus", STATISTICS=str(one), **environment)
            )
            for one in paths
        ]
        places = [one.address for one in running]
        places += [f"{places[0]}/1"] if options.servers == 1 else []
        devices = [stack.enter_context(br.RemoteDevice(place)) for place in places]
        group = stack.enter_context(br.distributed.Group(devices, engine="nccl"))
        count: int = options.issued
        values = [br.ones((1024,), device=device) for device in devices]

        def seconds() -> float:
            group.sync()
            begin = time.perf_counter()
            for _ in range(count):
                made = group.all_reduce(values)
            br.read([x[:1] for x in made])
            return (time.perf_counter() - begin) / count

        seconds()
        before = [read_statistics(*one) for one in zip(running, paths, strict=True)]
        times = [seconds() for _ in range(options.rounds)]
        after = [read_statistics(*one) for one in zip(running, paths, strict=True)]
    print(f"{statistics.median(times) * 1e6:.0f} µs for each collective")
    for number in range(options.servers):
        print(f"server {number}, for each collective:")
        report(before[number], after[number], count * options.rounds)


if __name__ == "__main__":
    main()
