"""Plans bind checked signatures, count scratch memory, and refuse what could never run."""

from __future__ import annotations

import signal
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.dtypes import BOOL_U32, F32, DType, DTypeUsage, QuantScheme
from burn_remote_protocol.errors import (
    DTypeMismatch,
    OperationFailed,
    OutOfMemory,
    QuotaExceeded,
    ShapeMismatch,
)
from burn_remote_protocol.operations.row import Operation, Signature
from burn_remote_protocol.operations.table import TABLE
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.tensors import TensorSpec, TensorStatus
from burn_remote_server.access.quota import Quota
from burn_remote_server.backends.array import ArraySession
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.execution.interpreter import Interpreter
from burn_remote_server.fusion.cpu.kernel_compiler import opened_compiler
from burn_remote_server.fusion.cpu.runtime import NumpyFusionRuntime
from burn_remote_server.programs import plans
from burn_remote_server.programs.plans import (
    REUSED_BYTES,
    Plan,
    as_failure,
    timed,
    too_costly,
    within,
)
from burn_remote_server.tensors.allocations import memory_bytes
from support.engines import vector
from support.kernels import signature

SCHEME = QuantScheme("Q4S", "F32", ("PackedU32", 0), None, "Symmetric")
BLOCKS = replace(SCHEME, level=(1000,))
NUMBERS = TensorSpec((1_000_000,), F32)
HELD = TensorSpec((1_000_000,), DType.quantized(SCHEME))  # 500,004 bytes, 4,000,000 as numbers
ONES = signature("Base.Ones", out=HELD)
FLIP = signature("Base.Flip", HELD, axes=(0,))
HELD_IN_BLOCKS = TensorSpec((1_000_000,), DType.quantized(BLOCKS))
ONES_IN_BLOCKS = signature("Base.Ones", out=HELD_IN_BLOCKS)
FLIP_IN_BLOCKS = signature("Base.Flip", HELD_IN_BLOCKS, axes=(0,))
DEQUANTIZE = signature("Float.Dequantize", HELD, out=NUMBERS)


def executed(max_bytes: int, *operations: tuple[Signature, tuple[int, ...]]) -> Any:
    """Return a session's interpreter after some operations, and the failures."""
    failures: list[OperationFailed] = []
    interpreter = Interpreter(
        NumpyBackend(), Quota(max_bytes, 100), lambda _, failure: failures.append(failure)
    )
    for made, tensors in operations:
        interpreter.execute(Operation(made, tensors))
    return interpreter, failures


def test_numbers_of_quantized_tensors_count_while_an_operation_runs() -> None:
    _, failures = executed(9_007_999, (ONES_IN_BLOCKS, (1,)), (FLIP_IN_BLOCKS, (1, 2)))
    (failure,) = failures
    assert isinstance(failure, QuotaExceeded)
    assert "session bytes: 9,008,000 would be held" in str(failure)
    assert "Base.Flip" in str(failure)


def test_numbers_of_quantized_tensors_count_no_longer_afterwards() -> None:
    interpreter, failures = executed(9_008_000, (ONES_IN_BLOCKS, (1,)), (FLIP_IN_BLOCKS, (1, 2)))
    assert not failures
    assert interpreter.quota.bytes == 2 * 504_000
    interpreter.clear()
    assert interpreter.quota.bytes == 0


def test_integers_that_are_only_moved_take_a_byte_each() -> None:
    _, failures = executed(8_500_004, (ONES, (1,)), (FLIP, (1, 2)))
    assert not failures
    assert Plan(FLIP, NumpyBackend().open_session()).workspace_bytes == 2_000_000


def test_dequantizing_takes_its_result_and_the_unpacked_integers() -> None:
    _, failures = executed(9_500_004, (ONES, (1,)), (DEQUANTIZE, (1, 2)))
    assert not failures


def test_arithmetic_on_quantized_tensors_is_refused_as_their_usage_says() -> None:
    backend = NumpyBackend()
    assert backend.dtype_usage(HELD.dtype) == DTypeUsage.STORAGE
    for name in ("Numeric.Add", "Numeric.Mul", "Float.Matmul"):
        shape = (10, 10) if name == "Float.Matmul" else (1000,)
        use = TensorUse(TensorSpec(shape, HELD.dtype), TensorStatus.READ_ONLY)
        family, variant = name.split(".")
        row = TABLE[family, variant]
        made = Signature(f"{family}Float".removesuffix("FloatFloat"), row, F32, (use, use, use))
        assert isinstance(Plan(made, backend.open_session()).error, DTypeMismatch)


def test_quantizing_with_invalid_outputs_or_scales_is_refused_by_type() -> None:
    session = NumpyBackend().open_session()
    scales = TensorSpec((1,), F32)
    made = signature("Float.Quantize", NUMBERS, scales, scheme=SCHEME)
    wrong = replace(made, arguments=(*made.arguments[:-1], made.arguments[0]))
    assert isinstance(Plan(wrong, session).error, DTypeMismatch)
    more_scales = made.arguments[1]._replace(spec=TensorSpec((2,), F32))
    wrong = replace(made, arguments=(made.arguments[0], more_scales, *made.arguments[2:]))
    assert isinstance(Plan(wrong, session).error, ShapeMismatch)
    numbers = replace(DEQUANTIZE, arguments=(made.arguments[0], made.arguments[0]))
    assert isinstance(Plan(numbers, session).error, DTypeMismatch)


# -- plain signatures -----------------------------------------------------------------------------

ADD = signature("Numeric.Add", vector(4), vector(4))
LARGE = TensorSpec((REUSED_BYTES // 4,), F32)


def scaled(spec: TensorSpec) -> Signature:
    """Return the signature of a multiplication by two."""
    return signature("Numeric.MulScalar", spec, rhs=2.0)


def plan_of(made: Signature) -> Plan:
    return Plan(made, NumpyBackend().open_session())


def test_a_plan_has_the_counts_and_bytes_of_its_signature() -> None:
    plan = plan_of(ADD)
    assert (plan.input_count, plan.output_count, plan.task_length) == (2, 1, 4)
    assert plan.output_bytes == 16
    assert plan.gives_one
    assert plan.error is None
    assert plan.expected == (((4,), np.float32), ((4,), np.float32))


MANY_ROWS = TensorSpec((4096, 256), F32)
COLUMN = TensorSpec((4096, 1), F32)
FEWER_ROWS = TensorSpec((1024, 256), F32)
HALF_A_MEBIBYTE = TensorSpec((512, 256), F32)  # large enough to reuse memory, not to fuse


@pytest.mark.parametrize(
    ("made", "joins", "begins"),
    [
        (scaled(MANY_ROWS), True, True),
        (signature("Numeric.SumDim", MANY_ROWS, axis=1, accumulator_len=1), True, True),
        (scaled(COLUMN), True, False),  # after a reduction
        (scaled(FEWER_ROWS), True, True),
        (signature("Numeric.SumDim", FEWER_ROWS, axis=1, accumulator_len=1), False, False),
        (scaled(HALF_A_MEBIBYTE), False, False),
        (scaled(vector(1000)), False, False),
    ],
    ids=lambda each: each.describe() if isinstance(each, Signature) else "",
)
def test_operations_begin_windows_only_if_a_fuser_takes_them(
    made: Signature, joins: bool, begins: bool
) -> None:
    pytest.importorskip("llvmlite", reason="the extra fusion is not installed")
    plan = plan_of(made)
    fusers = NumpyFusionRuntime(opened_compiler()).fusers(NumpyBackend())
    plan.let_fuse(NumpyBackend().open_session(), fusers)
    assert (plan.joins_windows, plan.is_fusible) == (joins, begins)
    assert bool(plan.calls or plan.reduction) == joins


def test_without_compiled_kernels_smaller_operations_and_reductions_begin_no_window() -> None:
    fusers = NumpyFusionRuntime().fusers(NumpyBackend())
    for made, begins in (
        (scaled(MANY_ROWS), True),
        (scaled(FEWER_ROWS), False),
        (signature("Numeric.SumDim", MANY_ROWS, axis=1, accumulator_len=1), False),
    ):
        plan = plan_of(made)
        plan.let_fuse(NumpyBackend().open_session(), fusers)
        assert plan.is_fusible == begins


def test_nothing_joins_a_window_where_there_are_no_fusers() -> None:
    plan = plan_of(scaled(MANY_ROWS))
    plan.let_fuse(NumpyBackend().open_session(), ())
    assert not plan.is_fusible
    assert not plan.joins_windows


def test_a_plan_runs_its_kernel() -> None:
    ones = np.ones(4, np.float32)
    assert plan_of(ADD).run(ones, ones).tolist() == [2, 2, 2, 2]


def test_lists_of_inputs_reach_the_kernel_as_lists() -> None:
    joined = plan_of(signature("Base.Cat", (vector(1), vector(2)), dim=0))
    assert joined.input_count == 2
    one, two = np.ones(1, np.float32), np.zeros(2, np.float32)
    assert joined.run(one, two).tolist() == [1, 0, 0]


def test_a_bool_takes_one_byte_however_wide_it_is_on_the_wire() -> None:
    assert memory_bytes(TensorSpec((5,), BOOL_U32)) == 5
    assert memory_bytes(TensorSpec((5,), F32)) == 20


def test_only_large_results_take_the_memory_of_an_input_of_their_shape_and_dtype() -> None:
    assert plan_of(signature("Numeric.Add", LARGE, LARGE)).reusable == (0, 1)
    assert plan_of(signature("Numeric.Add", LARGE, TensorSpec((1,), F32))).reusable == (0,)
    assert plan_of(ADD).reusable == ()
    assert plan_of(signature("Numeric.Greater", LARGE, LARGE)).reusable == ()


def test_last_uses_are_the_positions_that_the_signature_marks() -> None:
    first, second, out = ADD.arguments
    marked = replace(ADD, arguments=(first, second._replace(status=TensorStatus.READ_WRITE), out))
    assert plan_of(marked).last_uses == (1,)
    assert plan_of(ADD).last_uses == ()


def test_a_wrong_declaration_is_an_error_of_the_plan() -> None:
    *inputs, out = ADD.arguments
    wrong = replace(ADD, arguments=(*inputs, out._replace(spec=vector(5))))
    assert isinstance(plan_of(wrong).error, ShapeMismatch)


def test_a_defect_in_binding_fails_the_operation_and_not_the_session() -> None:
    class Broken(ArraySession):
        def bind(self, signature: Signature) -> Any:
            raise RuntimeError("a defect")

    backend = NumpyBackend()
    error = Plan(ADD, Broken(backend, {}, lambda seed: None)).error
    assert isinstance(error, OperationFailed)
    assert "RuntimeError: a defect" in error.reason


def test_costs_up_to_the_limit_are_allowed() -> None:
    assert too_costly(10, None) is None
    assert too_costly(10, 10) is None
    assert isinstance(too_costly(11, 10), QuotaExceeded)


def test_scratch_memory_is_reserved_while_a_kernel_runs_and_given_back_when_it_fails() -> None:
    quota = Quota(100, 10)
    seen: list[int] = []

    def kernel(fails: bool) -> None:
        seen.append(quota.bytes)
        if fails:
            raise ValueError("in the kernel")

    run = within(kernel, 60, quota)
    run(False)
    with pytest.raises(ValueError, match="in the kernel"):
        run(True)
    assert seen == [60, 60]
    assert quota.bytes == 0
    quota.take(50, 1)
    with pytest.raises(QuotaExceeded, match="60 bytes of scratch memory"):
        run(False)
    assert seen == [60, 60]
    assert quota.bytes == 50


def test_a_result_that_took_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 1.0, 10.0, 13.0])
    monkeypatch.setattr(plans, "time", SimpleNamespace(monotonic=lambda: next(now)))
    run = timed(lambda: "result", 2.0)
    assert run() == "result"
    with pytest.raises(QuotaExceeded, match="it took 3 seconds, 2 are allowed"):
        run()


@pytest.mark.parametrize(
    ("raised", "kind", "reason"),
    [
        (QuotaExceeded("full"), QuotaExceeded, "full"),
        (MemoryError(), OutOfMemory, "enough memory for 16 bytes"),
        (ShapeMismatch("shapes differ"), OperationFailed, "shapes differ"),
        (ZeroDivisionError("division"), OperationFailed, "ZeroDivisionError: division"),
    ],
)
def test_a_failure_has_the_type_and_reason_of_the_exception_and_the_operation(
    raised: Exception, kind: type[OperationFailed], reason: str
) -> None:
    failure = as_failure(raised, plan_of(ADD), 7)
    assert type(failure) is kind
    assert reason in failure.reason
    assert (failure.operation, failure.tensor) == ("Numeric.Add", 7)
    assert "float32[4]" in failure.shapes


def test_an_exception_of_a_signal_handler_is_not_kept_as_the_error_of_a_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: object) -> None:
        raise TimeoutError("too late")

    bind = plans._bind
    monkeypatch.setattr(plans, "_bind", lambda *_: signal.raise_signal(signal.SIGALRM))
    before = signal.signal(signal.SIGALRM, interrupt)
    signed = signature("Float.Exp", vector(2))
    try:
        with pytest.raises(TimeoutError, match="too late"):
            Plan(signed, NumpyBackend().open_session())
    finally:
        signal.signal(signal.SIGALRM, before)
    monkeypatch.setattr(plans, "_bind", bind)
    assert Plan(signed, NumpyBackend().open_session()).error is None
