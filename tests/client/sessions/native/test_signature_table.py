"""A signature is defined once, until its number is reused; long signatures never are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote.sessions.native import signature_table as module
from burn_remote.sessions.native.signature_table import IN_FULL, SignatureTable
from burn_remote_protocol.dialects.bounded_unpacking import unpack_frozen
from burn_remote_protocol.dialects.native import decode_task
from burn_remote_protocol.messages import Define
from burn_remote_protocol.operations.row import Signature
from support.kernels import signature
from support.specs import f32


def negation(size: int) -> Signature:
    return signature("Float.Recip", f32(size))


def test_a_number_is_defined_by_the_task_that_comes_with_it() -> None:
    numbering = SignatureTable()
    for expected, size in enumerate((3, 4)):
        signed = negation(size)
        numbered, task = numbering.take(signed)
        numbering.keep(numbered)
        assert numbered == (expected, signed, 4 * size, True)
        assert task is not None
        assert decode_task(unpack_frozen(task)) == Define(expected, signed)
        assert numbering.known[signed.identity] is numbered


def test_reusing_a_number_removes_the_signature_that_had_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_SIGNATURES", 2)
    numbering = SignatureTable()
    first, second, third = (negation(size) for size in (1, 2, 3))
    for signed in (first, second, third):
        numbering.keep(numbering.take(signed)[0])
    assert [number for number, *_ in numbering.known.values()] == [1, 0]
    assert first.identity not in numbering.known


def test_a_number_taken_but_not_kept_goes_to_the_next_signature() -> None:
    numbering = SignatureTable()
    first, second = negation(1), negation(2)
    assert numbering.take(first)[0][0] == 0
    assert first.identity not in numbering.known
    numbered, task = numbering.take(second)
    assert task is not None
    assert decode_task(unpack_frozen(task)) == Define(0, second)
    numbering.keep(numbered)
    assert numbering.take(first)[0][0] == 1


def test_a_long_definition_gets_no_number() -> None:
    numbering = SignatureTable()
    joined = signature("Base.Cat", tuple(f32(1) for _ in range(1000)), dim=0)
    assert numbering.take(joined) == ((IN_FULL, joined, 4000, False), None)
    assert not numbering.known


SIGNATURES = [negation(size + 1) for size in range(10)]


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=60))
def test_a_known_number_is_what_the_server_was_told_last(uses: list[tuple[int, bool]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_SIGNATURES", 4)
        numbering = SignatureTable()
        server: dict[int, Signature] = {}
        for size, is_interrupted in uses:
            # New objects, as after the program's cache dropped the old ones: Python reuses ids.
            signed = SIGNATURES[size] if size % 2 else negation(size + 1)
            if signed.identity not in numbering.known:
                numbered, task = numbering.take(signed)
                assert task is not None
                definition = decode_task(unpack_frozen(task))
                assert isinstance(definition, Define)
                server[definition.number] = definition.signature
                if not is_interrupted:
                    numbering.keep(numbered)
                    assert numbering.known[signed.identity][1] is signed
            assert len(numbering.known) <= 4
            for number, known, *_ in numbering.known.values():
                assert server[number] == known
