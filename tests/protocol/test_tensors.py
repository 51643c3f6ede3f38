"""Shapes and specs: their limits, sizes and text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.dtypes import BF16, BOOL_U32, F32, I64
from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation
from burn_remote_protocol.tensors import (
    MAX_ELEMENTS,
    MAX_RANK,
    TensorData,
    TensorSpec,
    TensorStatus,
    checked_shape,
)
from support.recorded import golden, schema


def test_the_statuses_are_those_of_burn() -> None:
    assert [status.value for status in TensorStatus] == list(schema()["enums"]["TensorStatus"])


@pytest.mark.parametrize(
    ("shape", "size"), [((), 1), ((0,), 0), ((2, 3), 6), ((2**40, 0, 2**40), 0)]
)
def test_a_spec_counts_its_elements_and_bytes(shape: tuple[int, ...], size: int) -> None:
    assert TensorSpec(shape, F32).size == size
    assert TensorSpec(shape, F32).nbytes == 4 * size
    assert TensorSpec(shape, BF16).nbytes == 2 * size
    assert TensorSpec(shape, BOOL_U32).nbytes == 4 * size


def test_a_spec_is_shown_as_dtype_and_shape() -> None:
    assert str(TensorSpec((2, 3), F32)) == "float32[2, 3]"
    assert str(TensorSpec((), I64)) == "int64[]"


def test_data_has_the_spec_of_its_tensor() -> None:
    assert TensorData(bytes(8), (2,), F32).spec == TensorSpec((2,), F32)


@pytest.mark.parametrize(
    "dims", [[], [2, 3], (2, 3), [0], [1] * MAX_RANK, [MAX_ELEMENTS], [0, 2**58]]
)
def test_a_shape_is_a_tuple_of_sizes(dims: Any) -> None:
    assert checked_shape(dims) == tuple(dims)


def test_golden_shapes_are_allowed() -> None:
    for line in golden("Shape"):
        (dims,) = line.lists
        assert checked_shape(dims) == tuple(dims), line.name


@pytest.mark.parametrize(
    "dims", [None, 5, "23", b"\x02", {2: 3}, [True], [2.0], ["2"], [-1], [[2]]]
)
def test_invalid_shapes_are_refused(dims: Any) -> None:
    with pytest.raises(ProtocolViolation):
        checked_shape(dims)


@pytest.mark.parametrize(
    ("dims", "limit"),
    [
        ([1] * (MAX_RANK + 1), "rank"),
        ([MAX_ELEMENTS + 1], "elements"),
        ([2**40, 2**40], "elements"),
        ([0, 2**64], "elements"),
    ],
)
def test_a_shape_beyond_the_limits_is_refused_with_what_was_seen(dims: Any, limit: str) -> None:
    with pytest.raises(LimitExceeded, match=f"{limit} of a tensor: seen [0-9,]+, allowed [0-9,]+"):
        checked_shape(dims)


@given(st.lists(st.integers(-1, 2**64), max_size=40))
def test_a_shape_is_allowed_or_refused(dims: list[int]) -> None:
    try:
        spec = TensorSpec(checked_shape(dims), I64)
    except ProtocolViolation:
        return
    assert spec.nbytes < 2**63
