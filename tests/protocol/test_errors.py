"""The errors: their form on the wire and their texts."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol import errors
from burn_remote_protocol.errors import (
    CODES,
    BurnRemoteError,
    ConnectionLost,
    LimitExceeded,
    OperationFailed,
    OutOfMemory,
    ProtocolViolation,
    SessionLost,
    ShapeMismatch,
    error_from_wire,
    error_to_wire,
    shown,
)


def classes_of(error: type[BurnRemoteError]) -> list[type[BurnRemoteError]]:
    return [error, *[inner for child in error.__subclasses__() for inner in classes_of(child)]]


def test_every_error_has_a_code_of_its_own() -> None:
    defined = [
        error for error in classes_of(BurnRemoteError) if error.__module__ == errors.__name__
    ]

    assert set(CODES.values()) == set(defined)
    assert len(CODES) == len(defined)
    assert all(error.code == code for code, error in CODES.items())


@pytest.mark.parametrize(
    "kind", [kind for kind in CODES.values() if kind is not LimitExceeded], ids=lambda k: k.code
)
def test_an_error_arrives_as_it_was_sent(kind: type[BurnRemoteError]) -> None:
    arrived = error_from_wire(error_to_wire(kind("no room")))

    assert type(arrived) is kind
    assert str(arrived) == "no room"


def test_a_failed_operation_arrives_with_all_its_fields() -> None:
    sent = OutOfMemory("no room", operation="Numeric.Add", shapes="float32[2]", tensor=7)

    arrived = error_from_wire(error_to_wire(sent))

    assert isinstance(arrived, OutOfMemory)
    assert (arrived.operation, arrived.shapes, arrived.tensor) == ("Numeric.Add", "float32[2]", 7)
    assert str(arrived) == "Numeric.Add(float32[2]) failed: no room"


def test_the_text_of_a_failed_operation_has_the_line_that_issued_it() -> None:
    error = OperationFailed("no room", operation="Numeric.Add", location="train.py:31")

    assert str(error) == "Numeric.Add() failed: no room (issued at train.py:31)"


def test_an_exceeded_limit_arrives_as_a_violation_with_its_text() -> None:
    arrived = error_from_wire(error_to_wire(LimitExceeded("rank", seen=40_000, allowed=32)))

    assert type(arrived) is ProtocolViolation
    assert str(arrived) == "rank: seen 40,000, allowed 32"


def test_huge_integers_over_a_limit_are_shown_by_their_length() -> None:
    error = LimitExceeded("elements", seen=10**400, allowed=32)
    assert str(error) == "elements: seen <1,329-bit integer>, allowed 32"
    assert str(LimitExceeded("elements", seen=10**5000, allowed=32))


def test_an_unknown_code_arrives_as_a_failed_operation() -> None:
    assert type(error_from_wire(["quantum_decoherence", "why", "", "", None])) is OperationFailed


@pytest.mark.parametrize(
    "wire",
    [
        None, 5, [], ["error", "text"], [["error"], "text", "", "", None],
        ["error", 5, "", "", None], ["error", "text", None, "", None],
        ["operation_failed", "text", "", "", "7"], ["operation_failed", "text", "", "", True],
    ],
)  # fmt: skip
def test_invalid_errors_are_refused(wire: Any) -> None:
    with pytest.raises(ProtocolViolation, match="expected an encoded error"):
        error_from_wire(wire)


def test_errors_can_be_caught_as_pythons_own_classes() -> None:
    assert issubclass(ShapeMismatch, ValueError)
    assert issubclass(SessionLost, ConnectionLost)
    assert issubclass(ConnectionLost, ConnectionError)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((2, 3), "(2, 3)"),
        (2**64 - 1, "18446744073709551615"),
        (2**200, "<201-bit integer>"),
        (b"abc", "b'abc'"),
        (bytes(1000), "<1,000 bytes>"),
        (memoryview(bytes(1000)), "<1,000 bytes>"),
    ],
)
def test_an_excerpt_shows_short_values_and_measures_long_ones(value: Any, text: str) -> None:
    assert shown(value) == text


@given(
    st.recursive(
        st.text() | st.integers() | st.binary() | st.floats(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=100,
    )
)
def test_an_excerpt_is_short(value: Any) -> None:
    assert len(shown([value] * 100)) <= 201


def test_an_excerpt_of_a_hostile_value_is_short() -> None:
    nested: Any = []
    for _ in range(100_000):
        nested = [nested]

    for value in (nested, [nested] * 1000, "x" * 10**6, 10**5000, [10**5000] * 1000):
        assert len(shown(value)) <= 201


STORED = [
    *(
        error_class("why")
        for error_class in CODES.values()  # not its subclasses, which depend on earlier imports
        if error_class is not errors.LimitExceeded
    ),
    errors.LimitExceeded("bytes in one message", seen=3, allowed=2),
    errors.OutOfMemory(
        "full", operation="Numeric.Add", shapes="float32[2]", tensor=4, location="a:1"
    ),
]


@pytest.mark.parametrize("error", STORED, ids=lambda error: type(error).__name__)
def test_a_fresh_error_is_an_equal_copy_with_a_traceback_of_its_own(
    error: errors.BurnRemoteError,
) -> None:
    error.__cause__ = cause = ValueError("because")
    for _ in range(2):
        again = errors.fresh(error)
        assert again is not error
        assert type(again) is type(error)
        assert (str(again), again.args) == (str(error), error.args)
        assert vars(again) == vars(error)
        assert again.__cause__ is cause
        with pytest.raises(type(error)):
            raise again
        assert again.__traceback__ is not None
        assert error.__traceback__ is None


def test_a_note_on_a_fresh_error_is_on_no_other() -> None:
    stored = errors.ConnectionLost("gone")
    stored.add_note("stored")
    first = errors.fresh(stored)
    first.add_note("first")
    assert errors.fresh(stored).__notes__ == stored.__notes__ == ["stored"]
    assert first.__notes__ == ["stored", "first"]


def test_an_error_that_is_its_own_cause_can_be_detached() -> None:
    with pytest.raises(OperationFailed) as caught:
        raise_from_itself(OperationFailed("wrong"))
    assert errors.detached(caught.value) is caught.value
    assert caught.value.__traceback__ is None


def raise_from_itself(error: OperationFailed) -> None:
    raise error from error


@pytest.mark.parametrize("name", errors.__all__)
def test_an_error_can_be_pickled_and_copied(name: str) -> None:
    kind = getattr(errors, name)
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        return
    options = {"seen": 5, "allowed": 4} if kind is errors.LimitExceeded else {}
    error = kind("a reason", **options)
    error.add_note("a note")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is kind
        assert (str(again), again.__dict__) == (str(error), error.__dict__)
