"""The interpreter runs operations in order; their failures become the values of their outputs."""

from __future__ import annotations

import gc
import signal
import sys
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.dtypes import I32
from burn_remote_protocol.errors import (
    DeviceLost,
    OperationFailed,
    OutOfMemory,
    QuotaExceeded,
    SessionLost,
    ShapeMismatch,
    UnknownTensor,
)
from burn_remote_protocol.messages import Define, Drop, Expose, Read, Sync
from burn_remote_protocol.operations.row import Operation, Signature
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.tensors import Slice, TensorSpec, TensorStatus
from burn_remote_server.backends.array import ArraySession
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.custom import NO_OPERATIONS, CustomOperations
from burn_remote_server.execution import plan_table
from support.engines import EngineSession, vector
from support.kernels import signature

ADD = signature("Numeric.Add", vector(2), vector(2))
NEGATE = signature("Numeric.MulScalar", vector(2), rhs=-1.0)
MAXIMA = signature("Numeric.MaxDimWithIndices", TensorSpec((2, 3), ADD.call.inputs[0].dtype), dim=1)


def last_use(signed: Signature, position: int) -> Signature:
    """Return a signature with one input marked as used for the last time."""
    arguments = list(signed.arguments)
    argument = arguments[position]
    assert isinstance(argument, TensorUse)
    arguments[position] = argument._replace(status=TensorStatus.READ_WRITE)
    return replace(signed, arguments=tuple(arguments))


class Kernels(NumpyBackend):
    """A device on which each kernel call takes the next of ``steps``: a result or an exception."""

    def __init__(self, *steps: Any) -> None:
        super().__init__()
        self.steps = [*steps]
        self.cleanups = 0

    def open_session(self, custom: CustomOperations = NO_OPERATIONS) -> ArraySession:
        return ScriptedSession(self, {}, lambda seed: None, custom)

    def memory_cleanup(self) -> None:
        self.cleanups += 1

    def call(self, *inputs: Any) -> Any:
        step = self.steps.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step


class ScriptedSession(ArraySession):
    def bind(self, signature: Signature) -> Any:
        assert isinstance(self._backend, Kernels)
        return self._backend.call


def started(*values: float, backend: Any = None, **options: Any) -> EngineSession:
    session = EngineSession(backend=backend, **options)
    session.upload(1, *(values or (1, 2)))
    return session


# Whether ``execute`` sends operations as numbered tasks.
_are_numbered = False


@pytest.fixture(autouse=True, params=["in full", "numbered"])
def operations(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with operations that are sent in full, and with numbered ones."""
    monkeypatch.setattr(sys.modules[__name__], "_are_numbered", request.param == "numbered")


def execute(session: EngineSession, signed: Signature, tensors: tuple[int, ...]) -> None:
    """Execute an operation as a message or as a task of a batch."""
    if _are_numbered:
        session.interpreter.plans.define(0, signed)
        session.run((0, *tensors))
    else:
        session.interpreter.execute(Operation(signed, tensors))


class Signalling(Kernels):
    """A device whose kernels get a signal once they have changed something."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def call(self, *inputs: Any) -> Any:
        self.calls += 1
        signal.raise_signal(signal.SIGUSR1)
        return np.zeros(2, np.float32)


@pytest.mark.parametrize("kind", [KeyError, TimeoutError])
def test_an_operation_that_a_signal_handler_ends_is_not_run_again(kind: type[Exception]) -> None:
    errors: list[Exception] = []

    def handle(number: int, frame: object) -> None:
        if errors:
            raise errors.pop()

    kernels = Signalling()
    session = started(backend=kernels)
    previous = signal.signal(signal.SIGUSR1, handle)
    try:
        execute(session, NEGATE, (1, 2))
        errors.append(kind("of the handler"))
        with pytest.raises(kind):
            execute(session, NEGATE, (1, 2))
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert kernels.calls == 2


def test_a_refused_operation_keeps_none_of_its_inputs_alive() -> None:
    session = started(max_operation_cost=1)
    released = weakref.ref(session.tensors.arrays[1])
    execute(session, NEGATE, (1, 2))
    session.run(Read(1, 2, vector(2)), Sync(2), Expose(2, vector(2), 1, b"x" * 32, 1.0))
    failure = session.tensors.slots[2]
    assert isinstance(failure, QuotaExceeded)
    assert failure.__traceback__ is None
    session.run(Drop((1,)))
    assert released() is None


def test_failed_outputs_that_are_kept_count_in_the_quota() -> None:
    session = started(max_bytes=2**20, max_tensors=10**6)
    outputs = range(10, 9000)
    for tensor in outputs:
        execute(session, NEGATE, (7, tensor))
    assert type(session.tensors.slots[10]) is UnknownTensor
    assert 8999 not in session.tensors.slots
    for unkept in (2000, 8999):
        with pytest.raises(QuotaExceeded, match="the reason could not be kept"):
            session.tensors.array(unkept)
    assert 2**20 - 2048 < session.quota.total_bytes <= 2**20
    session.outbox.failures.clear()
    session.run(Drop(tuple(outputs)))
    assert session.quota.total_bytes == 8


def test_signatures_count_in_the_quota_until_the_session_ends() -> None:
    session = EngineSession(max_bytes=2**20)
    with pytest.raises(SessionLost, match="a signature did not fit into the memory limits"):
        for number in range(4096):
            session.run(Define(number, signature("Base.Zeros", out=vector(number + 1))))
    assert len(session.interpreter.numbered) < 1000
    assert 2**19 < session.quota.total_bytes <= 2**20
    session.engine.close()
    assert session.quota.total_bytes == 0


def test_operations_whose_signatures_do_not_fit_in_the_quota_run() -> None:
    session = EngineSession(max_bytes=2**20)
    for size in range(1, 1000):
        execute(session, signature("Base.Ones", out=vector(size)), (1,))
        session.run(Drop((1,)))
    execute(session, signature("Base.Ones", out=vector(2**17)), (1,))  # half of the quota
    assert session.values(1, size=2**17) == [1.0] * 2**17


def test_operations_run_in_order_and_count() -> None:
    session = started()
    for operation, tensors in ((NEGATE, (1, 2)), (ADD, (1, 2, 3)), (NEGATE, (3, 1))):
        execute(session, operation, tensors)
    assert session.values(3, size=2) == [0, 0]
    assert session.values(1, size=2) == [0, 0]
    assert session.interpreter.executed == 3


def test_an_output_may_replace_an_input() -> None:
    session = started()
    execute(session, ADD, (1, 1, 1))
    assert session.values(1, size=2) == [2, 4]
    assert (session.quota.bytes, session.quota.tensors) == (8, 1)


def test_an_output_may_replace_a_failure() -> None:
    session = started()
    execute(session, NEGATE, (7, 2))
    execute(session, NEGATE, (1, 2))
    assert session.values(2, size=2) == [-1, -2]
    assert (session.quota.bytes, session.quota.tensors) == (16, 2)
    assert not session.tensors.slots


def test_a_view_counts_the_memory_that_it_keeps_alive() -> None:
    session = started(*range(1000))
    row = signature("Base.Slice", vector(1000), ranges=(Slice(0, 500, 1),))
    execute(session, row, (1, 2))
    session.run(Drop((1,)))
    assert session.quota.total_bytes == 4000
    assert session.values(2, size=500) == [*range(500)]


def test_the_last_use_of_an_input_frees_it() -> None:
    session = started()
    execute(session, last_use(NEGATE, 0), (1, 2))
    assert list(session.tensors.arrays) == [2]
    assert (session.quota.bytes, session.quota.tensors) == (8, 1)


def test_the_last_use_of_an_input_frees_it_although_the_operation_fails() -> None:
    session = started(1, 2, 3)
    execute(session, last_use(NEGATE, 0), (1, 2))
    assert not session.tensors.arrays
    assert session.quota.bytes == 0
    assert [tensors for tensors, _ in session.outbox.failures] == [(2,)]


def test_all_outputs_of_a_failed_operation_have_its_failure() -> None:
    session = EngineSession()
    execute(session, MAXIMA, (9, 2, 3))
    ((tensors, failure),) = session.outbox.failures
    assert tensors == (2, 3)
    assert session.tensors.slot(2) is session.tensors.slot(3) is failure
    assert failure.tensor == 2


def test_several_outputs_are_stored_and_counted() -> None:
    session = EngineSession()
    session.tensors.store(1, np.array([[1, 5, 2], [4, 3, 0]], np.float32))
    execute(session, MAXIMA, (1, 2, 3))
    assert session.tensors.array(2).ravel().tolist() == [5, 4]
    assert session.tensors.array(3).ravel().tolist() == [1, 0]
    assert session.quota.tensors == 3


def test_an_error_of_a_kernel_is_the_failure_of_its_outputs_only() -> None:
    session = started(backend=Kernels(ZeroDivisionError("in the kernel"), np.ones(2, np.float32)))
    execute(session, NEGATE, (1, 2))
    execute(session, NEGATE, (1, 3))
    ((_, failure),) = session.outbox.failures
    assert failure.reason == "ZeroDivisionError: in the kernel"
    assert failure.operation == "Numeric.MulScalar"
    assert session.values(3, size=2) == [1, 1]
    assert session.quota.tensors == 2


def test_an_operation_that_lacks_memory_runs_again_after_a_cleanup() -> None:
    backend = Kernels(MemoryError(), np.ones(2, np.float32))
    session = started(backend=backend)
    execute(session, NEGATE, (1, 2))
    assert backend.cleanups == 1
    assert session.values(2, size=2) == [1, 1]
    assert not session.outbox.failures


class LibraryWithoutMemory(RuntimeError):
    """The error of a device's library that could not allocate memory."""


class DeviceWithLibrary(Kernels):
    def explained(self, error: Exception) -> Exception:
        return MemoryError() if isinstance(error, LibraryWithoutMemory) else error


def test_an_operation_runs_again_after_a_cleanup_if_a_library_lacked_memory() -> None:
    backend = DeviceWithLibrary(LibraryWithoutMemory(), np.ones(2, np.float32))
    session = started(backend=backend)
    execute(session, NEGATE, (1, 2))
    assert backend.cleanups == 1
    assert session.values(2, size=2) == [1, 1]
    assert not session.outbox.failures


def test_an_operation_that_lacks_memory_twice_fails_and_returns_its_quota() -> None:
    session = started(backend=Kernels(MemoryError(), MemoryError()))
    execute(session, NEGATE, (1, 2))
    ((_, failure),) = session.outbox.failures
    assert isinstance(failure, OutOfMemory)
    assert (session.quota.bytes, session.quota.tensors) == (8, 1)


def test_an_interrupt_passes_and_gives_the_quota_back() -> None:
    session = started(backend=Kernels(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        execute(session, NEGATE, (1, 2))
    assert (session.quota.bytes, session.quota.tensors) == (8, 1)
    assert not session.outbox.failures


def test_a_result_beyond_the_quota_fails_before_its_kernel_runs() -> None:
    backend = Kernels()  # running any kernel would raise IndexError
    session = started(backend=backend, max_bytes=15)
    execute(session, NEGATE, (1, 2))
    ((_, failure),) = session.outbox.failures
    assert isinstance(failure, QuotaExceeded)
    assert session.quota.bytes == 8


def test_an_operation_that_costs_too_much_fails_before_its_kernel_runs() -> None:
    session = started(backend=Kernels(), max_operation_cost=0)
    execute(session, NEGATE, (1, 2))
    ((_, failure),) = session.outbox.failures
    assert isinstance(failure, QuotaExceeded)
    assert "max_operation_cost" in failure.reason


def test_inputs_of_another_dtype_fail_the_operation() -> None:
    session = started()
    session.tensors.store(2, np.zeros(2, np.int32))
    execute(session, ADD, (1, 2, 3))
    ((_, failure),) = session.outbox.failures
    assert "int32[2]" in failure.reason
    assert str(I32) not in failure.operation


def test_an_unknown_input_fails_every_output_and_a_failed_one_is_passed_on_silently() -> None:
    session = started()
    execute(session, ADD, (1, 9, 2))
    execute(session, ADD, (2, 1, 3))
    ((_, failure),) = session.outbox.failures
    assert isinstance(failure, UnknownTensor)
    assert session.tensors.slot(3) is session.tensors.slot(2) is failure


class FailingKernels(Kernels):
    """A device on which each kernel call fails."""

    def call(self, *inputs: Any) -> Any:
        raise ShapeMismatch("why")


def test_a_failed_operation_keeps_no_input_alive() -> None:
    session = started(1, 2, backend=FailingKernels())
    session.upload(2, 3, 4)
    arrays = [weakref.ref(session.tensors.arrays[tensor]) for tensor in (1, 2)]
    gc.disable()
    try:
        execute(session, ADD, (1, 2, 3))
        for tensor in (1, 2):
            session.tensors.forget(tensor)
        assert all(array() is None for array in arrays)
    finally:
        gc.enable()


def test_a_failure_that_is_passed_on_keeps_no_traceback() -> None:
    session = started()
    execute(session, ADD, (1, 9, 2))
    for output in range(3, 10):
        execute(session, ADD, (2, 1, output))
    ((_, failure),) = session.outbox.failures
    assert session.tensors.slot(9) is failure
    assert failure.__traceback__ is None  # its frames would keep arrays alive


def test_signatures_without_numbers_are_prepared_once_and_the_oldest_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan_table, "PLAN_CACHE_LENGTH", 2)
    session = started()
    third = signature("Numeric.Abs", vector(2))
    session.interpreter.execute(Operation(ADD, (1, 1, 2)))
    prepared = session.interpreter.plans.known_plan(ADD)
    session.interpreter.execute(Operation(ADD, (1, 1, 2)))
    assert session.interpreter.plans.known_plan(ADD) is prepared is not None
    session.interpreter.execute(Operation(NEGATE, (1, 2)))
    session.interpreter.execute(Operation(third, (1, 2)))
    assert session.interpreter.plans.known_plan(ADD) is None
    assert session.interpreter.plans.known_plan(third) is not None


def test_large_signatures_beyond_the_free_bytes_end_the_session_or_count() -> None:
    session = EngineSession(max_bytes=1)
    many = signature("Base.Cat", tuple(vector(1) for _ in range(1000)), dim=0)
    with pytest.raises(SessionLost, match=r"large signature .* raise max_session_bytes"):
        for number in range(100):
            session.interpreter.plans.define(number, many)


def test_nothing_runs_on_a_lost_device() -> None:
    session = started(backend=Kernels())
    session.interpreter.plans.define(0, NEGATE)
    session.interpreter.lose("the GPU is gone")
    session.interpreter.lose("a later reason")
    session.interpreter.plans.define(1, ADD)
    session.run((0, 1, 2), (1, 1, 1, 3))
    assert [type(failure) for _, failure in session.outbox.failures] == [DeviceLost, DeviceLost]
    assert {failure.reason for _, failure in session.outbox.failures} == {"the GPU is gone"}


def test_clearing_frees_everything_once() -> None:
    session = started()
    session.interpreter.plans.define(0, NEGATE)
    session.run((0, 1, 2))
    session.interpreter.clear()
    session.interpreter.clear()
    assert (session.quota.bytes, session.quota.tensors) == (0, 0)
    assert not session.interpreter.numbered
    assert len(session.tensors) == 0
    assert all(isinstance(failure, OperationFailed) for _, failure in session.outbox.failures)
