"""Each row's estimates compared with the cost of its kernel, for random calls.

Time is the least processor time of several runs, relative to a calibration in the same process. The
allowed ratio is ten: estimates should exceed the measured time, and `make costs` shows ratios of at
most about one. A call that exceeds the ratio is measured again with a new calibration.
"""

from __future__ import annotations

import contextvars
import gc
import time
import tracemalloc
from collections.abc import Callable
from random import Random
from typing import Any, Final

import numpy as np
import pytest

from burn_remote_protocol.dtypes import BF16, F16, F32, F64, I8, I16, I32, I64, U32, U64, DType
from burn_remote_protocol.operations.estimates import estimated
from burn_remote_protocol.operations.table import TABLE
from burn_remote_protocol.operations.wire_values import Scalar
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.execution.costs import TASK_COST
from support.kernels import on_host, signature
from support.workloads import DRAWN, Workload, draw

ALLOWED_RATIO: Final = 10.0
CALLS: Final = 3
ELEMENTS: Final = 20_000
TRIES: Final = 5
MEBIBYTE: Final = 2**20

# Rows without a kernel: session tasks, custom operations, and unsupported ones.
WITHOUT_KERNEL: Final = {"Init", "Drop", "Custom", "Distributed.AllReduce"}


def processor_seconds(call: Callable[[], Any]) -> float:
    """Return the least processor time of three runs."""
    found = []
    for _ in range(3):
        started = time.process_time()
        call()
        found.append(time.process_time() - started)
    return min(found)


def time_ratio(workload: Workload, run: Callable[..., Any]) -> float:
    """Return the time of a call in units of its estimate."""
    numbers = np.ones(100_000)  # dependent additions, about a nanosecond each
    unit = processor_seconds(lambda: np.cumsum(numbers)) / numbers.size
    cost, _ = estimated(workload.signature.row.estimates, workload.signature.call)
    return processor_seconds(lambda: run(*workload.arrays)) / unit / (cost + TASK_COST)


def scratch_bytes(workload: Workload, run: Callable[..., Any]) -> int:
    """Return the peak memory of a call beyond its results."""
    tracemalloc.start()
    try:
        result = run(*workload.arrays)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    results = result if type(result) is tuple else (result,)
    return int(peak - sum(array.nbytes for array in results if array is not None))


def drawn(name: str) -> list[tuple[Workload, Callable[..., Any]]]:
    random = Random(name)
    session = NumpyBackend().open_session()
    found = [draw(name, random, random.randint(1, ELEMENTS)) for _ in range(CALLS)]
    return [(each, session.bind(each.signature)) for each in found if each is not None]


def test_every_row_with_a_kernel_is_drawn() -> None:
    assert {str(row) for row in TABLE.values()} - WITHOUT_KERNEL == set(DRAWN)


@on_host
@pytest.mark.parametrize(
    "mode, size, width",
    [(("Edge",), 3, 1000), (("Reflect",), 1000, 999), (("Constant", Scalar.of(1)), 3, 1000)],
)
def test_padding_takes_no_more_scratch_memory_than_its_estimate(
    mode: Any, size: int, width: int
) -> None:
    input, widths = TensorSpec((size, size), F32), ((width, width), (width, width))
    out = TensorSpec((size + 2 * width, size + 2 * width), F32)
    called = signature("Numeric.Pad", input, out=out, padding=widths, mode=mode)
    workload = Workload(called, (np.ones(input.shape, np.float32),))
    run = NumpyBackend().open_session().bind(called)
    _, workspace = estimated(called.row.estimates, called.call)
    assert scratch_bytes(workload, run) <= workspace + MEBIBYTE


@on_host
@pytest.mark.parametrize("dtype", [F16, BF16, F32, F64], ids=str)
@pytest.mark.parametrize(
    "distribution", [("Default",), ("Uniform", -1.0, 1.0), ("Normal", 1.0, 2.0), ("Bernoulli", 0.5)]
)
def test_random_numbers_take_no_more_scratch_memory_than_their_estimate(
    distribution: Any, dtype: DType
) -> None:
    spec = TensorSpec((1_000_000,), dtype)
    workload = Workload(signature("Float.Random", out=spec, distribution=distribution), ())
    run = NumpyBackend().open_session().bind(workload.signature)
    _, workspace = estimated(workload.signature.row.estimates, workload.signature.call)
    assert scratch_bytes(workload, run) <= workspace + MEBIBYTE


@on_host
@pytest.mark.parametrize(
    "name, source, target",
    [
        *(("Base.Cast", F64, target) for target in (F16, BF16, F32)),
        *(
            ("Int.IntoFloat", source, target)
            for source in (I16, I32, U32, I64, U64)
            for target in (F16, BF16, F32)
        ),
        *((name, dtype, dtype) for name in ("Numeric.Neg", "Numeric.Sign") for dtype in (F16, F32)),
    ],
)
def test_elementwise_operations_take_no_more_scratch_memory_than_their_estimate(
    name: str, source: DType, target: DType
) -> None:
    out = TensorSpec((500_000,), target)
    called = signature(name, TensorSpec(out.shape, source), out=out)
    ones = np.ones(out.shape, array_dtype(source))
    run = NumpyBackend().open_session().bind(called)
    _, workspace = estimated(called.row.estimates, called.call)
    assert scratch_bytes(Workload(called, (ones,)), run) <= workspace + MEBIBYTE


@on_host
@pytest.mark.parametrize("shape", [(2_000_000, 2), (2, 2_000_000)])
@pytest.mark.parametrize("dtype", [F16, F32, I8], ids=str)
@pytest.mark.parametrize("name", ["Base.AnyDim", "Base.AllDim", "Numeric.MaxDim", "Numeric.MinDim"])
def test_reductions_take_no_more_scratch_memory_than_their_estimate(
    name: str, dtype: DType, shape: tuple[int, int]
) -> None:
    called = signature(name, TensorSpec(shape, dtype), axis=1, accumulator_len=0)
    run = NumpyBackend().open_session().bind(called)
    _, workspace = estimated(called.row.estimates, called.call)
    ones = np.ones(shape, array_dtype(dtype))
    assert scratch_bytes(Workload(called, (ones,)), run) <= workspace + MEBIBYTE


@on_host
@pytest.mark.parametrize("name", DRAWN)
def test_no_estimate_is_less_than_a_tenth_of_what_a_call_takes(name: str) -> None:
    context = contextvars.copy_context()
    context.run(NumpyBackend().prepare_thread)
    gc.collect()
    for workload, run in drawn(name):
        ratios: list[float] = []
        while not ratios or (ratios[-1] > ALLOWED_RATIO and len(ratios) < TRIES):
            ratios.append(context.run(time_ratio, workload, run))
        described = f"{workload.signature.describe()} {workload.signature.call.parameters}"
        assert min(ratios) <= ALLOWED_RATIO, described
        _, workspace = estimated(workload.signature.row.estimates, workload.signature.call)
        assert context.run(scratch_bytes, workload, run) <= workspace + MEBIBYTE, described
