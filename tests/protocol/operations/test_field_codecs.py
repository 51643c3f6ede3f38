"""Codecs of tensors, options, lists and structs: encoding, decoding and refusals."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation
from burn_remote_protocol.operations.field_codecs import (
    FieldCodec,
    ListCodec,
    OptionalCodec,
    QuantizationParametersCodec,
    StructCodec,
    TensorCodec,
)
from burn_remote_protocol.operations.parameter_codecs import (
    BoolCodec,
    NameCodec,
    ScalarCodec,
    UnsignedCodec,
)
from burn_remote_protocol.operations.wire_values import Scalar, TensorUse
from burn_remote_protocol.tensors import TensorSpec, TensorStatus
from support.recorded import golden

SPEC = TensorSpec((2,), F32)
USE = TensorUse(SPEC, TensorStatus.READ_ONLY)
INPUT = TensorCodec(frozenset({TensorStatus.READ_ONLY, TensorStatus.READ_WRITE}))
OPTIONS = StructCodec("options", (("count", UnsignedCodec()), ("ceil", BoolCodec())))


def wire(identifier: Any = 7, status: Any = "ReadOnly") -> list[Any]:
    return [[identifier], [[2]], status, "F32"]


CASES: list[tuple[FieldCodec, Any, Any, list[int]]] = [
    (INPUT, wire(), USE, [7]),
    (OptionalCodec(INPUT), None, None, []),
    (OptionalCodec(INPUT), wire(), USE, [7]),
    (ListCodec(INPUT, 0, 4, "tensors"), [], (), []),
    (ListCodec(INPUT, 0, 4, "tensors"), [wire(3), wire(1)], (USE, USE), [3, 1]),
    (QuantizationParametersCodec(INPUT), [wire()], USE, [7]),
    (QuantizationParametersCodec(INPUT), [wire(7), wire(9)], (USE, USE), [7, 9]),
    (OPTIONS, [3, True], (3, True), []),
    (ListCodec(UnsignedCodec(), 2, 2, "numbers"), [1, 2], (1, 2), []),
]


@pytest.mark.parametrize(("codec", "sent", "argument", "ids"), CASES)
def test_a_codec_encodes_what_it_decodes(
    codec: FieldCodec, sent: Any, argument: Any, ids: list[int]
) -> None:
    found: list[int] = []
    assert codec.decode(sent, found) == argument
    assert found == ids
    assert codec.encode(argument, iter(ids)) == sent


@pytest.mark.parametrize(("codec", "sent", "argument", "ids"), CASES)
def test_tuples_are_decoded_like_lists(
    codec: FieldCodec, sent: Any, argument: Any, ids: list[int]
) -> None:
    def frozen(value: Any) -> Any:
        return tuple(map(frozen, value)) if isinstance(value, list) else value

    found: list[int] = []
    assert codec.decode(frozen(sent), found) == argument
    assert found == ids


@pytest.mark.parametrize(("codec", "sent", "argument", "ids"), CASES)
def test_stripping_removes_only_the_ids(
    codec: FieldCodec, sent: Any, argument: Any, ids: list[int]
) -> None:
    found: list[int] = []
    stripped = codec.strip(sent, found)
    assert found == ids
    if ids:
        renumbered: list[int] = []
        again = codec.strip(replaced(sent, ids), renumbered)
        assert again == stripped  # the same key of the cache
        assert renumbered == [each + 100 for each in ids]


def replaced(sent: Any, ids: list[int]) -> Any:
    """Return a wire value with other ids."""
    if isinstance(sent, list) and len(sent) == 1 and sent[0] in ids and type(sent[0]) is int:
        return [sent[0] + 100]
    return [replaced(each, ids) for each in sent] if isinstance(sent, list) else sent


@pytest.mark.parametrize(
    ("codec", "sent", "says"),
    [
        (INPUT, wire(status="NotInit"), "a tensor in status ReadOnly or ReadWrite"),
        (INPUT, None, "a tensor, an array of 4"),
        (INPUT, wire(identifier=-1), "the id of a tensor"),
        (OptionalCodec(INPUT), 5, "a tensor, an array of 4"),
        (ListCodec(INPUT, 0, 4, "tensors"), "ab", "an array of tensors"),
        (ListCodec(INPUT, 0, 4, "tensors"), {0: wire()}, "an array of tensors"),
        (ListCodec(UnsignedCodec(), 2, 4, "numbers"), [1], "2 numbers"),
        (ListCodec(UnsignedCodec(), 2, 4, "numbers"), [1, -1], "unsigned 64-bit integer"),
        (QuantizationParametersCodec(INPUT), [], "parameters, an array of 1"),
        (QuantizationParametersCodec(INPUT), wire(), "parameters, an array of 1"),
        (OPTIONS, [3], "options, an array of 2"),
        (OPTIONS, [3, True, 1], "options, an array of 2"),
        (OPTIONS, [3, 1], "true or false"),
    ],
)
def test_values_that_a_codec_cannot_decode_are_refused_with_what_it_expected(
    codec: FieldCodec, sent: Any, says: str
) -> None:
    with pytest.raises(ProtocolViolation, match=says):
        codec.decode(sent, [])


def test_a_list_is_refused_by_its_length_before_its_items_are_read() -> None:
    codec = ListCodec(INPUT, 0, 2, "tensors")
    with pytest.raises(LimitExceeded) as caught:
        codec.decode([None] * 3, [])
    assert (caught.value.seen, caught.value.allowed) == (3, 2)


@pytest.mark.parametrize("sent", [5, "ab", None, [7], [5, [[2]], "ReadOnly", "F32"], wire(True)])
def test_values_other_than_tensors_cannot_be_stripped(sent: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        INPUT.strip(sent, [])


@pytest.mark.parametrize("codec", [ListCodec(INPUT, 0, 4, "x"), QuantizationParametersCodec(INPUT)])
def test_values_other_than_lists_cannot_be_stripped(codec: FieldCodec) -> None:
    with pytest.raises((TypeError, ValueError)):
        codec.strip("ab", [])


def test_rules_see_specs_in_place_of_tensors() -> None:
    assert INPUT.specs(USE) == SPEC
    assert OptionalCodec(INPUT).specs(None) is None
    assert OptionalCodec(INPUT).specs(USE) == SPEC
    assert ListCodec(INPUT, 0, 4, "x").specs((USE, USE)) == (SPEC, SPEC)
    assert QuantizationParametersCodec(INPUT).specs(USE) == SPEC


def test_a_parameter_has_no_spec() -> None:
    with pytest.raises(TypeError, match="UnsignedCodec holds no tensor"):
        UnsignedCodec().specs(3)


def test_options_are_collected_under_their_own_names() -> None:
    parameters: dict[str, Any] = {}
    OPTIONS.collect("options", (3, True), parameters)
    OptionalCodec(ScalarCodec()).collect("value", Scalar("Float", 1.5), parameters)
    OptionalCodec(ScalarCodec()).collect("other", None, parameters)
    NameCodec(("a",)).collect("mode", "a", parameters)
    assert parameters == {"count": 3, "ceil": True, "value": 1.5, "other": None, "mode": "a"}


@pytest.mark.parametrize("line", golden("TensorIr"), ids=lambda line: line.name)
def test_burns_own_tensors_are_decoded_and_encoded(line: Any) -> None:
    codec = TensorCodec(frozenset(TensorStatus))
    ids: list[int] = []
    argument = codec.decode(line.lists, ids)
    assert codec.encode(argument, iter(ids)) == line.lists


junk = st.recursive(
    st.none() | st.integers() | st.text(max_size=4) | st.booleans() | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner),
)


@given(st.sampled_from([codec for codec, *_ in CASES]), junk)
def test_nonsense_is_refused_as_a_violation(codec: FieldCodec, sent: Any) -> None:
    ids: list[int] = []
    try:
        argument = codec.decode(sent, ids)
    except (ProtocolViolation, LimitExceeded):
        return
    assert codec.encode(argument, iter(ids)) == sent
