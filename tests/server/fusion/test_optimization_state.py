"""The state of an optimization is plain data, from which an equal optimization is built."""

from __future__ import annotations

import copy
from typing import Any

import msgpack
import numpy as np
import pytest

from burn_remote_protocol.errors import UsageError
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.fusion.cpu.runtime import NumpyFusionRuntime
from burn_remote_server.fusion.fuser import Optimization
from burn_remote_server.programs.graphs import GraphPlan
from support.random_programs import drawn_program, forced_fusion, run_graph, same_bits

RUNTIME = NumpyFusionRuntime()


def optimizations(seed: int) -> tuple[GraphPlan, list[Optimization]]:
    """Return the optimizations of a random program."""
    with forced_fusion(16):
        _, plan = run_graph(drawn_program(seed), fused=True)
    return plan, [block.execution.optimization for block in plan.blocks.values()]


def inputs_of(optimization: Any) -> list[Any]:
    """Return random inputs for an optimization."""
    random = np.random.default_rng(0)
    return [
        (random.random(operand.shape) * 9).astype(operand.dtype)
        for operand in optimization.program_inputs
    ]


@pytest.mark.parametrize("seed", range(30))
def test_an_optimization_that_is_built_from_its_state_gives_the_same_results(seed: int) -> None:
    _, found = optimizations(seed)
    for optimization in found:
        state = msgpack.unpackb(msgpack.packb(optimization.to_state()))
        restored = RUNTIME.from_state(NumpyBackend(), copy.deepcopy(state))
        assert restored.to_state() == state == optimization.to_state()
        assert (restored.name, len(restored)) == (optimization.name, len(optimization))
        assert (restored.inputs, restored.outputs) == (optimization.inputs, optimization.outputs)
        arrays = inputs_of(optimization)
        with np.errstate(all="ignore"), forced_fusion(16):
            outcomes: list[Any] = []
            for each in (optimization, restored):
                try:
                    outcomes.append(each.execute(arrays))
                except UsageError as error:  # a division by 0, a negative power
                    outcomes.append(str(error))
        one, other = outcomes
        assert type(one) is type(other)
        if isinstance(one, str):
            assert one == other
        else:
            assert all(map(same_bits, one, other))


def test_the_programs_have_optimizations() -> None:
    assert sum(len(optimizations(seed)[1]) for seed in range(30)) > 30


def test_the_state_of_an_unknown_optimization_is_refused() -> None:
    with pytest.raises(UsageError, match="'matmul'; this runtime has elementwise, reduce"):
        RUNTIME.from_state(NumpyBackend(), {"name": "matmul", "shape": [], "operations": []})
