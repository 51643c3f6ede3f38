"""A failure at every step in turn: graphs and fused streams fail what single operations fail.

One function of the array library is made to raise: for every step of several programs in turn,
before it writes or after it has written everything, in whole arrays and in a block of a fused
program. The tensors that fail, their errors, the bits of all others and the counts of the quota are
those of the operations one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from burn_remote_protocol.errors import OperationFailed
from support import random_programs
from support.engines import EngineSession
from support.failing_kernels import FailingKernel
from support.random_programs import (
    RandomProgram,
    drawn,
    forced_fusion,
    run_eagerly,
    run_graph,
    run_stream,
)

SEEDS = range(4)
ERRORS: dict[str, Callable[[], Exception]] = {
    "its own error": lambda: OperationFailed("it was made to fail"),
    "no memory": lambda: MemoryError("no room"),
    "a defect": lambda: ValueError("a defect"),
}


class ArmedSession(EngineSession):
    """A session whose failing kernel is armed for the invocations after ``batches_before``."""

    failing: FailingKernel
    batches_before = 0

    def run(self, *tasks: Any) -> None:
        is_call = any(type(task) is tuple for task in tasks)
        self.failing.is_armed = is_call and self.batches_before <= 0
        if is_call:
            self.batches_before -= 1
        try:
            super().run(*tasks)
        finally:
            self.failing.is_armed = False


def outcomes(program: RandomProgram, failing: FailingKernel, block_elements: int) -> dict[str, Any]:
    """Run a program in all ways; return its outputs, and the counts of streams."""

    def armed(before: int) -> Any:
        class Session(ArmedSession):
            batches_before = before

        Session.failing = failing
        return patch.object(random_programs, "EngineSession", Session)

    found: dict[str, Any] = {}
    with failing.installed():
        with armed(0):
            found["single operations"] = run_eagerly(program)
            found["graph"], _ = run_graph(program, fused=False)
            with forced_fusion(block_elements):
                found["fused graph"], _ = run_graph(program, fused=True)
        with armed(2):
            found["batch"], plain = run_stream(program, fused=False)
            with forced_fusion(block_elements):
                found["fused batch"], fused = run_stream(program, fused=True)
    for session in (plain, fused):
        counts = session.quota.bytes, session.quota.tensors
        found.setdefault("counts", []).append((counts, session.tensors.arrays.keys()))
    found["fallbacks"] = fused.interpreter.counts.fallbacks
    return found


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("after", [False, True], ids=["before it writes", "after it has written"])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_failing_step_fails_does_not_depend_on_fusion(
    seed: int, after: bool, error: str
) -> None:
    program = drawn(Random(seed))
    if seed % 2:  # nothing dies inside
        program.outputs = (*range(program.input_count, len(program.specs)),)
    raised = fallbacks = 0
    for place, target in enumerate(program.signatures):
        failing = FailingKernel(target, ERRORS[error], after=after)
        found = outcomes(program, failing, 16 if seed % 3 else 1000)
        raised += failing.raised
        fallbacks += found.pop("fallbacks")
        expected = found.pop("single operations")
        plain, fused = found.pop("counts")
        assert plain == fused, f"step {place}"
        for way, outputs in found.items():
            problem = random_programs.difference(outputs, expected)
            steps = [str(each.row) for each in program.signatures]
            assert problem is None, f"step {place}, {way}: {problem}; {steps} {program.steps}"
    assert raised
    assert bool(fallbacks) == (seed % 2 == 0)  # else nothing dies, and nothing is fused
