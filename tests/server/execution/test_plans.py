"""Plans count what their kernels need beside the results, and refuse what could never run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from burn_remote_protocol.dtypes import F32, DType, DTypeUsage, QuantScheme
from burn_remote_protocol.errors import DTypeMismatch, OperationFailed, QuotaExceeded, ShapeMismatch
from burn_remote_protocol.operations.row import Operation, Signature
from burn_remote_protocol.operations.table import TABLE
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.tensors import TensorSpec, TensorStatus
from burn_remote_server.access.quota import Quota
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.execution.interpreter import Interpreter
from burn_remote_server.execution.plans import Plan
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
    """Return a session's interpreter after some operations, and what failed."""
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


def test_quantizing_into_what_is_not_quantized_is_refused_by_type() -> None:
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
