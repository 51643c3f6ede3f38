"""Reductions over the last axis are fused with the operations around them, in blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from unittest.mock import patch

import numpy as np
import pytest

from burn_remote_protocol.dtypes import F16, F32, DType
from burn_remote_protocol.messages import Define, DefineGraph, Drop
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.fusion.cpu import elementwise_fuser
from burn_remote_server.fusion.cpu.elementwise_fuser import ElementwiseFuser
from burn_remote_server.fusion.cpu.reduce_fuser import ReduceFuser
from burn_remote_server.fusion.cpu.runtime import NumpyFusionRuntime
from burn_remote_server.fusion.fuser import OperationFuser
from burn_remote_server.fusion.fusing_backend import Fusion
from burn_remote_server.programs.stream_fusion import MAX_SMALL_OPERATIONS
from support.engines import EngineSession
from support.fused_sessions import ran_one_by_one
from support.kernels import Array, signature
from support.random_programs import forced_fusion, same_bits

GRAPH = 4096
MAX, SUB, EXP, SUM, DIV, ROW_ROOT = range(6)


class _Runtime(NumpyFusionRuntime):
    """Fuses reductions also without a compiler."""

    def fusers(self, device: object) -> tuple[OperationFuser, ...]:
        return ElementwiseFuser(), ReduceFuser()


def opened(shape: tuple[int, ...], dtype: DType = F32, axis: int | None = None) -> EngineSession:
    """Return a session with the operations of a softmax of the tensor 1."""
    full = TensorSpec(shape, dtype)
    axis = len(shape) - 1 if axis is None else axis
    rows = TensorSpec(tuple(1 if place == axis else n for place, n in enumerate(shape)), dtype)
    session = EngineSession(backend=Fusion(NumpyBackend(), _Runtime()))
    session.run(
        Define(MAX, signature("Numeric.MaxDim", full, axis=axis, accumulator_len=1)),
        Define(SUB, signature("Numeric.Sub", full, rows)),
        Define(EXP, signature("Float.Exp", full)),
        Define(SUM, signature("Numeric.SumDim", full, axis=axis, accumulator_len=1)),
        Define(DIV, signature("Numeric.Div", full, rows)),
        Define(ROW_ROOT, signature("Float.Sqrt", rows)),
    )
    values = np.random.default_rng(0).standard_normal(shape).astype(array_dtype(dtype))
    session.tensors.store(1, values)
    return session


SOFTMAX = ((MAX, 0), (SUB, 0, 1), (EXP, 2), (SUM, 3), (DIV, 3, 4))


def softmax(session: EngineSession) -> Array:
    session.run(DefineGraph(GRAPH, 1, SOFTMAX, (5,)), (GRAPH, 1, 2))
    made: Array = session.tensors.array(2)
    return made


def blocks(session: EngineSession) -> list[tuple[str, int, int]]:
    """Return the optimization, the first and the last place of each fused run of steps."""
    found = session.interpreter.numbered[GRAPH].blocks.values()
    return [(block.execution.optimization.name, block.start, block.end) for block in found]


def expected(session: EngineSession, axis: int = -1) -> Array:
    (x,) = (session.tensors.array(1),)
    powers = np.exp(x - x.max(axis, keepdims=True))
    total = powers.astype(np.float32).sum(axis, keepdims=True).astype(x.dtype)
    made: Array = powers / total
    return made


@pytest.fixture(autouse=True)
def forced() -> Iterator[None]:
    with forced_fusion(), np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("shape", [(100, 7), (2, 32), (5, 3, 20), (1, 40, 8), (7, 2)])
def test_a_softmax_of_rows_is_one_optimization(shape: tuple[int, ...]) -> None:
    session = opened(shape)
    assert same_bits(softmax(session), expected(session))
    assert blocks(session) == [("reduce", 0, 5)]


def test_sixteen_bits_are_added_as_single_operations_do() -> None:
    session = opened((100, 7), F16)
    assert same_bits(softmax(session), expected(session))
    assert blocks(session) == [("reduce", 0, 5)]


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((100, 7), 0),  # columns
        ((3, 33), 1),  # no two rows in a block of 64 elements
        ((1, 20), 1),  # a single row
        ((50, 1), 1),  # rows of one element
    ],
)
def test_other_reductions_are_not_fused(shape: tuple[int, ...], axis: int) -> None:
    session = opened(shape, axis=axis)
    assert same_bits(softmax(session), expected(session, axis))
    assert all(name == "elementwise" for name, _, _ in blocks(session))


@pytest.mark.parametrize("layout", ["F", "repeated", "reversed"])
def test_an_input_that_is_not_stored_by_rows_is_reduced_as_a_whole(layout: str) -> None:
    session = opened((30, 7))
    x = session.tensors.array(1)
    session.tensors.store(
        5,
        {
            "F": np.asfortranarray(x),
            "repeated": np.broadcast_to(x[:, :1].copy(), x.shape),
            "reversed": x[::-1],
        }[layout],
    )
    session.run(DefineGraph(GRAPH, 1, SOFTMAX, (5,)))
    with ran_one_by_one() as count:
        session.run((GRAPH, 5, 2))
    x = session.tensors.array(5)
    powers = np.exp(x - x.max(1, keepdims=True))
    assert same_bits(session.tensors.array(2), powers / powers.sum(1, keepdims=True))
    assert count.call_count == 1


def test_a_softmax_of_a_stream_is_one_optimization() -> None:
    session = opened((100, 7))
    for first in (10, 20, 30):
        a, b, c, d, e = range(first, first + 5)
        session.run(
            (MAX, 1, a), (SUB, 1, a, b), Drop((a,)), (EXP, b, c), Drop((b,)),
            (SUM, c, d), (DIV, c, d, e), Drop((c, d)),
        )  # fmt: skip
        assert same_bits(session.tensors.array(e), expected(session))
    assert session.interpreter.counts.operations_fused == 10
    assert session.quota.tensors == 4


def without_columns() -> AbstractContextManager[object]:
    """Let plans begin windows for [100, 7], but not for the results of its rows."""
    return patch.object(elementwise_fuser, "BLOCKS_PAY", ((700, 0),))


def test_small_operations_begin_no_window() -> None:
    with without_columns():
        session = opened((100, 7))
    session.run((MAX, 1, 2), (ROW_ROOT, 2, 3))
    for tensor in range(10, 20):
        session.run((ROW_ROOT, 2, tensor), (ROW_ROOT, tensor, 100 + tensor))
    assert session.interpreter.counts.windows == 1


def test_a_long_run_of_small_operations_ends_a_window() -> None:
    with without_columns():
        session = opened((100, 7))
    # The operations before the end are one window, and the last two are another.
    many = range(1000, 1000 + 3 * MAX_SMALL_OPERATIONS)
    for _ in range(3):
        session.run((MAX, 1, 2), *[(ROW_ROOT, 2, each) for each in many], (EXP, 1, 3), (EXP, 3, 4))
        session.run(Drop((2, 3, 4, *many)))
    assert session.interpreter.counts.windows == 6
