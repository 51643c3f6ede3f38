"""Graphs write results into inputs that the batch drops, and only into those."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from burn_remote_protocol.dtypes import F32, I64
from burn_remote_protocol.errors import OperationFailed
from burn_remote_protocol.messages import Define, DefineGraph, Drop, Read, Upload
from burn_remote_protocol.tensors import TensorData, TensorSpec
from support.engines import EngineSession, floats, vector
from support.kernels import signature
from support.memory_reuse import forced_reuse

SIZE = 100_000  # 400 kB, more than the smallest result that takes the memory of an input
ADD, TIMES, VIEW = range(3)
SQUARE = TensorSpec((SIZE // 10, 10), F32)
STEP = 4096
VALUES = np.arange(SIZE, dtype=np.float32)


@pytest.fixture
def session() -> EngineSession:
    session = EngineSession()
    session.run(
        Define(ADD, signature("Numeric.Add", vector(SIZE), vector(SIZE))),
        Define(TIMES, signature("Numeric.MulScalar", vector(SIZE), rhs=2.0)),
        Define(VIEW, signature("Base.Reshape", vector(SIZE), out=SQUARE)),
        # step(w, x) = w * 2 + x
        DefineGraph(STEP, 2, ((TIMES, 0), (ADD, 2, 1)), (3,)),
        # The weight is the result of an operation: an uploaded array does not own its memory.
        Upload(6, floats(*VALUES / 2)),
        (TIMES, 6, 1),
        Drop((6,)),
        Upload(2, floats(*[1.0] * SIZE)),
    )
    return session


def place_of(session: EngineSession, tensor: int) -> int:
    return int(session.tensors.arrays[tensor].ctypes.data)


def test_the_successor_of_a_weight_that_a_later_task_drops_takes_its_memory(
    session: EngineSession,
) -> None:
    weight, used = place_of(session, 1), (session.quota.tensors, session.quota.total_bytes)
    session.run((STEP, 1, 2, 3), (TIMES, 2, 4), Drop((1, 4)))
    assert place_of(session, 3) == weight
    session.run((STEP, 3, 2, 5), Drop((3,)))
    assert place_of(session, 5) == weight
    assert [*session.tensors.arrays] == [2, 5]
    np.testing.assert_array_equal(session.tensors.arrays[5], VALUES * 4 + 3)
    assert (session.quota.tensors, session.quota.total_bytes) == used


@pytest.mark.parametrize(
    "tasks",
    [
        [(STEP, 1, 2, 3)],
        [(STEP, 1, 2, 3), Drop((2,))],
        [(STEP, 1, 2, 3), (TIMES, 1, 4), Drop((1,))],
        [(STEP, 1, 2, 3), (STEP, 2, 1, 4), Drop((1,))],
        [(STEP, 1, 2, 3), Read(9, 1, vector(SIZE)), Drop((1,))],
        [(VIEW, 1, 8), (STEP, 1, 2, 3), Drop((1,))],
    ],
    ids=["kept", "another dropped", "used", "used by a graph", "read", "a view exists"],
)
def test_a_weight_that_something_else_uses_stays_as_it_was(
    session: EngineSession, tasks: list[Any]
) -> None:
    weight = session.tensors.arrays[1]
    place = weight.ctypes.data
    del weight
    session.run(*tasks)
    np.testing.assert_array_equal(session.tensors.arrays[3], VALUES * 2 + 1)
    assert place_of(session, 3) != place
    if 8 in session.tensors.arrays:
        np.testing.assert_array_equal(session.tensors.arrays[8].reshape(-1), VALUES)


def test_a_weight_given_twice_is_not_overwritten(session: EngineSession) -> None:
    place = place_of(session, 1)
    session.run((STEP, 1, 1, 3), Drop((1,)))
    assert place_of(session, 3) != place
    np.testing.assert_array_equal(session.tensors.arrays[3], VALUES * 3)


def test_a_step_that_fails_after_a_weight_was_overwritten_fails_alone(
    session: EngineSession,
) -> None:
    places = TensorSpec((2,), I64)
    wrong = TensorData(np.array([0, SIZE], np.int64).tobytes(), (2,), I64)
    session.run(
        Define(9, signature("Base.Select", vector(SIZE), places, dim=0)),
        DefineGraph(STEP, 2, ((TIMES, 0), (9, 2, 1), (TIMES, 2)), (3, 4)),
        Upload(7, wrong),
        (STEP, 1, 7, 3, 4),
        Drop((1,)),
    )
    with pytest.raises(OperationFailed, match=r"Base.Select"):
        session.values(3, size=2)
    np.testing.assert_array_equal(session.tensors.arrays[4], VALUES * 4)


SMALL_ADD, SMALL_TIMES, SMALL_TANH, SMALL_VIEW, SMALL_RELU = range(20, 25)
SMALL = {
    SMALL_ADD: signature("Numeric.Add", vector(3), vector(3)),
    SMALL_TIMES: signature("Numeric.MulScalar", vector(3), rhs=0.5),
    SMALL_TANH: signature("Float.Tanh", vector(3)),
    SMALL_VIEW: signature("Base.Reshape", vector(3), out=vector(3)),
    SMALL_RELU: signature("Numeric.Clamp", vector(3), min=-0.25, max=0.25),
}


@st.composite
def _steps(draw: st.DrawFn) -> tuple[tuple[int, ...], ...]:
    """Draw the steps of a graph with three inputs, all of which are used."""
    steps: list[tuple[int, ...]] = [(SMALL_ADD, 0, 1), (SMALL_TIMES, 2)]
    for kind in draw(st.lists(st.sampled_from([*SMALL]), max_size=8)):
        slots = st.integers(0, len(steps) + 2)
        steps.append((kind, draw(slots), *([draw(slots)] if kind == SMALL_ADD else [])))
    return tuple(steps)


def _small_session() -> EngineSession:
    session = EngineSession()
    session.run(*(Define(number, signed) for number, signed in SMALL.items()))
    for tensor in range(4):
        session.upload(9, tensor - 1.0, 0.5, -tensor)
        session.run((SMALL_TIMES, 9, tensor))  # an array that owns its memory
    return session


@given(st.data(), _steps())
def test_random_batches_give_the_results_of_single_operations(
    data: st.DataObject, steps: tuple[tuple[int, ...], ...]
) -> None:
    """Results of every size may take the memory of dying inputs here."""
    outputs = tuple(data.draw(st.sets(st.integers(3, len(steps) + 2), min_size=1)))
    plain = _small_session()
    with forced_reuse():
        session = _small_session()
        session.run(DefineGraph(STEP, 3, steps, outputs))
        tasks: list[Any] = []
        alive, fresh = [0, 1, 2, 3], 100
        for _ in range(data.draw(st.integers(1, 4))):
            inputs = [data.draw(st.sampled_from(alive)) for _ in range(3)]
            made = range(fresh, fresh + len(outputs))
            tasks.append((STEP, *inputs, *made))
            named = dict(enumerate(inputs))
            for place, (kind, *slots) in enumerate(steps):
                named[3 + place] = 10_000 + fresh * 100 + place
                plain.run((kind, *[named[slot] for slot in slots], named[3 + place]))
            for tensor, slot in zip(made, outputs, strict=True):
                plain.run((SMALL_VIEW, named[slot], tensor))
            alive += made
            fresh += len(outputs)
            dropped = data.draw(st.sets(st.sampled_from(alive), max_size=len(alive) - 1))
            if dropped:
                tasks.append(Drop(tuple(dropped)))
                alive = [tensor for tensor in alive if tensor not in dropped]
        session.run(*tasks)
    for tensor in alive:
        assert session.values(tensor, size=3) == plain.values(tensor, size=3)
    assert session.quota.tensors == len(session.tensors)
