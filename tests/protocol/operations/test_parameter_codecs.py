"""Codecs of parameters: encoding, decoding, bounds and refusals."""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.errors import LimitExceeded, ProtocolViolation
from burn_remote_protocol.operations.field_codecs import FieldCodec
from burn_remote_protocol.operations.parameter_codecs import (
    BoolCodec,
    DistributionCodec,
    NameCodec,
    ScalarCodec,
    SchemeCodec,
    SliceCodec,
    StringCodec,
    UnsignedCodec,
)
from burn_remote_protocol.operations.wire_values import Scalar
from burn_remote_protocol.tensors import Slice
from support.recorded import golden

NAMES = NameCodec(("Nearest", "Bilinear"))
TEXT = StringCodec(4)
DISTRIBUTION = DistributionCodec()


@pytest.mark.parametrize(
    ("codec", "sent", "argument"),
    [
        (UnsignedCodec(), 0, 0),
        (UnsignedCodec(), 2**64 - 1, 2**64 - 1),
        (BoolCodec(), True, True),
        (BoolCodec(), False, False),
        (TEXT, "", ""),
        (TEXT, "éééé", "éééé"),
        (NAMES, "Bilinear", "Bilinear"),
        (ScalarCodec(), {"Int": -1}, Scalar("Int", -1)),
        (SliceCodec(), [0, None, 2], Slice(0, None, 2)),
        (DISTRIBUTION, "Default", ("Default",)),
        (DISTRIBUTION, {"Bernoulli": 0.5}, ("Bernoulli", 0.5)),
        (DISTRIBUTION, {"Uniform": [0.0, 1.0]}, ("Uniform", 0.0, 1.0)),
        (DISTRIBUTION, {"Normal": [0.0, 2.0]}, ("Normal", 0.0, 2.0)),
    ],
)
def test_a_codec_encodes_what_it_decodes(codec: FieldCodec, sent: Any, argument: Any) -> None:
    assert codec.decode(sent, []) == argument
    assert codec.encode(argument, iter(())) == sent
    assert codec.strip(sent, []) == sent


@pytest.mark.parametrize(
    ("codec", "name"),
    [(ScalarCodec(), "ScalarIr"), (SliceCodec(), "Slice"), (DISTRIBUTION, "Distribution"),
     (SchemeCodec(), "QuantScheme")],
)  # fmt: skip
def test_burns_own_values_are_decoded_and_encoded(codec: FieldCodec, name: str) -> None:
    lines = golden(name)
    assert lines
    for line in lines:
        for wire in (line.lists, line.tuples):
            encoded = codec.encode(codec.decode(wire, []), iter(()))
            assert msgpack.packb(encoded) == line.payload, line.name


@pytest.mark.parametrize(
    ("codec", "sent", "says"),
    [
        (UnsignedCodec(), -1, "an unsigned 64-bit integer, saw -1"),
        (UnsignedCodec(), 2**64, "an unsigned 64-bit integer"),
        (UnsignedCodec(), True, "an unsigned 64-bit integer"),
        (UnsignedCodec(), 1.0, "an unsigned 64-bit integer"),
        (BoolCodec(), 1, "true or false, saw 1"),
        (BoolCodec(), None, "true or false"),
        (TEXT, b"ab", "text"),
        (TEXT, None, "text"),
        (NAMES, "nearest", "one of Nearest, Bilinear, saw 'nearest'"),
        (NAMES, ["Nearest"], "one of Nearest, Bilinear"),
        (DISTRIBUTION, "default", "a distribution"),
        (DISTRIBUTION, {"Cauchy": 1.0}, "a distribution .Default, Bernoulli, Uniform, Normal."),
        (DISTRIBUTION, {"Uniform": [0.0]}, "Uniform numbers, an array of 2"),
        (DISTRIBUTION, {"Uniform": [0, 1]}, "Uniform with floating-point numbers"),
        (DISTRIBUTION, {"Bernoulli": [0.5]}, "Bernoulli with floating-point numbers"),
        (DISTRIBUTION, {"Bernoulli": True}, "Bernoulli with floating-point numbers"),
        (DISTRIBUTION, {"Uniform": [0.0, 1.0], "Normal": [0.0, 1.0]}, "a distribution"),
        (SchemeCodec(), "Q8S", "."),
        (SchemeCodec(), ["Q9S", "F32", "Native", "Tensor", "Symmetric"], "."),
    ],
)
def test_values_that_a_codec_cannot_decode_are_refused_with_what_it_expected(
    codec: FieldCodec, sent: Any, says: str
) -> None:
    with pytest.raises(ProtocolViolation, match=says):
        codec.decode(sent, [])


def test_text_that_is_too_long_is_refused() -> None:
    with pytest.raises(LimitExceeded) as caught:
        TEXT.decode("abcde", [])
    assert (caught.value.seen, caught.value.allowed) == (5, 4)


def test_rules_and_kernels_see_the_number_of_a_scalar() -> None:
    codec = ScalarCodec()
    assert codec.plain(Scalar("UInt", 3)) == 3
    assert type(codec.plain(codec.decode({"Float": 1.0}, []))) is float


@given(st.floats())
def test_the_bits_of_a_floating_point_scalar_are_kept(value: float) -> None:
    codec = ScalarCodec()
    sent: Any = codec.encode(codec.decode({"Float": value}, []), iter(()))
    assert struct.pack("d", sent["Float"]) == struct.pack("d", value)


CODECS = [UnsignedCodec(), BoolCodec(), TEXT, NAMES, ScalarCodec(), SliceCodec(), SchemeCodec(),
          DISTRIBUTION]  # fmt: skip
junk = st.recursive(
    st.none() | st.integers() | st.text(max_size=4) | st.booleans() | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.sampled_from(["Int", "Uniform", "Bernoulli", "Bool"]), inner)
    ),
)


@given(st.sampled_from(CODECS), junk)
def test_nonsense_is_refused_as_a_violation(codec: FieldCodec, sent: Any) -> None:
    try:
        argument = codec.decode(sent, [])
    except (ProtocolViolation, LimitExceeded):
        return
    assert codec.encode(argument, iter(())) == sent
