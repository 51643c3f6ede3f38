"""The dtypes are those of Burn, and each is a single object."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.dtypes import (
    ALL_DTYPES,
    BF16,
    BOOL,
    BOOL_U8,
    BOOL_U32,
    F32,
    FLEX32,
    I64,
    U8,
    Category,
    DType,
    QuantScheme,
)
from burn_remote_protocol.errors import ProtocolViolation, Unsupported
from burn_remote_protocol.frozen_map import FrozenMap
from burn_remote_protocol.operations.vocabularies import Vocabulary
from burn_remote_protocol.operations.wire_values import dtype_to_wire
from support.recorded import golden, schema

SCHEME = QuantScheme("Q4S", "BF16", ("PackedU32", 1), (2, 128), "Symmetric")


def test_the_dtypes_are_those_of_burn_and_complex_ones() -> None:
    complex_dtypes = {dtype for dtype in ALL_DTYPES if dtype.is_complex}
    plain = {dtype.name for dtype in set(ALL_DTYPES) - complex_dtypes if dtype.store is None}

    assert {str(dtype) for dtype in complex_dtypes} == {"complex64", "complex128"}
    assert plain == set(schema()["enums"]["DType"]) - {"Bool", "QFloat"}
    assert {dtype.store for dtype in ALL_DTYPES if dtype.store} == set(
        schema()["enums"]["BoolStore"]
    )


def test_every_golden_dtype_is_encoded_to_the_bytes_it_was_decoded_from() -> None:
    for line in golden("DType"):
        for wire in (line.tuples, line.lists):
            assert msgpack.packb(DType.from_wire(wire).wire) == line.payload, line.name


def test_every_golden_dtype_of_burn_0_22_is_encoded_to_the_bytes_it_was_decoded_from() -> None:
    lines = golden("DType", "0.22")
    assert len(lines) == 63
    for line in lines:
        for wire in (line.tuples, line.lists):
            dtype = DType.from_wire(wire)
            assert msgpack.packb(dtype_to_wire(dtype, Vocabulary.BURN_0_22)) == line.payload
            assert DType.from_wire(dtype.wire) is dtype


def test_a_scheme_that_burn_0_21_does_not_have_cannot_be_expressed_in_it() -> None:
    scheme = QuantScheme.from_wire(["Q8F", "Native", "Symmetric", None, None])

    assert scheme.param is None
    with pytest.raises(Unsupported, match=r"Burn 0\.21 does not have the quantization scheme"):
        scheme.to_wire()


def test_every_golden_scheme_is_encoded_to_the_bytes_it_was_decoded_from() -> None:
    for line in golden("QuantScheme"):
        for wire in (line.tuples, line.lists):
            assert msgpack.packb(QuantScheme.from_wire(wire).to_wire()) == line.payload, line.name


@pytest.mark.parametrize("dtype", [*ALL_DTYPES, DType.quantized(SCHEME)], ids=str)
def test_there_is_one_object_per_dtype(dtype: DType) -> None:
    assert DType.from_wire(dtype.wire) is dtype
    assert copy.deepcopy(dtype) is dtype
    assert pickle.loads(pickle.dumps(dtype)) is dtype


def test_an_unused_quantized_dtype_is_freed() -> None:
    scheme = QuantScheme("Q2F", "F16", "Native", (77,), "Symmetric")
    first = DType.quantized(scheme)
    name = str(first)
    del first
    gc.collect()

    assert str(DType.quantized(scheme)) == name


@pytest.mark.parametrize(
    ("dtype", "category", "itemsize", "name"),
    [
        (F32, Category.FLOAT, 4, "float32"),
        (FLEX32, Category.FLOAT, 4, "flex32"),
        (BF16, Category.FLOAT, 2, "bfloat16"),
        (I64, Category.INT, 8, "int64"),
        (U8, Category.UINT, 1, "uint8"),
        (BOOL, Category.BOOL, 1, "bool"),
        (BOOL_U8, Category.BOOL, 1, "bool_u8"),
        (BOOL_U32, Category.BOOL, 4, "bool_u32"),
        (DType.quantized(SCHEME), Category.QUANTIZED, 0, "QFloat(Q4S)"),
    ],
    ids=str,
)
def test_a_dtype_has_a_category_a_size_and_a_name(
    dtype: DType, category: Category, itemsize: int, name: str
) -> None:
    assert (dtype.category, dtype.itemsize, str(dtype)) == (category, itemsize, name)
    assert repr(dtype) == f"burn_remote.{name}"
    assert dtype.is_floating == (category is Category.FLOAT)
    assert dtype.is_integer == (category in (Category.INT, Category.UINT))
    assert dtype.is_bool == (category is Category.BOOL)


def test_an_unknown_dtype_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ProtocolViolation, match="unknown dtype 'F8'; known are F64, F32"):
        DType.from_wire("F8")


@pytest.mark.parametrize(
    "wire",
    [
        None, 5, True, b"F32", "Bool", "QFloat", {}, [], [["Bool", "U8"]], {"Bool": "U16"},
        {"Bool": ["U8"]}, {"Bool": None}, {"F32": None}, {"Bool": "U8", "QFloat": []},
    ],
)  # fmt: skip
def test_invalid_dtypes_are_refused_by_the_decoder(wire: Any) -> None:
    with pytest.raises(ProtocolViolation):
        DType.from_wire(wire)


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (0, "Q3S"), (0, None), (1, "F64"), (1, []), (2, "Packed"), (2, {"PackedU32": -1}),
        (2, {"PackedU32": True}), (2, {"PackedU32": 2**64}), (2, {"Native": 0}),
        (2, [["PackedU32", 0]]),
        (3, "Row"), (3, {"Block": []}), (3, {"Block": [[1, 1, 1, 1], 1]}),
        (3, {"Block": [[0, 1, 1, 1, 1], 1]}), (3, {"Block": [[256, 1, 1, 1, 1], 1]}),
        (3, {"Block": [[1, 1, 1, 1, 1], 0]}), (3, {"Block": [[1, 1, 1, 1, 1], 6]}),
        (3, {"Block": [[1, 1, 1, 1, 1], True]}), (3, {"Block": [[1, 1, 1, 1, 1], 1.0]}),
        (3, {"Block": [[1, 1, 1, 1, 1.0], 1]}), (3, {"Block": [b"\x10\x01\x01\x01\x01", 1]}),
        (3, {"Block": [{1: 0, 2: 0, 3: 0, 4: 0, 5: 0}, 1]}), (4, "Affine"), (4, None),
    ],
)  # fmt: skip
def test_a_scheme_that_burn_does_not_have_is_refused(position: int, value: Any) -> None:
    wire = SCHEME.to_wire()
    wire[position] = value

    with pytest.raises(ProtocolViolation, match="not a quantization scheme"):
        DType.from_wire({"QFloat": wire})


@pytest.mark.parametrize("wire", [None, [], SCHEME.to_wire()[:4], dict.fromkeys(range(5))])
def test_a_scheme_of_other_fields_is_refused(wire: Any) -> None:
    with pytest.raises(ProtocolViolation, match="not a quantization scheme"):
        QuantScheme.from_wire(wire)


def test_a_map_is_refused_as_a_scheme_even_with_the_right_names() -> None:
    wire = dict.fromkeys(("Q8S", "F32", "Native", "Tensor", "Symmetric"))

    with pytest.raises(ProtocolViolation):
        QuantScheme.from_wire(wire)


schemes = st.builds(
    QuantScheme,
    st.sampled_from(QuantScheme.VALUES),
    st.sampled_from(QuantScheme.PARAMS),
    st.just("Native")
    | st.tuples(st.sampled_from(["PackedU32", "PackedNative"]), st.integers(0, 5)),
    st.none() | st.lists(st.integers(1, 255), min_size=1, max_size=5).map(tuple),
    st.just("Symmetric"),
)


@given(schemes)
def test_every_scheme_survives_encoding_and_decoding(scheme: QuantScheme) -> None:
    packed = msgpack.packb(scheme.to_wire())

    assert QuantScheme.from_wire(msgpack.unpackb(packed)) == scheme
    unpacked = msgpack.unpackb(packed, use_list=False, object_pairs_hook=FrozenMap)
    assert QuantScheme.from_wire(unpacked) == scheme


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_a_dtype_equals_itself_and_its_name_and_no_other(dtype: DType) -> None:
    assert [other for other in ALL_DTYPES if other == dtype] == [dtype]
    assert dtype == str(dtype)
    assert dtype != "text"
    assert dtype != 3
    assert {dtype: 1}[dtype] == 1


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_a_dtype_and_its_name_are_the_same_key_in_sets_and_dicts(dtype: DType) -> None:
    assert str(dtype) in {dtype}
    assert dtype in {str(dtype): 1}
    assert len({dtype, *ALL_DTYPES}) == len(ALL_DTYPES)


def test_a_dtype_equals_the_types_that_have_its_name() -> None:
    class float32: ...  # as NumPy writes it

    class Named:
        name = "float32"

    assert DType.from_wire("F32") == float32
    assert DType.from_wire("F32") == Named()
    assert DType.from_wire("F64") != float32
