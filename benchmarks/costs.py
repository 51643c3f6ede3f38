"""Compare the estimates of every row's cost and workspace with measurements.

    PYTHONPATH=tests python benchmarks/costs.py [calls per row] [Family.Name …]

For random calls of each row, with 1 to 300,000 elements, it prints the largest ratio of measured
time to estimate, and of measured scratch memory to estimate. A time ratio above 10 is an error:
such an operation could block the event loop. Times are the least processor time of several runs,
relative to a calibration in the same minute: NumPy's cumulative sum, 1 ns per element.
"""

from __future__ import annotations

import contextvars
import sys
import time
import tracemalloc
from collections.abc import Callable
from random import Random
from typing import Any, Final, NamedTuple

import numpy as np

from burn_remote_protocol.operations.estimates import estimated
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.execution.costs import TASK_COST
from support.workloads import DRAWN, Workload, draw

ALLOWED: Final = 10.0
MEBIBYTE: Final = 2**20


class Measured(NamedTuple):
    """The measurements and estimates of a call."""

    time_ratio: float
    scratch_ratio: float
    nanoseconds: int
    cost: int
    scratch: int
    workspace: int
    described: str


def processor_seconds(call: Callable[[], Any], runs: int) -> float:
    """Return the least processor time of some runs, on all threads."""
    best = float("inf")
    for _ in range(runs):
        started = time.process_time()
        call()
        best = min(best, time.process_time() - started)
    return best


def calibration() -> float:
    """Return the calibration: the time of one addition in a chain of dependent additions."""
    numbers = np.ones(50_000)
    return processor_seconds(lambda: np.cumsum(numbers), 30) / 50_000


def measure(workload: Workload, run: Callable[..., Any], unit: float) -> Measured:
    """Run a call a few times."""
    cost, workspace = estimated(workload.signature.row.estimates, workload.signature.call)
    cost += TASK_COST
    arrays = workload.arrays
    run(*arrays)
    seconds = processor_seconds(lambda: run(*arrays), 3)
    seconds = min(
        seconds, processor_seconds(lambda: run(*arrays), 5) if seconds < 1e-2 else seconds
    )
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    result = run(*arrays)
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    results = result if type(result) is tuple else (result,)
    kept = sum(item.nbytes for item in results if item is not None and item.base is None)
    scratch = max(0, peak - kept)
    nanoseconds = seconds / unit
    return Measured(
        nanoseconds / cost,
        scratch / (workspace + MEBIBYTE),
        round(nanoseconds),
        cost,
        scratch,
        workspace,
        f"{workload.signature.describe()} {dict(workload.signature.call.parameters)}",
    )


def scan(names: list[str], calls: int, seed: int = 0) -> dict[str, list[Measured]]:
    """Measure random calls of rows."""
    backend = NumpyBackend()
    session = backend.open_session()
    context = contextvars.copy_context()
    context.run(backend.prepare_thread)
    found: dict[str, list[Measured]] = {}
    for name in names:
        random = Random(f"{name} {seed}")
        unit = calibration()
        for _ in range(calls):
            elements = round(10 ** random.uniform(0, 5.5))
            try:
                workload = draw(name, random, elements)
                if workload is None:
                    continue
                run = session.bind(workload.signature)
                measured = context.run(measure, workload, run, unit)
            except Exception as error:
                print("  !", name, type(error).__name__, str(error)[:150])
                continue
            found.setdefault(name, []).append(measured)
    return found


def main() -> None:
    arguments = sys.argv[1:]
    calls = int(arguments[0]) if arguments else 30
    found = scan(arguments[1:] or [*DRAWN], calls)
    worst = 0.0
    print(
        "row | calls | time / estimate | ns, estimate | scratch / estimate | MiB, estimate | call"
    )
    for name, measured in sorted(found.items(), key=lambda item: -max(item[1]).time_ratio):
        slow, large = max(measured), max(measured, key=lambda each: each.scratch_ratio)
        worst = max(worst, slow.time_ratio)
        print(
            f"{name} | {len(measured)} | {slow.time_ratio:.2f} | "
            f"{slow.nanoseconds:,}, {slow.cost:,} | {large.scratch_ratio:.2f} | "
            f"{large.scratch / MEBIBYTE:.1f}, {large.workspace / MEBIBYTE:.1f} | "
            f"{slow.described[:140]}"
            + (f" || {large.described[:140]}" if large.scratch_ratio > 1 else "")
        )
    print(f"{sum(map(len, found.values())):,} calls of {len(found)} rows; worst {worst:.2f}")
    if worst > ALLOWED:
        raise SystemExit(f"an estimate is less than a tenth of what was measured: {worst:.2f}")


if __name__ == "__main__":
    main()
