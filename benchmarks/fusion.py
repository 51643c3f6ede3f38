"""Measure fusion: processor time of programs with and without it, alternating.

    python benchmarks/fusion.py                   the programs, as graphs
    python benchmarks/fusion.py --streams         the programs, as batches of single operations
    python benchmarks/fusion.py --sizes           several sizes: where blocks pay
    python benchmarks/fusion.py --rows            programs around reductions of rows
    python benchmarks/fusion.py --block-sizes     the programs with several block sizes
    python benchmarks/fusion.py --loops           programs of small operations, compiled to ufuncs

With llvmlite (extra ``fusion``), a third column has the programs with compiled kernels.

Set the thresholds of malloc as the server does (``MALLOC_MMAP_THRESHOLD_=33554432
MALLOC_TRIM_THRESHOLD_=268435456``); without them, page faults make small results slow.

Figures are the median of the thread's processor time. The machine's other work disturbs them less
than the wall-clock time, but caches and memory are still shared.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import burn_remote_server.fusion.cpu.block_program as block_program
import burn_remote_server.fusion.cpu.elementwise_fuser as elementwise
import burn_remote_server.fusion.cpu.reduce_fuser as reduce
import burn_remote_server.programs.graphs as graphs
from burn_remote_protocol.dialects.native import Batch
from burn_remote_protocol.dtypes import BOOL, F32, DType
from burn_remote_protocol.messages import Define, DefineGraph, Drop
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.interface import Backend
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.fusion.cpu.kernel_compiler import opened_compiler
from burn_remote_server.fusion.fusing_backend import FusionBackend
from burn_remote_server.fusion.runtime_selection import with_fusion
from burn_remote_server.programs.graphs import GraphPlan
from burn_remote_server.programs.plans import Plan

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.engines import EngineSession, undecoded
from support.kernels import signature

REPEATS = 15
COMPILER = opened_compiler()
MI = 2**20
console = Console()


class Program:
    """A program of operations on float32 tensors, written as calls that return slots."""

    def __init__(self, name: str, *inputs: tuple[int, ...]) -> None:
        self.name = name
        self.specs = [TensorSpec(shape, F32) for shape in inputs]
        self.plans: list[Any] = []
        self.steps: list[tuple[int, ...]] = []

    @property
    def input_count(self) -> int:
        """Number of slots that the program takes."""
        return len(self.specs) - len(self.steps)

    def take(self, shape: tuple[int, ...], dtype: DType) -> int:
        """Add an input before the first operation; return its slot."""
        assert not self.steps
        self.specs.append(TensorSpec(shape, dtype))
        return len(self.specs) - 1

    def do(self, operation: str, *slots: int, **parameters: Any) -> int:
        """Append an operation; return the slot of its result."""
        signed = signature(operation, *[self.specs[slot] for slot in slots], **parameters)
        self.steps.append((len(self.steps), *slots))
        self.plans.append(signed)
        self.specs += signed.outputs
        return len(self.specs) - 1

    def compiled(self, backend: Backend, outputs: tuple[int, ...]) -> GraphPlan:
        """Return the graph of the program on a backend."""
        session = backend.open_session()
        numbered = {number: Plan(signed, session) for number, signed in enumerate(self.plans)}
        fusers = backend.fusers() if isinstance(backend, FusionBackend) else ()
        for plan in numbered.values():
            plan.let_fuse(session, fusers)
        task = DefineGraph(4096, self.input_count, tuple(self.steps), outputs)
        return GraphPlan(
            task,
            numbered,
            backend,
            session,
            lambda signed: Plan(signed, session),
            lambda run, plans: run,
        )

    def arrays(self) -> list[Any]:
        """Return random inputs, none below 0."""
        rng = np.random.default_rng(0)
        return [
            rng.random(spec.shape) < 0.2
            if spec.dtype is BOOL
            else rng.random(spec.shape, np.float32)
            for spec in self.specs[: self.input_count]
        ]


def gelu(size: int = 4 * MI) -> tuple[Program, tuple[int, ...]]:
    """Return GELU by ``tanh``."""
    p = Program(f"gelu (tanh), {size:,}", (size,))
    cube = p.do("Numeric.Mul", p.do("Numeric.Mul", 0, 0), 0)
    inner = p.do("Numeric.Add", p.do("Numeric.MulScalar", cube, rhs=0.044715), 0)
    tanh = p.do("Float.Tanh", p.do("Numeric.MulScalar", inner, rhs=0.7978845608))
    whole = p.do("Numeric.Mul", p.do("Numeric.AddScalar", tanh, rhs=1.0), 0)
    return p, (p.do("Numeric.MulScalar", whole, rhs=0.5),)


def adam(size: int = MI) -> tuple[Program, tuple[int, ...]]:
    """Return an update by Adam: parameters, gradient and two moments."""
    p = Program("Adam", (size,), (size,), (size,), (size,))
    mean = p.do(
        "Numeric.Add",
        p.do("Numeric.MulScalar", 2, rhs=0.9),
        p.do("Numeric.MulScalar", 1, rhs=0.1),
    )
    square = p.do("Numeric.MulScalar", p.do("Numeric.Mul", 1, 1), rhs=0.001)
    variance = p.do("Numeric.Add", p.do("Numeric.MulScalar", 3, rhs=0.999), square)
    root = p.do("Float.Sqrt", p.do("Numeric.DivScalar", variance, rhs=0.003))
    step = p.do(
        "Numeric.Div",
        p.do("Numeric.DivScalar", mean, rhs=0.27),
        p.do("Numeric.AddScalar", root, rhs=1e-8),
    )
    result = p.do("Numeric.Sub", 0, p.do("Numeric.MulScalar", step, rhs=1e-3))
    return p, (mean, variance, result)


def cheap(rows: int = 2048, columns: int = 2048) -> tuple[Program, tuple[int, ...]]:
    """Return 20 cheap operations with a row that is broadcast."""
    p = Program("20 cheap, broadcast", (rows, columns), (1, columns), (rows, 1))
    found = 0
    for _ in range(4):
        found = p.do("Numeric.MulScalar", found, rhs=0.5)
        found = p.do("Numeric.Add", found, 1)
        found = p.do("Numeric.Sub", found, 2)
        found = p.do("Numeric.Clamp", found, min=0.01, max=float("inf"))
        found = p.do("Numeric.Mul", found, 0)
    return p, (found,)


def softmax(rows: int = 4096, columns: int = 1024) -> tuple[Program, tuple[int, ...]]:
    """Return the softmax of masked scores."""
    p = Program(f"mask and softmax {rows} x {columns}", (rows, columns))
    mask = p.take((rows, columns), BOOL)
    scaled = p.do("Numeric.MulScalar", 0, rhs=0.125)
    masked = p.do("Base.MaskFill", scaled, mask, value=-1e9)
    most = p.do("Numeric.MaxDim", masked, axis=1, accumulator_len=1)
    powers = p.do("Float.Exp", p.do("Numeric.Sub", masked, most))
    total = p.do("Numeric.SumDim", powers, axis=1, accumulator_len=1)
    return p, (p.do("Numeric.Div", powers, total),)


def layer_norm(rows: int = 4096, columns: int = 1024) -> tuple[Program, tuple[int, ...]]:
    """Return layer normalization with weight and bias."""
    p = Program(f"layer norm {rows} x {columns}", (rows, columns), (1, columns), (1, columns))
    centred = p.do("Numeric.Sub", 0, p.do("Numeric.MeanDim", 0, axis=1, accumulator_len=1))
    square = p.do("Numeric.Mul", centred, centred)
    variance = p.do("Numeric.MeanDim", square, axis=1, accumulator_len=1)
    deviation = p.do("Float.Sqrt", p.do("Numeric.AddScalar", variance, rhs=1e-5))
    normal = p.do("Numeric.Div", centred, deviation)
    return p, (p.do("Numeric.Add", p.do("Numeric.Mul", normal, 1), 2),)


def plain_softmax(rows: int, columns: int) -> tuple[Program, tuple[int, ...]]:
    """Return a softmax: two exact operations."""
    p = Program(f"softmax {rows} x {columns}", (rows, columns))
    most = p.do("Numeric.MaxDim", 0, axis=1, accumulator_len=1)
    powers = p.do("Float.Exp", p.do("Numeric.Sub", 0, most))
    total = p.do("Numeric.SumDim", powers, axis=1, accumulator_len=1)
    return p, (p.do("Numeric.Div", powers, total),)


def rms_norm(rows: int, columns: int) -> tuple[Program, tuple[int, ...]]:
    """Return a root mean square normalization: three exact operations."""
    p = Program(f"rms norm {rows} x {columns}", (rows, columns), (1, columns))
    mean = p.do("Numeric.MeanDim", p.do("Numeric.Mul", 0, 0), axis=1, accumulator_len=1)
    scale = p.do("Float.Recip", p.do("Float.Sqrt", p.do("Numeric.AddScalar", mean, rhs=1e-5)))
    return p, (p.do("Numeric.Mul", p.do("Numeric.Mul", 0, scale), 1),)


def square_sum(rows: int, columns: int) -> tuple[Program, tuple[int, ...]]:
    """Return the sum of squares: one exact operation."""
    p = Program(f"sum of squares {rows} x {columns}", (rows, columns))
    return p, (p.do("Numeric.SumDim", p.do("Numeric.Mul", 0, 0), axis=1, accumulator_len=1),)


def pair(size: int) -> tuple[Program, tuple[int, ...]]:
    """Return two cheap operations."""
    p = Program(f"2 operations, {size:,}", (size,), (size,))
    return p, (p.do("Numeric.Mul", p.do("Numeric.Add", 0, 1), 0),)


def five(size: int) -> tuple[Program, tuple[int, ...]]:
    """Return five cheap operations."""
    p = Program(f"5 operations, {size:,}", (size,), (size,))
    found = 0
    for _ in range(5):
        found = p.do("Numeric.Add", found, 1)
    return p, (found,)


def dying(count: int, size: int) -> tuple[Program, tuple[int, ...]]:
    """Return operations on a tensor that is not used afterwards, so each may overwrite it."""
    p = Program(f"{count} on a tensor that dies, {size:,}")
    found = p.do("Numeric.Full", out=TensorSpec((size,), F32), value=0.5)
    for place in range(count):
        name = "Numeric.MulScalar" if place % 2 else "Numeric.AddScalar"
        found = p.do(name, found, rhs=0.5)
    return p, (found,)


def chain(rows: int, columns: int) -> tuple[Program, tuple[int, ...]]:
    """Return 60 additions, products and differences."""
    p = Program(f"60 operations, {rows} x {columns}", *[(rows, columns)] * 4)
    found = 0
    for _ in range(12):
        found = p.do("Numeric.MulScalar", p.do("Numeric.Add", found, 1), rhs=0.5)
        found = p.do("Numeric.Add", p.do("Numeric.Sub", found, 2), 3)
        found = p.do("Numeric.Sub", found, 1)
    return p, (found,)


def layer(rows: int, inner: int, columns: int) -> tuple[Program, tuple[int, ...]]:
    """Return a product with a bias and a ReLU."""
    shapes = (rows, inner), (inner, columns), (1, columns)
    p = Program(f"product, bias, ReLU: {rows} x {inner} x {columns}", *shapes)
    biased = p.do("Numeric.Add", p.do("Float.Matmul", 0, 1), 2)
    return p, (p.do("Numeric.Clamp", biased, min=0.0, max=float("inf")),)


def many(update: str, count: int, size: int) -> tuple[Program, tuple[int, ...]]:
    """Return updates of many parameters by SGD with momentum or by Adam."""
    kinds = 3 if update == "momentum" else 4
    p = Program(f"{update}, {count} parameters of {size:,}", *[(size,)] * (kinds * count))
    outputs: list[int] = []
    for place in range(count):
        w, grad, mean, *other = range(kinds * place, kinds * (place + 1))
        if not other:
            mean = p.do("Numeric.Add", p.do("Numeric.MulScalar", mean, rhs=0.9), grad)
            step = p.do("Numeric.MulScalar", mean, rhs=0.1)
        else:
            old, new = (
                p.do("Numeric.MulScalar", mean, rhs=0.9),
                p.do("Numeric.MulScalar", grad, rhs=0.1),
            )
            mean = p.do("Numeric.Add", old, new)
            square = p.do("Numeric.MulScalar", p.do("Numeric.Mul", grad, grad), rhs=0.001)
            kept = p.do("Numeric.MulScalar", other[0], rhs=0.999)
            variance = p.do("Numeric.Add", kept, square)
            root = p.do("Numeric.AddScalar", p.do("Float.Sqrt", variance), rhs=1e-8)
            step = p.do("Numeric.MulScalar", p.do("Numeric.Div", mean, root), rhs=0.001)
            outputs.append(variance)
        outputs += [mean, p.do("Numeric.Sub", w, step)]
    return p, tuple(outputs)


def small_programs() -> list[tuple[Program, tuple[int, ...]]]:
    """Return the programs of ``--loops``."""
    return [
        chain(16, 16),
        chain(128, 128),
        layer(64, 10, 128),
        layer(64, 784, 128),
        many("momentum", 60, 100),
        many("Adam", 60, 100),
        many("Adam", 60, 10_000),
    ]


def compared(runs: list[Callable[[], object]], repeats: int = REPEATS) -> list[float]:
    """Return the median processor time of each call, in milliseconds; the calls alternate."""
    seconds: list[list[float]] = [[] for _ in runs]
    for run in runs:
        for _ in range(3):
            run()
            if COMPILER is not None:
                COMPILER.wait()
    places = [*range(len(runs))]
    for _ in range(repeats):
        places.reverse()  # because a run leaves its memory in the cache for the next one
        for place in places:
            started = time.thread_time()
            runs[place]()
            seconds[place].append(time.thread_time() - started)
    return [statistics.median(each) * 1e3 for each in seconds]


@contextlib.contextmanager
def forced_fusers() -> Iterator[None]:
    """Let fusers also fuse operations that they would leave alone because fusion is not faster."""
    with (
        patch.object(elementwise.ElementwiseFuser, "least_bytes", 0),
        patch.object(elementwise, "BLOCKS_PAY", ((0, 0),)),
        patch.object(elementwise, "MIXED_PAY", ((0, 0),)),
        patch.object(elementwise, "KERNELS_PAY", ((0, 0),)),
        patch.object(elementwise, "RESULTS_PER_INPUT", 0),
        patch.object(elementwise, "MIN_REUSING_ELEMENTS", 0),
        patch.object(elementwise, "MIN_KERNEL_REUSING_ELEMENTS", 0),
        patch.object(reduce, "EXACT_OPERATIONS", ((0, 0),)),
    ):
        yield


def backends() -> list[Backend]:
    """Return backends without fusion, with blocks, and with kernels if they can be compiled."""
    found = [NumpyBackend(), with_fusion(NumpyBackend(), compiles=False)]
    return found if COMPILER is None else [*found, with_fusion(NumpyBackend())]


def runs_of(program: Program, outputs: tuple[int, ...]) -> list[Callable[[], object]]:
    """Return the program without fusion, in blocks, and with kernels."""
    arrays = program.arrays()
    graphs = [program.compiled(backend, outputs) for backend in backends()]
    return [partial(graph.run, arrays, ()) for graph in graphs]


def batch_of(program: Program, outputs: tuple[int, ...], first: int) -> Batch:
    """Return the operations as single tasks, each tensor dropped after its last use.

    The inputs are tensors 1, 2 …; the results begin at ``first``.
    """
    count = program.input_count
    ids = [*range(1, count + 1), *range(first, first + len(program.specs))]
    last_use = {slot: place for place, step in enumerate(program.steps) for slot in step[1:]}
    tasks: list[Any] = []
    for place, (number, *inputs) in enumerate(program.steps):
        made = count + place
        tasks.append((number, *[ids[slot] for slot in inputs], ids[made]))
        dropped = [
            ids[slot]
            for slot in {*inputs, made}
            if slot >= count and slot not in outputs and last_use.get(slot, place) == place
        ]
        if dropped:
            tasks.append(undecoded(Drop(tuple(dropped))))
    return Batch(0, tuple(tasks))


def dropping(outputs: tuple[int, ...], program: Program, first: int) -> Batch:
    """Return the batch that drops the results of ``batch_of``.

    It is a batch of its own: a result that is dropped among the operations need not be computed.
    """
    ids = tuple(first + slot - program.input_count for slot in outputs)
    return Batch(0, (undecoded(Drop(ids)),))


def streams_of(program: Program, outputs: tuple[int, ...]) -> list[Callable[[], object]]:
    """Return the program as a stream of operations: without fusion, in blocks, with kernels."""
    runs: list[Callable[[], object]] = []
    for backend in backends():
        session = EngineSession(backend=backend, max_bytes=2**34)
        session.run(*(Define(number, signed) for number, signed in enumerate(program.plans)))
        for slot, array in enumerate(program.arrays()):
            session.tensors.store(slot + 1, array)
        batch = batch_of(program, outputs, 1000)
        # A window is explored at its second arrival, which is the warm-up in ``compared``.
        session.engine.run(batch)
        drop = dropping(outputs, program, 1000)
        session.engine.run(drop)
        runs.append(partial(_run_all, session, [batch, drop]))
    return runs


def _run_all(session: EngineSession, batches: list[Batch]) -> None:
    for batch in batches:
        session.engine.run(batch)


def main(
    streams: Annotated[bool, typer.Option("--streams")] = False,
    sizes: Annotated[bool, typer.Option("--sizes")] = False,
    rows: Annotated[bool, typer.Option("--rows")] = False,
    block_sizes: Annotated[bool, typer.Option("--block-sizes")] = False,
    loops: Annotated[bool, typer.Option("--loops")] = False,
    repeats: int = REPEATS,
) -> None:
    """Print the figures."""
    np.seterr(all="ignore")
    make_runs = streams_of if streams else runs_of
    table = Table("program", "without, ms", "blocks, ms", "kernels, ms", "÷ blocks", "÷ kernels")
    programs = [gelu(), adam(), cheap(), softmax(), layer_norm()]
    blocks = [block_program.BLOCK_ELEMENTS]
    if sizes:
        counts = [kibi * 1024 for kibi in (64, 128, 192, 256, 384, 512, 1024, 4096)]
        programs = [make(size) for size in counts for make in (pair, five, gelu)]
        programs += [dying(count, size) for size in counts[2:] for count in (2, 3, 4, 6, 8)]
    if rows:
        shapes = [(1024, 1024), (8192, 128), (4096, 1024), (512, 8192), (32768, 1024)]
        made = (plain_softmax, rms_norm, square_sum, softmax, layer_norm)
        programs = [make(*shape) for shape in shapes for make in made]
    if loops:
        programs = small_programs()
    if block_sizes:
        blocks = [2**power for power in range(12, 19)]
    for program, outputs in programs:
        for block in blocks:
            with (
                patch.object(block_program, "BLOCK_ELEMENTS", block),
                patch.object(
                    block_program,
                    "KERNEL_BLOCK_ELEMENTS",
                    block if block_sizes else block_program.KERNEL_BLOCK_ELEMENTS,
                ),
                forced_fusers() if sizes or rows or block_sizes else contextlib.nullcontext(),
                patch.object(graphs, "COMPILED_AT", 1),
            ):
                without, *fused = compared(make_runs(program, outputs), repeats)
            name = f"{program.name}, blocks of {block:,}" if block_sizes else program.name
            times = [without, *fused, *[math.nan] * (2 - len(fused))]
            ratios = [f"{without / each:.2f}" for each in times[1:]]
            table.add_row(name, *[f"{each:.3f}" for each in times], *ratios)
    console.print(table)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(main)
    app()
