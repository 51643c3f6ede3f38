"""The scratch memory of collectives, as a call announces it and as a session's quota counts it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.collectives import CollectiveCall, CollectiveKind
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.errors import QuotaExceeded
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.access.quota import Quota
from burn_remote_server.collectives.ring_schedule import Receive, schedule, scratch_bytes
from burn_remote_server.collectives.scratch import Scratch

Kind = CollectiveKind


@given(
    kind=st.sampled_from([kind for kind in Kind if kind is not Kind.BARRIER]),
    members=st.integers(1, 6),
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=3),
    root=st.integers(0, 5),
)
def test_no_member_needs_more_scratch_memory_than_the_call_announces(
    kind: Kind, members: int, lengths: list[int], root: int
) -> None:
    specs = tuple(TensorSpec((length * members,), F32) for length in lengths)
    call = CollectiveCall(kind, specs, root=root % members)
    allowed = scratch_bytes(call, members)
    for rank in range(members):
        received = [one for one in schedule(call, members, rank) if isinstance(one, Receive)]
        arriving = max((one.length for one in received if one.own is not None), default=0)
        waiting = sum(one.length for one in received if one.target is None)
        assert 4 * (arriving + waiting) <= allowed


def gathering(elements: int) -> CollectiveCall:
    return CollectiveCall(Kind.REDUCE_SCATTER, (TensorSpec((elements,), F32),))


def new_quota(limit: int) -> Quota:
    return Quota(limit, 10, limit)


def test_a_member_counts_the_most_that_a_collective_needed_until_it_has_left() -> None:
    quota = new_quota(10_000)
    scratch = Scratch(quota, is_staged=False)
    for elements, held in [(300, 1600), (30, 1600), (600, 3200)]:
        scratch.reserve(gathering(elements), 3, 0)
        assert quota.held == held
    with pytest.raises(QuotaExceeded):
        scratch.reserve(gathering(3_000), 3, 0)
    assert quota.held == 3200
    scratch.release()
    assert quota.held == 0
    scratch.reserve(gathering(300), 3, 0)
    assert quota.held == 0


def test_tensors_of_a_device_with_its_own_memory_pass_through_host_memory() -> None:
    quota = new_quota(10_000)
    Scratch(quota, is_staged=True).reserve(gathering(300), 3, 0)
    assert quota.held == 1600 + 1200 + 400
