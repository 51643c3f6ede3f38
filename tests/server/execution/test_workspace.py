"""Scratch memory counts in the quota before a kernel allocates it."""

from __future__ import annotations

from typing import Any

import pytest

from burn_remote_protocol.dtypes import F32, F64, I32
from burn_remote_protocol.errors import OperationFailed, QuotaExceeded
from burn_remote_protocol.operations.row import Operation, Signature
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.access.quota import Pool, Quota
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.execution.interpreter import Interpreter
from support.kernels import signature

MEBIBYTE = 2**20


def spec(*shape: int, dtype: Any = F32) -> TensorSpec:
    return TensorSpec(shape, dtype)


def ctc_backward(steps: int, length: int) -> Signature:
    batch = spec(1, dtype=I32)
    targets = spec(1, length, dtype=I32)
    return signature(
        "Module.CtcLossBackward", spec(steps, 1, 2), targets, batch, batch, spec(1), blank=1
    )


class Running:
    """An interpreter of a session with a small quota, and its failures."""

    def __init__(self, max_bytes: int, pool: Pool | None = None) -> None:
        self.failures: list[OperationFailed] = []
        self.quota = Quota(max_bytes, 100, pool=pool)
        self.interpreter = Interpreter(
            NumpyBackend(), self.quota, lambda _, failure: self.failures.append(failure)
        )

    def execute(self, made: Signature) -> None:
        """Run an operation on zeros."""
        for number, use in enumerate(made.input_uses):
            zeros = signature("Base.Zeros", out=use.spec)
            self.interpreter.execute(Operation(zeros, (number,)))
        tensors = tuple(range(len(made.input_uses) + made.output_count))
        self.interpreter.execute(Operation(made, tensors))


def test_an_operation_whose_scratch_memory_does_not_fit_fails_before_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = Running(64 * MEBIBYTE)
    running.execute(ctc_backward(4000, 4000))
    (failure,) = running.failures
    assert isinstance(failure, QuotaExceeded)
    assert "bytes of scratch memory do not fit" in failure.reason
    assert "max_session_bytes" in failure.reason


def test_scratch_memory_counts_in_the_pool_of_all_sessions_too() -> None:
    pool = Pool(64 * MEBIBYTE)
    running = Running(1024 * MEBIBYTE, pool)
    running.execute(ctc_backward(4000, 4000))
    (failure,) = running.failures
    assert "max_total_bytes" in failure.reason


def test_scratch_memory_is_given_back_after_success_and_after_failure() -> None:
    running = Running(64 * MEBIBYTE)
    running.execute(ctc_backward(40, 2000))
    assert not running.failures
    held = sum(use.spec.nbytes for use in ctc_backward(40, 2000).input_uses)
    assert running.quota.bytes == held + 40 * 2 * 4
    running.execute(
        signature(
            "Module.Interpolate",
            spec(1, 1, 1, 100_000, dtype=F64),
            output_size=(1, 400_000),
            mode="Unknown",
            align_corners=False,
        )
    )
    assert len(running.failures) == 1
    running.interpreter.tensors.clear()
    assert running.quota.bytes == 0
