"""Tests of the rules for reductions."""

from __future__ import annotations

from typing import Any

import pytest

from burn_remote_protocol.dtypes import DType, QuantScheme
from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch
from burn_remote_protocol.operations.families import activations, base, numeric
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.tensors import TensorSpec
from support.specs import c64, f32, flags, i32, i64, made


@pytest.mark.parametrize(
    ("row", "parameters", "expected"),
    [
        (numeric.SUM, {}, (f32(1),)),
        (numeric.SUM_DIM, {"axis": 1, "accumulator_len": 1}, (f32(2, 1, 4),)),
        (numeric.PROD_DIM, {"axis": 1, "accumulator_len": 0}, (f32(2, 1, 4),)),
        (numeric.ARG_MAX, {"axis": 0, "accumulator_len": 1}, (i64(1, 3, 4),)),
        (numeric.TOP_K, {"axis": 2, "accumulator_len": 3}, (f32(2, 3, 3),)),
        (numeric.ARG_TOP_K, {"axis": 2, "accumulator_len": 3}, (i64(2, 3, 3),)),
        (numeric.MAX_DIM_WITH_INDICES, {"dim": 2}, (f32(2, 3, 1), i64(2, 3, 1))),
        (numeric.CUM_SUM, {"axis": 2}, (f32(2, 3, 4),)),
    ],
    ids=str,
)
def test_a_reduced_axis_stays_with_its_new_size(
    row: Row, parameters: Any, expected: tuple[TensorSpec, ...]
) -> None:
    assert made(row, f32(2, 3, 4), **parameters) == expected


def test_a_scalar_is_reduced_to_one_element() -> None:
    assert made(numeric.MEAN, f32()) == (f32(1),)


def test_indices_have_the_dtype_that_the_caller_wants() -> None:
    requested = (f32(1, 3), i32(1, 3))

    assert made(numeric.MIN_DIM_WITH_INDICES, f32(2, 3), requested=requested, dim=0) == requested
    assert made(numeric.ARG_MIN, f32(2, 3), requested=(i32(1, 3),), axis=0, accumulator_len=1) == (
        i32(1, 3),
    )


@pytest.mark.parametrize(
    ("row", "spec", "parameters"),
    [
        (numeric.SUM_DIM, f32(2), {"axis": 1, "accumulator_len": 1}),
        (numeric.CUM_MAX, f32(), {"axis": 0}),
        (numeric.TOP_K, f32(2), {"axis": 0, "accumulator_len": 3}),
        (numeric.ARG_MAX, f32(0), {"axis": 0, "accumulator_len": 1}),
        (numeric.MAX_DIM_WITH_INDICES, f32(3, 0), {"dim": 1}),
        (numeric.SORT, f32(2), {"dim": 1}),
        (numeric.TOP_K_WITH_INDICES, f32(2), {"dim": 0, "k": 3}),
        (activations.SOFTMAX, f32(3, 0), {"axis": 1}),
    ],
    ids=str,
)
def test_an_axis_or_element_out_of_range_is_refused(
    row: Row, spec: TensorSpec, parameters: Any
) -> None:
    with pytest.raises(ShapeMismatch):
        made(row, spec, **parameters)


def test_bools_cannot_be_summed() -> None:
    with pytest.raises(DTypeMismatch, match=r"input is bool\[2\]"):
        made(numeric.SUM, flags(2))


def test_an_axis_that_is_summed_twice_is_refused() -> None:
    assert made(numeric.SUM_DIMS, f32(2, 3, 4), axes=[0, 2]) == (f32(1, 3, 1),)
    with pytest.raises(ShapeMismatch, match=r"axes=\[0, 0\] names an axis twice"):
        made(numeric.SUM_DIMS, f32(2, 3, 4), axes=[0, 0])


@pytest.mark.parametrize(
    ("row", "parameters"),
    [
        (numeric.MAX, {}),
        (numeric.MAX_DIM, {"axis": 0, "accumulator_len": 1}),
        (numeric.ARG_MAX, {"axis": 0, "accumulator_len": 1}),
        (numeric.TOP_K, {"axis": 0, "accumulator_len": 1}),
        (numeric.MAX_DIM_WITH_INDICES, {"dim": 0}),
        (numeric.SORT, {"dim": 0}),
        (numeric.CUM_MAX, {"axis": 0}),
    ],
    ids=str,
)
def test_complex_numbers_have_no_order(row: Row, parameters: Any) -> None:
    with pytest.raises(DTypeMismatch, match=r"is complex64\[2\]"):
        made(row, c64(2), **parameters)


@pytest.mark.parametrize(
    ("row", "parameters"),
    [(numeric.SUM_DIM, {"axis": 0, "accumulator_len": 1}), (numeric.SUM_DIMS, {"axes": [0]})],
    ids=str,
)
def test_bools_cannot_be_summed_along_axes(row: Row, parameters: Any) -> None:
    with pytest.raises(DTypeMismatch, match="input is bool"):
        made(row, flags(2), **parameters)


def test_quantized_elements_are_neither_true_nor_false() -> None:
    scheme = QuantScheme("Q8S", "F32", "Native", None, "Symmetric")
    spec = TensorSpec((2,), DType.quantized(scheme))
    with pytest.raises(DTypeMismatch, match="input is"):
        made(base.ALL, spec)
    with pytest.raises(DTypeMismatch, match="input is"):
        made(base.ALL_DIM, spec, axis=0)
