"""The table of operations against the schemas of Burn 0.21 and 0.22."""

from __future__ import annotations

import re
from typing import Any

import pytest

from burn_remote_protocol.dtypes import F32, U8, DType, QuantScheme
from burn_remote_protocol.errors import DTypeMismatch
from burn_remote_protocol.operations import field_codecs, parameter_codecs
from burn_remote_protocol.operations.families import base, bools, floats, numeric, session
from burn_remote_protocol.operations.fields import Field, Role
from burn_remote_protocol.operations.row import Row
from burn_remote_protocol.operations.table import KINDS, TABLE, kind_of, sign
from burn_remote_protocol.operations.vocabularies import Vocabulary
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
    "Activation": "ActivationOperationIr",
}

RELEASES = {"0.21": Vocabulary.BURN_0_21, "0.22": Vocabulary.BURN_0_22}

ROWS = [
    (release, family, name)
    for release, vocabulary in RELEASES.items()
    for (family, name), row in TABLE.items()
    if row.lifetime.includes(vocabulary)
]

# Variants of Burn 0.22 that the table does not have yet.
MISSING = {
    ("Distributed", "SyncCollective"),
}

# Names of Burn 0.22's enums that the table does not have yet.
MISSING_NAMES: dict[str, list[str]] = {}

VALUE_KINDS: dict[str, Any] = {
    "usize": parameter_codecs.UnsignedCodec,
    "u16": parameter_codecs.UnsignedCodec,
    "(usize,usize)": (parameter_codecs.PaddingCodec, parameter_codecs.PairCodec),
    "PadModeIr": parameter_codecs.PaddingModeCodec,
    "bool": parameter_codecs.BoolCodec,
    "ScalarIr": parameter_codecs.ScalarCodec,
    "Slice": parameter_codecs.SliceCodec,
    "String": parameter_codecs.StringCodec,
    "Distribution": parameter_codecs.DistributionCodec,
    "QuantScheme": parameter_codecs.SchemeCodec,
    "TensorIr": field_codecs.TensorCodec,
    "QuantizationParametersIr": field_codecs.QuantizationParametersCodec,
}


def variants(release: str, family: str) -> dict[str, Any]:
    """Return the variants of a family in a release of Burn, with their bodies."""
    found: dict[str, Any] = schema(release)["enums"].get(FAMILIES[family], {})
    return found


def struct_of(release: str, family: str, variant: str) -> list[list[str]]:
    body = variants(release, family)[variant]
    if not body:
        return []
    fields: list[list[str]] = schema(release)["structs"][re.sub(r"Box<(.*)>", r"\1", body[0])]
    return fields


def check_kind(kind: field_codecs.FieldCodec, rust: str, release: str) -> None:
    """Check that a kind reads the Rust type that the schema names."""
    if wrapped := re.fullmatch(r"(Option|Vec)<(.*)>", rust):
        container = {"Option": field_codecs.OptionalCodec, "Vec": field_codecs.ListCodec}[
            wrapped[1]
        ]
        assert isinstance(kind, container)
        check_kind(kind.inner, wrapped[2], release)
    elif array := re.fullmatch(r"\[(.+);(\d)\]", rust):
        assert isinstance(kind, field_codecs.ListCodec)
        assert kind.least == kind.most == int(array[2])
        if isinstance(kind.inner, parameter_codecs.PaddingCodec):
            pairs = kind.inner.vocabulary is Vocabulary.BURN_0_22
            assert array[1] == ("(usize,usize)" if pairs else "usize")
            return
        check_kind(kind.inner, array[1], release)
    elif rust in VALUE_KINDS:
        assert isinstance(kind, VALUE_KINDS[rust])
    elif rust in schema(release)["enums"]:
        assert isinstance(kind, parameter_codecs.NameCodec)
        known = [*schema(release)["enums"][rust]]
        missing = MISSING_NAMES.get(rust, []) if release == "0.22" else []
        assert list(kind.names) == [name for name in known if name not in missing]
    else:
        assert isinstance(kind, field_codecs.StructCodec)
        members = schema(release)["structs"][rust]
        assert [name for name, _ in kind.members] == [name for name, _ in members]
        for (_, member), (_, expected) in zip(kind.members, members, strict=True):
            check_kind(member, expected, release)


def check_fields(row: Row, expected: list[list[str]], release: str) -> None:
    """Check that the form of a row in a release has the fields of a struct, in wire order."""
    vocabulary = RELEASES[release]
    fields = [field for field in row.fields if field.lifetime.includes(vocabulary)]
    assert [field.name for field in fields] == [name for name, _ in expected]
    for field, (_, rust) in zip(fields, expected, strict=True):
        check_kind(field.codec.form(vocabulary), rust, release)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_the_variants_of_burn_and_no_others(family: str, release: str) -> None:
    rows = {name for of, each, name in ROWS if (of, each) == (release, family)}
    missing = {name for each, name in MISSING if each == family and release == "0.22"}

    assert not rows & missing
    assert rows | missing == set(variants(release, family))


@pytest.mark.parametrize(("release", "count"), [("0.21", 167), ("0.22", 209)])
def test_a_release_has_its_variants_besides_init_drop_and_custom(release: str, count: int) -> None:
    missing = len(MISSING) if release == "0.22" else 0

    assert sum(len(variants(release, family)) for family in FAMILIES) == count
    assert sum(of == release for of, _, _ in ROWS) == count + 3 - missing


@pytest.mark.parametrize("key", [key for key in ROWS if key[1] in FAMILIES], ids=" ".join)
def test_a_row_has_the_fields_of_burn_in_wire_order(key: tuple[str, str, str]) -> None:
    release, family, name = key

    check_fields(TABLE[family, name], struct_of(release, family, name), release)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("row", "struct"), [(session.INIT, "InitOperationIr"), (session.CUSTOM, "CustomOpIr")]
)
def test_init_and_custom_have_the_fields_of_burn(row: Row, struct: str, release: str) -> None:
    check_fields(row, schema(release)["structs"][struct], release)


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


@pytest.mark.parametrize("release", RELEASES)
def test_the_wire_kinds_are_those_of_burn(release: str) -> None:
    kinds = {name for name, kind in KINDS.items() if kind.lifetime.includes(RELEASES[release])}
    assert kinds == set(schema(release)["enums"]["OperationIr"])


@pytest.mark.parametrize("kind", schema()["enums"]["OperationIr"])
def test_a_kind_carries_a_dtype_where_burn_writes_one(kind: str) -> None:
    (body, *_) = schema("0.22")["enums"]["OperationIr"][kind]

    assert KINDS[kind].carries_dtype == (body == "DType")


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
