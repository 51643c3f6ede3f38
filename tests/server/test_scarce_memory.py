"""Sessions on a device that is out of memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.errors import OperationFailed, OutOfMemory
from burn_remote_protocol.operations.row import Operation, Signature
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.access.quota import Quota
from burn_remote_server.backends import open_backends
from burn_remote_server.backends.array.array_session import ArraySession
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.execution.interpreter import Interpreter
from support.kernels import signature

SPEC = TensorSpec((4,), DType.from_wire("F32"))


class Crowded:
    """A device on which an operation succeeds only after a number of memory cleanups."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, needed: int) -> None:
        self.cleanups = 0
        self.runs = 0

        def bind(session: Any, signed: Signature) -> Any:
            def run(*tensors: Any) -> Any:
                self.runs += 1
                if self.cleanups < needed:
                    raise MemoryError
                return np.full(4, 7, np.float32)

            return run

        def cleanup(backend: Any) -> None:
            self.cleanups += 1

        monkeypatch.setattr(ArraySession, "bind", bind)
        monkeypatch.setattr(NumpyBackend, "memory_cleanup", cleanup)


def started(failures: list[OperationFailed]) -> Interpreter:
    (backend,) = open_backends("numpy", 1)
    return Interpreter(backend, Quota(2**20, 100), lambda _, failure: failures.append(failure))


def test_an_operation_without_room_runs_once_more_after_the_caches_were_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crowded = Crowded(monkeypatch, needed=1)
    failures: list[OperationFailed] = []
    interpreter = started(failures)

    interpreter.execute(Operation(signature("Base.Ones", out=SPEC), (1,)))

    assert interpreter.tensors.read(1, SPEC).tolist() == [7, 7, 7, 7]
    assert (crowded.runs, crowded.cleanups, failures) == (2, 1, [])
    assert interpreter.quota.bytes == 16


def test_an_operation_without_room_fails_its_results_and_takes_no_quota(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crowded = Crowded(monkeypatch, needed=5)
    failures: list[OperationFailed] = []
    interpreter = started(failures)

    interpreter.execute(Operation(signature("Base.Ones", out=SPEC), (1,)))

    with pytest.raises(OutOfMemory, match="enough memory for 16 bytes"):
        interpreter.tensors.read(1, SPEC)
    assert (crowded.runs, crowded.cleanups, len(failures)) == (2, 1, 1)
    assert interpreter.quota.bytes == 0


def test_quotas_start_from_the_memory_that_a_device_may_use() -> None:
    (backend,) = open_backends("numpy", 1, memory_limit=1000)

    assert backend.memory_bytes() == 1000
    assert backend.memory().total == 1000


@pytest.mark.parametrize("step", ["write", "finished"])
def test_an_upload_without_room_for_its_elements_fails_alone(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def full(*arguments: Any) -> None:
        raise MemoryError

    with br.LocalDevice() as device:
        kept = br.ones((3,), device=device)
        assert kept.tolist() == [1, 1, 1]
        with monkeypatch.context() as patched:
            patched.setattr(NumpyBackend, step, full)
            missing = br.tensor(np.ones(1_000_000), device=device)
            with pytest.raises(OutOfMemory, match=r"not enough memory for float64\[1000000\]"):
                missing.numpy()
        assert (kept + 1).tolist() == [2, 2, 2]
        assert br.tensor(np.ones(1_000_000), device=device).sum().item() == 1_000_000


def test_an_upload_that_fails_gives_its_quota_back(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = started([])
    tensors = interpreter.tensors

    def full(backend: Any, upload: Any, dtype: DType) -> None:
        raise MemoryError

    monkeypatch.setattr(NumpyBackend, "finished", full)
    slot = tensors.begin_upload(1, SPEC, SPEC.nbytes)
    with pytest.raises(MemoryError):
        tensors.finish_upload(1, slot)
    tensors.drop([1])
    assert (interpreter.quota.bytes, interpreter.quota.tensors) == (0, 0)
