"""Tests of the rules for conversions between real and complex numbers."""

from __future__ import annotations

from typing import Any

import pytest

from burn_remote_protocol.dtypes import C128, F64, DType, QuantScheme
from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch
from burn_remote_protocol.operations.families import complex_rows
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.tensors import TensorSpec
from support.specs import c64, f16, f32, flags, i64, made

QUANTIZED = TensorSpec(
    (2,), DType.quantized(QuantScheme("Q8S", "F32", "Native", None, "Symmetric"))
)


@pytest.mark.parametrize(
    ("row", "inputs", "requested", "expected"),
    [
        (complex_rows.FROM_PARTS, (f32(2, 1), f32(3)), (), c64(2, 3)),
        (complex_rows.INTO_COMPLEX, (i64(2),), (), c64(2)),
        (complex_rows.INTO_COMPLEX, (flags(2),), (TensorSpec((2,), C128),), TensorSpec((2,), C128)),
        (complex_rows.REAL, (c64(2),), (), f32(2)),
        (complex_rows.ABS, (TensorSpec((2,), C128),), (), TensorSpec((2,), F64)),
    ],
    ids=str,
)
def test_a_complex_dtype_has_the_precision_of_its_parts(
    row: Row, inputs: Any, requested: Any, expected: TensorSpec
) -> None:
    assert made(row, *inputs, requested=requested) == (expected,)


@pytest.mark.parametrize(
    ("row", "inputs", "requested", "reason"),
    [
        (complex_rows.FROM_PARTS, (f16(2), f16(2)), (), "real is .* must be float32 or float64"),
        (complex_rows.FROM_PARTS, (f32(2), f16(2)), (), "imaginary is float16"),
        (complex_rows.INTO_COMPLEX, (c64(2),), (), "input is complex64"),
        (complex_rows.INTO_COMPLEX, (QUANTIZED,), (), "input is"),
        (complex_rows.INTO_COMPLEX, (f32(2),), (f32(2),), "the output is float32"),
        (complex_rows.REAL, (f32(2),), (), "input is float32"),
    ],
    ids=str,
)
def test_dtypes_that_no_complex_number_has_are_refused(
    row: Row, inputs: Any, requested: Any, reason: str
) -> None:
    with pytest.raises(DTypeMismatch, match=reason):
        made(row, *inputs, requested=requested)


def test_parts_that_do_not_broadcast_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match="do not broadcast"):
        made(complex_rows.FROM_PARTS, f32(2), f32(3))
