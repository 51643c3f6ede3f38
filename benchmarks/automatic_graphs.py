"""Measure sessions that recognize repeated operations (``automatic_graphs=True``).

    python benchmarks/automatic_graphs.py
    python benchmarks/automatic_graphs.py --delays 0 --rounds 31

1. The processor time of issuing a small operation (``x + y``): one by one, and as part of a
   followed sequence.
2. A training step through a server in another process, with a round trip that a relay makes longer
   by 0, 10 and 150 ms: elapsed, and processor times of client and server, automatic ÷ one by one.
3. How long operations wait in the client before they are sent, at most and in the 99th percentile.

Sessions with and without automatic graphs alternate in one run. Prints ratios as medians with
quartiles.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

import burn_remote as br

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from delayed_links import delayed_link
from graphs import remote_step, server_seconds
from numpy_training import softmax_arrays

from support.servers import RunningServer, server

OPERATIONS: Final = 6000
STEPS: Final = 60

console = Console(width=120)


def summary(values: list[float]) -> str:
    """Return the median and the quartiles."""
    first, median, third = statistics.quantiles(values, n=4)
    return f"{median:.3g} ({first:.3g}–{third:.3g})"


# -- issuing --------------------------------------------------------------------------------------


def _discarding(device: Any) -> None:
    """Have a device discard its frames, and its timer send nothing."""
    session = device.session

    def discard(frame: bytes, *_: Any, handover: Any = None, **__: Any) -> None:
        handover.is_done = True

    session._connection.send = discard
    flusher = session._flusher
    flusher.advance = lambda: 1000.0
    flusher.disarm = flusher.schedule = lambda *_: None
    flusher.armed = session


def _issue(x: br.Tensor, y: br.Tensor) -> float:
    start = time.thread_time()
    for _ in range(OPERATIONS):
        x = x + y
    return (time.thread_time() - start) / OPERATIONS * 1e6


def issuing(table: Table, rounds: int) -> None:
    """Measure the client's processor time for each operation."""
    sides: list[tuple[Any, br.Tensor, br.Tensor]] = []
    for automatic in (False, True):
        device = br.LocalDevice(automatic_graphs=automatic)
        x, y = (br.ones((16, 16), device=device) for _ in range(2))
        device.sync()
        _discarding(device)
        sides.append((device, x, y))
    values = [[_issue(x, y) for _, x, y in sides] for _ in range(rounds)]
    found = values[2:]
    single, followed = ([pair[side] for pair in found] for side in (0, 1))
    ratios = [after / before for before, after in found]
    table.add_row("x + y: one by one, µs (processor)", summary(single), "")
    table.add_row("x + y: followed, µs (processor)", summary(followed), "")
    table.add_row("x + y: followed ÷ one by one", summary(ratios), "≤ 0.55")
    least = min(followed) / min(single)
    table.add_row("x + y: the same, fastest of all rounds", f"{least:.2f}", "≤ 0.55")


# -- training -------------------------------------------------------------------------------------


def trained(tensors: list[br.Tensor], reads_each: int) -> None:
    """Train for some steps; read a result after each ``reads_each`` of them, and after the last."""
    x, y, w1, b1, w2, b2 = tensors
    for number in range(1, STEPS + 1):
        w1, b1, w2, b2 = remote_step(x, y, w1, b1, w2, b2)
        if number % reads_each == 0:
            b2.numpy()


def training(table: Table, running: RunningServer, milliseconds: float, rounds: int) -> None:
    """Measure a training step on both sides."""
    with delayed_link(running.port, milliseconds) as port:
        address = f"ws://127.0.0.1:{port}"
        devices = [br.RemoteDevice(address, automatic_graphs=mode) for mode in (False, True)]
        sides = [[br.tensor(array, device=one) for array in softmax_arrays()] for one in devices]
        for reads_each in (1, 10, STEPS) if milliseconds < 100 else (10, STEPS):
            found: dict[str, list[float]] = {"elapsed": [], "client": [], "server": []}
            for side in sides:
                trained(side, reads_each)
            for number in range(rounds):
                measured: list[list[float]] = [[], []]
                for place in (0, 1) if number % 2 else (1, 0):
                    start = time.perf_counter(), time.thread_time(), server_seconds(running)
                    trained(sides[place], reads_each)
                    end = time.perf_counter(), time.thread_time(), server_seconds(running)
                    measured[place] = [b - a for a, b in zip(start, end, strict=True)]
                for name, before, after in zip(found, *measured, strict=True):
                    found[name].append(after / before)
            for name, ratios in found.items():
                table.add_row(
                    f"training step, round trip + {milliseconds:g} ms, read each {reads_each}: "
                    f"{name}, automatic ÷ one by one",
                    summary(ratios),
                    "≤ 1",
                )
        share = devices[1].traffic.followed / devices[1].traffic.operations
        table.add_row(f"operations that were followed, + {milliseconds:g} ms", f"{share:.1%}", "")
        for device in devices:
            device.close()


# -- when operations are sent ---------------------------------------------------------------------


def waits(device: Any, program: Callable[[], None]) -> list[float]:
    """Return for each frame how long its first operation had waited in the client, in seconds."""
    session = device.session
    first: list[float] = []
    found: list[float] = []
    execute, send = session.execute, session._connection.send

    def executed(*arguments: Any) -> int:
        if not first:
            first.append(time.perf_counter())
        return execute(*arguments)  # type: ignore[no-any-return]

    def sent(*arguments: Any, **settings: Any) -> None:
        if first:
            found.append(time.perf_counter() - first.pop())
        send(*arguments, **settings)

    session._connection.send = sent
    device.runners._innermost._execute = executed
    program()
    device.sync()
    return found


def sending(table: Table, running: RunningServer) -> None:
    """Measure how long operations wait in the client, in bursts with pauses of 3 ms."""
    for automatic in (False, True):
        with br.RemoteDevice(running.address, automatic_graphs=automatic) as device:
            tensors = [br.tensor(array, device=device) for array in softmax_arrays()]

            def program(tensors: list[br.Tensor] = tensors) -> None:
                x, y, *weights = tensors
                for number in range(600):
                    weights = [*remote_step(x, y, *weights)]
                    if number % 3 == 0:
                        time.sleep(0.003)

            program()
            milliseconds = sorted(1e3 * one for one in waits(device, program))
            late = milliseconds[int(0.99 * len(milliseconds))]
            side = "automatic" if automatic else "one by one"
            table.add_row(f"wait before sending, {side}, ms: 99 %", f"{late:.2f}", "")
            table.add_row(f"wait before sending, {side}, ms: most", f"{milliseconds[-1]:.2f}", "")


def main(
    delays: Annotated[str, typer.Option(help="Milliseconds, with commas.")] = "0,10,150",
    rounds: Annotated[int, typer.Option(min=5)] = 15,
) -> None:
    """Measure, and print one table."""
    table = Table("measure", "median (quartiles)", "target", title=f"{date.today()}")
    issuing(table, 2 * rounds)
    for delay in map(float, delays.split(",")):
        with server() as running:
            training(table, running, delay, rounds if delay < 100 else 5)
            if not delay:
                sending(table, running)
    table.caption = f"load average {', '.join(f'{one:.1f}' for one in os.getloadavg())}"
    console.print(table)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(main)
    app()
