"""Which vocabularies have a row, and what happens to an operation that a dialect cannot express."""

from __future__ import annotations

from dataclasses import replace

import pytest

from burn_remote_protocol.dtypes import C64
from burn_remote_protocol.errors import ProtocolViolation, Unsupported
from burn_remote_protocol.operations.encoding import decode_operation, encode_operation
from burn_remote_protocol.operations.families import floats, session
from burn_remote_protocol.operations.row import Operation
from burn_remote_protocol.operations.table import sign
from burn_remote_protocol.operations.vocabularies import EVERYWHERE, Lifetime, Vocabulary
from burn_remote_protocol.operations.wire_values import TensorUse
from burn_remote_protocol.tensors import TensorSpec, TensorStatus
from support.specs import f32

OLD, NEW, NATIVE = Vocabulary.BURN_0_21, Vocabulary.BURN_0_22, Vocabulary.NATIVE


@pytest.mark.parametrize(
    ("lifetime", "vocabularies"),
    [
        (EVERYWHERE, {OLD, NEW, NATIVE}),
        (Lifetime(since=NEW), {NEW, NATIVE}),
        (Lifetime(until=NEW), {OLD, NATIVE}),
        (Lifetime(since=NATIVE), {NATIVE}),
    ],
)
def test_a_row_is_in_the_releases_of_its_lifetime_and_always_in_the_native_dialect(
    lifetime: Lifetime, vocabularies: set[Vocabulary]
) -> None:
    assert {each for each in Vocabulary if lifetime.includes(each)} == vocabularies


def test_an_operation_that_a_dialect_cannot_express_is_refused_by_name() -> None:
    row = replace(floats.EXP, name="Sinc", lifetime=Lifetime(since=NATIVE))
    use = TensorUse(f32(2), TensorStatus.READ_ONLY)
    operation = Operation(sign(row, use, TensorUse(f32(2), TensorStatus.NOT_INIT)), (1, 2))

    assert encode_operation(operation)
    with pytest.raises(Unsupported, match=r"Float\.Sinc is not an operation of Burn 0\.21"):
        encode_operation(operation, OLD)


@pytest.mark.parametrize("vocabulary", [OLD, NEW])
def test_burns_dialects_neither_write_nor_read_complex_tensors(vocabulary: Vocabulary) -> None:
    spec = TensorSpec((2,), C64)
    use, out = TensorUse(spec, TensorStatus.READ_ONLY), TensorUse(spec, TensorStatus.NOT_INIT)
    operation = Operation(sign(floats.EXP, use, out), (1, 2))
    custom = Operation(sign(session.CUSTOM, "name", (use,), (out,)), (1, 2))

    assert decode_operation(encode_operation(operation)) == operation
    for each in (operation, custom):
        with pytest.raises(Unsupported, match="has no complex64"):
            encode_operation(each, vocabulary)
    with pytest.raises(ProtocolViolation, match="a kind of operation"):
        decode_operation(encode_operation(operation), vocabulary)
