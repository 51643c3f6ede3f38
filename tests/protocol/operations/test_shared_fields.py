"""Fields that operations share, against the structs of Burn 0.21."""

from __future__ import annotations

import pytest

from burn_remote_protocol.operations import field_codecs, parameter_codecs
from burn_remote_protocol.operations.fields import Field, Role
from burn_remote_protocol.operations.shared_fields import (
    BINARY,
    CREATION,
    DIM,
    INTERPOLATE_MODES,
    INTERPOLATE_MODES_SINCE,
    INTERPOLATE_OPTIONS,
    RANDOM_NUMBERS,
    REDUCE_DIM,
    REDUCE_DIM_WITH_INDICES,
    SCALAR,
    UNARY,
    UPDATES,
)
from support.recorded import schema

CODECS = {
    "TensorIr": field_codecs.TensorCodec,
    "usize": parameter_codecs.UnsignedCodec,
    "ScalarIr": parameter_codecs.ScalarCodec,
    "Distribution": parameter_codecs.DistributionCodec,
}


@pytest.mark.parametrize(
    ("fields", "structs"),
    [
        (UNARY, ["UnaryOpIr", "CastOpIr", "ReduceOpIr", "ShapeOpIr"]),
        (BINARY, ["BinaryOpIr", "MatmulOpIr"]),
        (SCALAR, ["ScalarOpIr"]),
        (DIM, ["DimOpIr"]),
        (REDUCE_DIM, ["ReduceDimOpIr"]),
        (REDUCE_DIM_WITH_INDICES, ["ReduceDimWithIndicesOpIr"]),
        (CREATION, ["CreationOpIr"]),
        (RANDOM_NUMBERS, ["RandomOpIr"]),
    ],
)
def test_the_fields_are_those_of_burns_structs(
    fields: tuple[Field, ...], structs: list[str]
) -> None:
    for struct in structs:
        expected = schema()["structs"][struct]
        assert [field.name for field in fields] == [name for name, _ in expected]
        for field, (_, rust) in zip(fields, expected, strict=True):
            assert type(field.codec) is CODECS[rust]


@pytest.mark.parametrize(
    "fields",
    [UNARY, BINARY, SCALAR, DIM, REDUCE_DIM, REDUCE_DIM_WITH_INDICES, CREATION, RANDOM_NUMBERS],
)
def test_tensor_fields_named_out_are_outputs_and_all_others_inputs(
    fields: tuple[Field, ...],
) -> None:
    for field in fields:
        if isinstance(field.codec, field_codecs.TensorCodec):
            is_output = field.name in ("out", "out_indices")
            assert field.role is (Role.OUTPUT if is_output else Role.INPUT)
        else:
            assert field.role is Role.PARAMETER


def test_the_names_are_those_of_burns_enums() -> None:
    assert list(schema()["enums"]["IndexingUpdateOp"]) == list(UPDATES)
    assert list(schema("0.22")["enums"]["InterpolateModeIr"]) == list(INTERPOLATE_MODES)
    first = [name for name in INTERPOLATE_MODES if name not in INTERPOLATE_MODES_SINCE]
    assert list(schema()["enums"]["InterpolateModeIr"]) == first


def test_the_options_of_an_interpolation_are_those_of_burn() -> None:
    codec = INTERPOLATE_OPTIONS.codec
    assert isinstance(codec, field_codecs.StructCodec)
    expected = schema()["structs"]["InterpolateOptionsIr"]
    assert [name for name, _ in codec.members] == [name for name, _ in expected]
