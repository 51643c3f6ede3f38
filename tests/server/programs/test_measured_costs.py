"""Measured executions correct the estimates of costs."""

from __future__ import annotations

import numpy as np

from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.messages import Define, DefineGraph, Upload
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.programs.measured_costs import (
    DECAY,
    LEAST_SHARE,
    MEASURED_COST,
    MeasuredCost,
    is_measurable,
)
from support.engines import EngineSession
from support.kernels import signature

SIDE = 64
SQUARE = TensorSpec((SIDE, SIDE), F32)
PRODUCT = signature("Float.Matmul", SQUARE, SQUARE, out=SQUARE)
EIGENVALUES = signature("LinearAlgebra.Eigvalsh", SQUARE)
GRAPH = 4096


def measured(cost: int) -> MeasuredCost:
    found = MeasuredCost()
    found.estimate(cost, is_measurable=True)
    return found


def test_small_estimates_are_not_measured() -> None:
    assert not measured(MEASURED_COST - 1).is_measured
    assert measured(MEASURED_COST).is_measured


def test_the_first_measurement_replaces_the_estimate() -> None:
    found = measured(1_000_000)
    assert found.likely_cost == 1_000_000
    found.measure(100_000)
    assert found.likely_cost == 100_000
    assert found.cost == 1_000_000


def test_a_longer_execution_counts_at_once_and_a_shorter_one_little_by_little() -> None:
    found = measured(1_000_000)
    found.measure(100_000)
    found.measure(200_000)
    assert found.likely_cost == 200_000
    found.measure(100_000)
    assert found.likely_cost == 200_000 - 100_000 // DECAY
    for _ in range(100):
        found.measure(100_000)
    assert 100_000 <= found.likely_cost < 100_000 + DECAY


def test_the_likely_cost_is_at_least_a_share_of_the_estimate() -> None:
    found = measured(1_000_000)
    found.measure(1)
    assert found.likely_cost == int(LEAST_SHARE * 1_000_000)


def test_operations_of_lapack_are_not_measured() -> None:
    session = NumpyBackend().open_session()
    assert is_measurable(PRODUCT, session)
    assert not is_measurable(EIGENVALUES, session)


def test_operations_of_a_device_that_computes_asynchronously_are_not_measured() -> None:
    session = NumpyBackend().open_session()
    session.computes_asynchronously = True
    assert not is_measurable(PRODUCT, session)


def product_session() -> EngineSession:
    """Return a session with the tensors 1 and 2, which the operation 7 multiplies."""
    session = EngineSession()
    elements = np.ones((SIDE, SIDE), np.float32).tobytes()
    session.run(Define(7, PRODUCT), Define(8, EIGENVALUES))
    session.run(*(Upload(tensor, TensorData(elements, *SQUARE)) for tensor in (1, 2)))
    return session


def test_executions_are_measured() -> None:
    session = product_session()
    plan = session.interpreter.numbered[7]
    assert plan.is_measured
    session.run((7, 1, 2, 3))
    assert plan.likely_cost != plan.cost


def test_calls_of_graphs_are_measured() -> None:
    session = product_session()
    session.run(DefineGraph(GRAPH, 2, ((7, 0, 1), (7, 2, 1)), (3,)), (GRAPH, 1, 2, 3))
    plan = session.interpreter.numbered[GRAPH]
    assert plan.is_measured
    assert plan.likely_cost != plan.cost


def test_a_graph_with_an_operation_of_lapack_is_not_measured() -> None:
    session = product_session()
    session.run(DefineGraph(GRAPH, 2, ((7, 0, 1), (8, 2)), (3,)))
    assert not session.interpreter.numbered[GRAPH].is_measured
