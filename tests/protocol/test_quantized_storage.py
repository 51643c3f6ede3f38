"""Tests of the lengths of quantized data."""

from __future__ import annotations

import pytest

from burn_remote_protocol.dtypes import DType, QuantScheme
from burn_remote_protocol.quantized_storage import (
    VALUE_BITS,
    byte_lengths,
    scales_shape,
    stored_bytes,
)
from burn_remote_protocol.tensors import Shape, TensorSpec


def scheme(
    value: str = "Q8S", *, packed: bool = False, level: tuple[int, ...] | None = None
) -> QuantScheme:
    return QuantScheme(value, "F32", ("PackedU32", 0) if packed else "Native", level, "Symmetric")


def test_every_value_type_has_a_width() -> None:
    assert set(VALUE_BITS) == set(QuantScheme.VALUES)


@pytest.mark.parametrize(
    ("shape", "level", "expected"),
    [
        ((2, 32), None, (1,)),
        ((), None, (1,)),
        ((2, 32), (16,), (2, 2)),
        ((2, 33), (16,), (2, 3)),
        ((4, 64), (2, 32), (2, 2)),
        ((64,), (2, 32), (32,)),
        ((0, 16), (16,), (0, 1)),
    ],
)
def test_there_is_a_scale_per_tensor_or_block(
    shape: Shape, level: tuple[int, ...] | None, expected: Shape
) -> None:
    assert scales_shape(shape, scheme(level=level)) == expected


@pytest.mark.parametrize(
    ("shape", "of", "expected"),
    [
        ((2, 16), scheme(), (36,)),
        ((2, 16), scheme(level=(16,)), (40,)),
        ((3,), scheme("Q4S"), (7,)),
        ((3,), scheme(packed=True), (7, 8)),
        ((2, 16), scheme("Q4F", packed=True), (36, 20)),
        ((2, 16), scheme("Q2S", packed=True, level=(16,)), (40, 16)),
        ((0,), scheme("Q2S", packed=True), (4, 4)),
    ],
)
def test_values_are_sent_one_per_byte_or_packed_into_words(
    shape: Shape, of: QuantScheme, expected: tuple[int, ...]
) -> None:
    assert byte_lengths(shape, of) == expected


@pytest.mark.parametrize(
    ("shape", "of", "expected"),
    [
        ((3,), scheme(packed=True), 7),
        ((3,), scheme("Q4S"), 7),
        ((3,), scheme("Q4S", packed=True), 8),
        ((2, 16), scheme("Q2S", packed=True, level=(16,)), 16),
    ],
)
def test_values_are_stored_packed_only_where_that_is_shorter(
    shape: Shape, of: QuantScheme, expected: int
) -> None:
    assert stored_bytes(shape, of) == expected
    assert TensorSpec(shape, DType.quantized(of)).nbytes == expected
