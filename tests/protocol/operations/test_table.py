"""The table of operations against the schema of Burn 0.21."""

from __future__ import annotations

import re
from typing import Any

import pytest

from burn_remote_protocol.dtypes import F32, U8, DType, QuantScheme
from burn_remote_protocol.errors import DTypeMismatch
from burn_remote_protocol.operations import field_codecs, parameter_codecs
from burn_remote_protocol.operations.families import base, bools, floats, numeric, session
from burn_remote_protocol.operations.fields import Field, Role
from burn_remote_protocol.operations.releases import Vocabulary
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.operations.table import KINDS, TABLE, kind_of, sign
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.tensors import TensorSpec, TensorStatus
from support.recorded import schema
from support.specs import f32, flags, i64

FAMILIES = {
    "Base": "BaseOperationIr",
    "Numeric": "NumericOperationIr",
    "Float": "FloatOperationIr",
    "Int": "IntOperationIr",
    "Bool": "BoolOperationIr",
    "Module": "ModuleOperationIr",
    "Distributed": "DistributedOperationIr",
}

BURN_0_21 = {key: row for key, row in TABLE.items() if row.lifetime.includes(Vocabulary.BURN_0_21)}

VALUE_KINDS = {
    "usize": parameter_codecs.UnsignedCodec,
    "bool": parameter_codecs.BoolCodec,
    "ScalarIr": parameter_codecs.ScalarCodec,
    "Slice": parameter_codecs.SliceCodec,
    "String": parameter_codecs.StringCodec,
    "Distribution": parameter_codecs.DistributionCodec,
    "QuantScheme": parameter_codecs.SchemeCodec,
    "TensorIr": field_codecs.TensorCodec,
    "QuantizationParametersIr": field_codecs.WrappedCodec,
}


def struct_of(family: str, variant: str) -> list[list[str]]:
    (body,) = schema()["enums"][FAMILIES[family]][variant]
    fields: list[list[str]] = schema()["structs"][re.sub(r"Box<(.*)>", r"\1", body)]
    return fields


def check_kind(kind: field_codecs.FieldCodec, rust: str) -> None:
    """Check that a kind reads the Rust type that the schema names."""
    if wrapped := re.fullmatch(r"(Option|Vec)<(.*)>", rust):
        container = {"Option": field_codecs.OptionalCodec, "Vec": field_codecs.ListCodec}[
            wrapped[1]
        ]
        assert isinstance(kind, container)
        check_kind(kind.inner, wrapped[2])
    elif array := re.fullmatch(r"\[(\w+);(\d)\]", rust):
        assert isinstance(kind, field_codecs.ListCodec)
        assert kind.least == kind.most == int(array[2])
        check_kind(kind.inner, array[1])
    elif rust in VALUE_KINDS:
        assert isinstance(kind, VALUE_KINDS[rust])
    elif rust in schema()["enums"]:
        assert isinstance(kind, parameter_codecs.NameCodec)
        assert list(kind.names) == list(schema()["enums"][rust])
    else:
        assert isinstance(kind, field_codecs.StructCodec)
        members = schema()["structs"][rust]
        assert [name for name, _ in kind.members] == [name for name, _ in members]
        for (_, member), (_, expected) in zip(kind.members, members, strict=True):
            check_kind(member, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_the_variants_of_burn_and_no_others(family: str) -> None:
    rows = {name for of, name in BURN_0_21 if of == family}

    assert rows == set(schema()["enums"][FAMILIES[family]])


def test_there_are_167_variants_besides_init_drop_and_custom() -> None:
    assert len(BURN_0_21) == 167 + 3


@pytest.mark.parametrize("key", [key for key in BURN_0_21 if key[0] in FAMILIES], ids="".join)
def test_a_row_has_the_fields_of_burn_in_wire_order(key: tuple[str, str]) -> None:
    fields, expected = TABLE[key].fields, struct_of(*key)

    assert [field.name for field in fields] == [name for name, _ in expected]
    for field, (_, rust) in zip(fields, expected, strict=True):
        check_kind(field.codec, rust)


@pytest.mark.parametrize(
    ("row", "struct"), [(session.INIT, "InitOperationIr"), (session.CUSTOM, "CustomOpIr")]
)
def test_init_and_custom_have_the_fields_of_burn(row: Row, struct: str) -> None:
    expected = schema()["structs"][struct]

    assert [field.name for field in row.fields] == [name for name, _ in expected]
    for field, (_, rust) in zip(row.fields, expected, strict=True):
        check_kind(field.codec, rust)


@pytest.mark.parametrize("row", TABLE.values(), ids=str)
def test_inputs_come_before_outputs(row: Row) -> None:
    roles = [field.role for field in row.fields if field.role is not Role.PARAMETER]

    assert roles == sorted(roles, key=[Role.INPUT, Role.OUTPUT].index)


@pytest.mark.parametrize("row", TABLE.values(), ids=str)
def test_the_names_of_parameters_do_not_collide_when_options_are_flattened(row: Row) -> None:
    names = [name for field in row.fields for name in parameter_names(field)]

    assert len(names) == len(set(names))


def parameter_names(field: Field) -> list[str]:
    if isinstance(field.codec, field_codecs.StructCodec):
        return [name for name, _ in field.codec.members]
    return [field.name] if field.role is Role.PARAMETER else []


def test_the_wire_kinds_are_those_of_burn() -> None:
    kinds = [name for name, kind in KINDS.items() if kind.lifetime.includes(Vocabulary.BURN_0_21)]

    assert kinds == list(schema()["enums"]["OperationIr"])


@pytest.mark.parametrize("kind", schema()["enums"]["OperationIr"])
def test_a_kind_carries_a_dtype_where_burn_writes_one(kind: str) -> None:
    assert KINDS[kind].carries_dtype == (schema()["enums"]["OperationIr"][kind][0] == "DType")


SCHEME = QuantScheme("Q8S", "F32", "Native", None, "Symmetric")


@pytest.mark.parametrize(
    ("row", "first", "kind"),
    [
        (base.RESHAPE, f32(2), "BaseFloat"),
        (base.RESHAPE, TensorSpec((2,), DType.quantized(SCHEME)), "BaseFloat"),
        (base.RESHAPE, i64(2), "BaseInt"),
        (base.RESHAPE, TensorSpec((2,), U8), "BaseInt"),
        (base.RESHAPE, flags(2), "BaseBool"),
        (numeric.ADD, f32(2), "NumericFloat"),
        (numeric.ADD, TensorSpec((2,), U8), "NumericInt"),
        (bools.NOT, flags(2), "Bool"),
        (session.DROP, flags(2), "Drop"),
    ],
)
def test_the_kind_follows_from_the_first_tensor(row: Row, first: TensorSpec, kind: str) -> None:
    assert kind_of(row, first) == kind


def test_an_operation_that_a_dtype_does_not_have_is_refused() -> None:
    with pytest.raises(DTypeMismatch, match=r"Numeric\.Add does not exist for bool\[2\]"):
        kind_of(numeric.ADD, flags(2))


def use(spec: TensorSpec, status: TensorStatus = TensorStatus.READ_ONLY) -> TensorUse:
    return TensorUse(spec, status)


def test_signing_finds_kind_and_dtype_of_an_operation() -> None:
    out = use(f32(2), TensorStatus.NOT_INIT)

    signature = sign(numeric.ADD, use(f32(2)), use(f32(2)), out)

    assert (signature.kind, signature.dtype) == ("NumericFloat", F32)
    assert signature.describe() == "float32[2], float32[2] -> float32[2]"


def test_signing_takes_the_first_of_a_list_of_tensors() -> None:
    out = use(i64(4), TensorStatus.NOT_INIT)

    assert sign(base.CAT, (use(i64(2)), use(i64(2))), 0, out).kind == "BaseInt"


def test_signing_takes_the_output_where_there_is_no_input() -> None:
    arguments: tuple[Any, ...] = (use(f32(2), TensorStatus.NOT_INIT), ("Default",))

    assert sign(floats.RANDOM, *arguments).dtype is F32


def test_signing_without_a_tensor_is_refused() -> None:
    with pytest.raises(DTypeMismatch, match="needs a tensor"):
        sign(session.CUSTOM, "name", (), ())
