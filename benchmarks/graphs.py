"""Measure compiled functions: small operations, a training step, and the client's time of a call.

    python benchmarks/graphs.py [--json FILE] [--blas-threads N]

Each figure is the median of rounds; a round runs both sides of a ratio one after the other, so that
a change of the machine's speed concerns both. "Half of the rounds" are the quartiles.

Rows marked "processor" are processor times: of one thread, or of the server's process. They hardly
depend on other programs. The other rows are elapsed times, because client and server work at the
same time. They are only valid on a quiet machine: each round waits for one, at most 20 s in total,
and the last row says how busy it was.

The training step in NumPy runs in processes of its own (``numpy_training.py``), once as any program
and once with a glibc that keeps freed memory. Both sides use one BLAS thread: several wait for each
other actively, which also counts as processor time, and the server divides only products of 2**24
multiplications or more, which this step does not have. ``--blas-threads 2`` shows the difference.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgpack
import numpy as np
import psutil
import typer
from numpy_training import NumpyProgram, softmax_arrays
from rich.console import Console
from rich.table import Table

import burn_remote as br
from burn_remote_protocol.dialects.native import decode_frame, encode_batch, encode_task
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.messages import Define, DefineGraph, Drop
from burn_remote_protocol.tensors import TensorSpec

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.engines import EngineSession
from support.kernels import signature
from support.servers import RunningServer, server

OPERATIONS: Final = 60
ROUNDS: Final = 15
# Graphs that are defined while the garbage collector is measured, and the steps of each.
LIVE_GRAPHS: Final = 100
LIVE_STEPS: Final = 4000
CALLS_IN_FRAME: Final = 128
# A quiet machine: other processes use at most this share of all processor time.
QUIET_PERCENT: Final = 10.0
WAIT_SECONDS: Final = 20.0

console = Console(width=120)


class Figure(NamedTuple):
    """Measurements of one row, and the project's target for them (``reach``)."""

    values: list[float]
    reach: str = ""

    @property
    def median(self) -> float:
        """The median."""
        return statistics.median(self.values)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and the third quartile."""
        if len(self.values) < 2:
            return self.values[0], self.values[0]
        first, _, third = statistics.quantiles(self.values, n=4)
        return first, third


Figures = dict[str, Figure]


class Rounds:
    """Values of several rounds by name."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}

    def add(self, name: str, value: float) -> None:
        """Add the value of one round."""
        self._values.setdefault(name, []).append(value)

    def figure(self, name: str, reach: str = "") -> Figure:
        """Return the values of a name as a row."""
        return Figure(self._values[name], reach)


class QuietWaiter:
    """Waits for a quiet machine, as long as the whole run may wait."""

    def __init__(self) -> None:
        self.left_seconds = WAIT_SECONDS
        self.busy: list[float] = []

    def wait(self) -> None:
        """Wait until other processes use little processor time, and record how much."""
        while True:
            start = time.monotonic()
            busy = psutil.cpu_percent(0.1)
            self.left_seconds -= time.monotonic() - start
            if busy <= QUIET_PERCENT or self.left_seconds <= 0:
                self.busy.append(busy)
                return


def thread_seconds(run: Callable[[], object], count: int) -> float:
    """Return the processor time of this thread for each of several calls."""
    start = time.thread_time()
    for _ in range(count):
        run()
    return (time.thread_time() - start) / count


def server_seconds(running: RunningServer) -> float:
    """Return the processor time of a server so far."""
    # Linux's clock of another process (CPUCLOCK_SCHED); psutil counts in hundredths of a second.
    return time.clock_gettime((~running.process.pid << 3) | 2)


def elapsed_seconds(run: Callable[[], object]) -> float:
    """Return the elapsed time of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


# -- 60 small operations --------------------------------------------------------------------------


def small_operations(a: Any, b: Any, c: Any, d: Any, half: Any = 0.5) -> Any:
    """Compute 60 small operations, in NumPy or remotely."""
    x = a
    for _ in range(OPERATIONS // 5):
        x = x + b
        x = x * half
        x = x - c
        x = x + d
        x = x - b
    return x


def small_arrays() -> list[Any]:
    random = np.random.default_rng(0)
    return [random.standard_normal((16, 16), np.float32) * np.float32(0.1) for _ in range(4)]


def in_process() -> Figures:
    """Measure the program alone and through the engine, against plain NumPy, in this thread."""
    spec = TensorSpec((16, 16), F32)
    session = EngineSession(max_tensors=10_000)
    add, times, subtract = range(3)
    session.run(
        Define(add, signature("Numeric.Add", spec, spec)),
        Define(times, signature("Numeric.MulScalar", spec, rhs=0.5)),
        Define(subtract, signature("Numeric.Sub", spec, spec)),
    )
    arrays = small_arrays()
    for tensor, array in enumerate(arrays):
        session.interpreter.tensors.store(tensor, array)
    steps: list[tuple[int, ...]] = []
    last = 0
    for place in range(OPERATIONS):
        forms = (
            (add, last, 1),
            (times, last),
            (subtract, last, 2),
            (add, last, 3),
            (subtract, last, 1),
        )
        steps.append(forms[place % 5])
        last = 4 + place
    number = 4096
    session.run(DefineGraph(number, 4, tuple(steps), (last,)))
    plan = session.interpreter.numbered[number]
    outputs = [*range(10, 10 + CALLS_IN_FRAME)]
    frame = encode_batch(
        0,
        [msgpack.packb([number, 0, 1, 2, 3, tensor]) for tensor in outputs]
        + [encode_task(Drop(tuple(outputs)))],
    )
    a, b, c, d = arrays
    half = np.float32(0.5)
    wanted = small_operations(a, b, c, d, half)
    assert np.array_equal(plan.run(arrays, ())[0], wanted)

    def engine() -> None:
        session.engine.run(decode_frame(frame))

    engine()
    program: list[float] = []
    through: list[float] = []
    overhead: list[float] = []
    for _ in range(ROUNDS * 2):
        plain = thread_seconds(lambda: small_operations(a, b, c, d, half), 200)
        alone = thread_seconds(lambda: plan.run(arrays, ()), 200)
        full = thread_seconds(engine, 2) / CALLS_IN_FRAME
        program.append(plain / alone)
        through.append(plain / full)
        overhead.append((full - alone) * 1e6)
    return {
        "60 small operations, program alone: speed ÷ plain NumPy (processor)": Figure(
            program, "≥ 0.97"
        ),
        "60 small operations, engine: speed ÷ plain NumPy (processor)": Figure(through, "≥ 0.85"),
        "engine beyond the program, µs a call (processor)": Figure(overhead),
    }


def collector() -> Figures:
    """Measure garbage collections of all objects, during which all threads of a process wait."""
    spec = TensorSpec((16, 16), F32)
    session = EngineSession()
    session.run(Define(0, signature("Numeric.Add", spec, spec)))
    steps = tuple((0, slot, slot) for slot in range(LIVE_STEPS))
    gc.collect()
    objects, without = len(gc.get_objects()), thread_seconds(gc.collect, ROUNDS)
    for graph in range(LIVE_GRAPHS):
        session.run(DefineGraph(4096 + graph, 1, steps, (LIVE_STEPS,)))
    gc.collect()
    count = LIVE_GRAPHS * LIVE_STEPS
    pauses = [thread_seconds(gc.collect, 1) * 1000 for _ in range(ROUNDS)]
    return {
        "collection of all objects without graphs, ms (processor)": Figure([without * 1000]),
        f"the same with {count:,} live steps, ms (processor)": Figure(pauses, "≤ 100"),
        "objects that the collector tracks per step": Figure(
            [(len(gc.get_objects()) - objects) / count], "≤ 0.1"
        ),
    }


def end_to_end(running: RunningServer, device: br.Device, quiet: QuietWaiter) -> Figures:
    """Measure the same operations through a server in another process."""
    arrays = small_arrays()
    tensors = [br.tensor(array, device=device) for array in arrays]
    compiled = br.compile(small_operations)
    half, calls = np.float32(0.5), 1000

    def plain() -> None:
        a, b, c, d = arrays
        for _ in range(calls):
            a = small_operations(a, b, c, d, half)

    def remote() -> Any:
        a, b, c, d = tensors
        for _ in range(calls):
            a = compiled(a, b, c, d)
        return a.numpy()

    def eager() -> None:
        a, b, c, d = tensors
        for _ in range(calls // 10):
            a = small_operations(a, b, c, d)
        a.numpy()

    remote()
    found = Rounds()
    for _ in range(ROUNDS):
        quiet.wait()
        processor = time.thread_time()
        here = elapsed_seconds(plain)
        processor = time.thread_time() - processor
        of_server, of_client = server_seconds(running), time.thread_time()
        there = elapsed_seconds(remote)
        of_client = time.thread_time() - of_client
        of_server = server_seconds(running) - of_server
        one_by_one = elapsed_seconds(eager)
        found.add("ratio", here / there)
        found.add("server's ratio", processor / of_server)
        found.add("rate", OPERATIONS * calls / there / 1e6)
        found.add("server's rate", OPERATIONS * calls / of_server / 1e6)
        found.add("eager rate", OPERATIONS * calls / 10 / one_by_one / 1e6)
        found.add("client", of_client / calls * 1e6)
    return {
        "60 small operations, end to end: speed ÷ plain NumPy": found.figure("ratio", "≥ 0.8"),
        "60 small operations, server only: speed ÷ plain NumPy (processor)": found.figure(
            "server's ratio", "≥ 0.8"
        ),
        "million operations/s, end to end": found.figure("rate", "≥ 1.5"),
        "million operations/s, server only (processor)": found.figure("server's rate", "≥ 1.5"),
        "million operations/s, not compiled": found.figure("eager rate"),
        "compiled call of 4 inputs, client, µs (processor)": found.figure("client", "≤ 6"),
    }


# -- a training step ------------------------------------------------------------------------------


def remote_step(x: Any, y: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> tuple[Any, ...]:
    """Train the perceptron of ``softmax_step`` on a device."""
    hidden = (x @ w1 + b1).relu()
    logits = hidden @ w2 + b2
    d_logits = (logits.softmax(axis=-1) - y) * (1 / 64)
    d_hidden = (d_logits @ w2.T) * (hidden > 0).astype(br.float32)
    return (
        w1 - x.T @ d_hidden * 0.1,
        b1 - d_hidden.sum(axis=0, keepdims=True) * 0.1,
        w2 - hidden.T @ d_logits * 0.1,
        b2 - d_logits.sum(axis=0, keepdims=True) * 0.1,
    )


def training(running: RunningServer, device: br.Device, quiet: QuietWaiter) -> Figures:
    """Measure the step in NumPy, operation by operation, and compiled."""
    arrays = softmax_arrays()
    tensors = [br.tensor(array, device=device) for array in arrays]
    compiled = br.compile(remote_step)
    steps = 200

    def trained(step: Callable[..., Any], given: list[Any]) -> Any:
        x, y, w1, b1, w2, b2 = given
        for _ in range(steps):
            w1, b1, w2, b2 = step(x, y, w1, b1, w2, b2)
        return w1

    assert np.array_equal(trained(remote_step, tensors).numpy(), trained(compiled, tensors).numpy())
    before = device.traffic
    trained(remote_step, tensors).numpy()
    between = device.traffic
    trained(compiled, tensors).numpy()
    eager_bytes = (between - before).bytes_sent / steps
    compiled_bytes = (device.traffic - between).bytes_sent / steps
    found = Rounds()
    with (
        NumpyProgram("softmax") as plain,
        NumpyProgram("softmax", keeps_memory=True) as keeping,
        NumpyProgram("softmax products", keeps_memory=True) as multiplying,
    ):
        for program in (plain, keeping, multiplying):
            program.run(steps)  # allocates memory and warms caches
        for _ in range(ROUNDS):
            quiet.wait()
            local, kept = plain.run(steps), keeping.run(steps)
            found.add("products", multiplying.run(steps).elapsed / kept.elapsed)
            start, client_start = server_seconds(running), time.thread_time()
            eager = elapsed_seconds(lambda: trained(remote_step, tensors).numpy())
            of_eager = server_seconds(running) - start
            client_eager = time.thread_time() - client_start
            start, client_start = server_seconds(running), time.thread_time()
            there = elapsed_seconds(lambda: trained(compiled, tensors).numpy())
            of_server = server_seconds(running) - start
            of_client = time.thread_time() - client_start
            for name, one in (("local", local), ("kept", kept)):
                found.add(f"{name} elapsed", there / steps / one.elapsed)
                found.add(f"{name} processor", of_server / steps / one.processor)
                found.add(f"{name} faults", one.faults)
                found.add(f"{name} µs", one.elapsed * 1e6)
            found.add("eager", there / eager)
            found.add("server's eager", of_server / of_eager)
            found.add("µs", there / steps * 1e6)
            found.add("server's µs", of_server / steps * 1e6)
            found.add("client's µs", of_client / steps * 1e6)
            found.add("client's eager µs", client_eager / steps * 1e6)
    figures: Figures = {}
    for name, which in (("local", "local NumPy"), ("kept", "NumPy that keeps its memory")):
        figures |= {
            f"MLP step, compiled ÷ {which}": found.figure(f"{name} elapsed", "≤ 0.85"),
            f"MLP step, compiled ÷ {which}, server only (processor)": found.figure(
                f"{name} processor", "≤ 0.85"
            ),
            f"MLP step, {which}, µs": found.figure(f"{name} µs"),
            f"MLP step, page faults of {which}": found.figure(f"{name} faults"),
        }
    return figures | {
        "MLP step, its products alone ÷ NumPy that keeps its memory": found.figure("products"),
        "MLP step, compiled ÷ not compiled": found.figure("eager"),
        "MLP step, compiled ÷ not compiled, server only (processor)": found.figure(
            "server's eager"
        ),
        "MLP step, compiled, µs": found.figure("µs"),
        "MLP step, compiled, server only, µs (processor)": found.figure("server's µs"),
        "MLP step, compiled, client, µs (processor)": found.figure("client's µs"),
        "MLP step, not compiled, client, µs (processor)": found.figure("client's eager µs"),
        "bytes of a step, compiled": Figure([compiled_bytes], "≤ 48"),
        "bytes of a step, not compiled": Figure([eager_bytes]),
    }


def main(
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures here.")
    ] = None,
    blas_threads: Annotated[
        int, typer.Option(min=1, help="Threads of OpenBLAS, in the servers and in NumPy's steps.")
    ] = 1,
) -> None:
    """Measure, print one table, and optionally save the figures."""
    os.environ["OPENBLAS_NUM_THREADS"] = str(blas_threads)  # for the processes that it starts
    quiet = QuietWaiter()
    figures = in_process() | collector()
    for part in (end_to_end, training):
        with server() as running, br.RemoteDevice(running.address) as device:
            figures |= part(running, device, quiet)
    figures["processor time of all processes before a round, %"] = Figure(quiet.busy)
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    table = Table(
        "measure",
        "median",
        "half of the rounds",
        "target",
        title=f"{date.today()}, Python {platform.python_version()}, NumPy {np.__version__}, "
        f"{psutil.cpu_count()} cores, load {load}",
    )
    for name, figure in figures.items():
        low, high = figure.quartiles
        table.add_row(name, f"{figure.median:.3g}", f"{low:.3g} – {high:.3g}", figure.reach)
    console.print(table)
    if json_file is not None:
        values = {name: figure.values for name, figure in figures.items()}
        json_file.write_text(json.dumps(values, indent=1) + "\n")


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(main)
    app()
