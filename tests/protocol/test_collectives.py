"""What the members of a group must agree on, and the specs of their results."""

from __future__ import annotations

import pytest

from burn_remote_protocol.collectives import (
    TOKEN_SPEC,
    CollectiveCall,
    CollectiveKind,
    GroupSpec,
    Reduction,
    link_id,
    link_proof,
)
from burn_remote_protocol.dtypes import BOOL, F32, I32
from burn_remote_protocol.errors import (
    CollectiveFailed,
    DTypeMismatch,
    ShapeMismatch,
    UsageError,
    error_from_wire,
    error_to_wire,
)
from burn_remote_protocol.tensors import TensorSpec

X = TensorSpec((6, 2), F32)
SCALAR = TensorSpec((), F32)
MEMBERS = ("ws://a:1", "ws://b:1", "ws://c:1")
Kind = CollectiveKind


@pytest.mark.parametrize(
    ("kind", "specs", "outputs"),
    [
        (Kind.ALL_REDUCE, (X, SCALAR), (X, SCALAR)),
        (Kind.REDUCE_SCATTER, (X,), (TensorSpec((2, 2), F32),)),
        (Kind.ALL_GATHER, (X,), (TensorSpec((18, 2), F32),)),
        (Kind.BROADCAST, (X, SCALAR), (X, SCALAR)),
        (Kind.ALL_TO_ALL, (X,), (X,)),
        (Kind.BARRIER, (), (TOKEN_SPEC,)),
        (Kind.REDUCE, (X,), (TOKEN_SPEC,)),
    ],
)
def test_the_shapes_of_the_outputs_follow_from_the_kind(
    kind: Kind, specs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
) -> None:
    assert CollectiveCall(kind, specs).output_specs(3, 1) == outputs


def test_only_the_root_of_a_reduce_receives_and_only_that_of_a_broadcast_sends() -> None:
    assert CollectiveCall(Kind.REDUCE, (X,), root=2).output_specs(3, 2) == (X,)
    assert CollectiveCall(Kind.BROADCAST, (X,), root=2).input_specs(2) == (X,)
    assert CollectiveCall(Kind.BROADCAST, (X,), root=2).input_specs(1) == ()
    assert CollectiveCall(Kind.ALL_REDUCE, (X,), root=2).input_specs(1) == (X,)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (CollectiveCall(Kind.ALL_REDUCE), UsageError),
        (CollectiveCall(Kind.BARRIER, (X,)), UsageError),
        (CollectiveCall(Kind.ALL_REDUCE, (X, TensorSpec((2,), I32))), DTypeMismatch),
        (CollectiveCall(Kind.ALL_REDUCE, (TensorSpec((2,), BOOL),)), DTypeMismatch),
        (CollectiveCall(Kind.REDUCE, (TensorSpec((2,), I32),), Reduction.MEAN), DTypeMismatch),
        (CollectiveCall(Kind.REDUCE_SCATTER, (TensorSpec((4,), F32),)), ShapeMismatch),
        (CollectiveCall(Kind.ALL_TO_ALL, (SCALAR,)), ShapeMismatch),
        (CollectiveCall(Kind.ALL_GATHER, (SCALAR,)), ShapeMismatch),
        (CollectiveCall(Kind.BROADCAST, (X,), root=3), UsageError),
    ],
)
def test_a_call_that_the_group_cannot_make_is_refused(
    call: CollectiveCall, error: type[UsageError]
) -> None:
    with pytest.raises(error):
        call.output_specs(3, 0)


def test_calls_that_differ_have_different_digests() -> None:
    calls = [
        CollectiveCall(Kind.ALL_REDUCE, (X,)),
        CollectiveCall(Kind.ALL_REDUCE, (X,), Reduction.MAX),
        CollectiveCall(Kind.ALL_REDUCE, (X, X)),
        CollectiveCall(Kind.ALL_REDUCE, (TensorSpec((6, 2), I32),)),
        CollectiveCall(Kind.ALL_REDUCE, (TensorSpec((12,), F32),)),
        CollectiveCall(Kind.REDUCE, (X,)),
        CollectiveCall(Kind.REDUCE, (X,), root=1),
    ]
    digests = {call.digest(number) for call in calls for number in (0, 1)}
    assert len(digests) == 2 * len(calls)


def test_what_a_kind_ignores_does_not_change_the_digest() -> None:
    plain = CollectiveCall(Kind.ALL_GATHER, (X,))
    other = CollectiveCall(Kind.ALL_GATHER, (X,), Reduction.MAX, 2)
    assert plain.digest(0) == other.digest(0)


def test_the_id_of_a_link_covers_the_secret_the_members_and_the_source() -> None:
    ids = {
        link_id(bytes(32), MEMBERS, 0),
        link_id(b"s" * 32, MEMBERS, 0),
        link_id(bytes(32), MEMBERS, 1),
        link_id(bytes(32), MEMBERS[:2], 0),
        link_id(bytes(32), (*MEMBERS[:2], "ws://d:1"), 0),
        link_id(bytes(32), ("ws://a:1ws", "://b:1", "ws://c:1"), 0),
    }
    assert len(ids) == 6
    assert link_proof(bytes(32), b"i" * 32) != link_proof(b"s" * 32, b"i" * 32)


@pytest.mark.parametrize(
    "fields",
    [
        {"secret": b"short"},
        {"rank": 3},
        {"addresses": ()},
        {"bound_seconds": 0.0},
        {"bound_seconds": 1e6},
        {"issue_seconds": 0.0},
        {"issue_seconds": float("nan")},
    ],
)
def test_an_invalid_group_is_refused(fields: dict[str, object]) -> None:
    valid = {"secret": bytes(32), "rank": 0, "addresses": MEMBERS, "bound_seconds": 1.0}
    GroupSpec(**valid)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        GroupSpec(**{**valid, **fields})  # type: ignore[arg-type]


def test_the_failure_of_a_collective_arrives_with_its_member_and_address() -> None:
    sent = CollectiveFailed("gone", member=2, address="ws://c:1", operation="all_reduce", tensor=4)
    arrived = error_from_wire(error_to_wire(sent))
    assert isinstance(arrived, CollectiveFailed)
    assert (arrived.member, arrived.address, arrived.tensor) == (2, "ws://c:1", 4)
    without = error_from_wire(error_to_wire(CollectiveFailed("mismatch")))
    assert isinstance(without, CollectiveFailed)
    assert (without.member, without.address) == (None, "")
