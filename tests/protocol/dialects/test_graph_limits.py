"""Definitions of graphs have at most the steps that the handshake announces."""

from __future__ import annotations

import pytest

from burn_remote_protocol.dialects.native import MAX_GRAPH_STEPS, decode_task
from burn_remote_protocol.errors import ProtocolViolation


@pytest.mark.parametrize("count", [0, MAX_GRAPH_STEPS + 1])
def test_a_definition_with_a_wrong_number_of_steps_is_refused(count: int) -> None:
    with pytest.raises(ProtocolViolation, match="at least 1 and at most 4,096"):
        decode_task((-13, 4096, 1, ((1, 0),) * count, (1,), ()))


def test_a_definition_with_the_most_steps_is_accepted() -> None:
    task = decode_task((-13, 4096, 1, ((1, 0),) * MAX_GRAPH_STEPS, (1,), ()))
    assert len(task.steps) == MAX_GRAPH_STEPS  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "wire",
    [
        (-13, 4096, 1, 5, (1,), ()),
        (-13, 4096, 1, "ab", (1,), ()),
        (-13, 4096, 1, ((1.0,),), (1,), ()),
        (-13, 4096, 1, ((True,),), (1,), ()),
        (-13, 4096, 1, (7,), (1,), ()),
        (-13, 4096, 1, ((1,),), None, ()),
        (-13, 4096, 1, ((1,),), (-1,), ()),
        (-13, 4096, 1, ((1,),), (1,), ((0, 0),)),
        (-13, 4096, 1, ((1,),), (1,), (0,)),
        (-13, 4095, 1, ((1,),), (1,), ()),
        (-13, 4352, 1, ((1,),), (1,), ()),
        (-13, 4096, -1, ((1,),), (1,), ()),
        (-13, 4096, 2**40, ((1,),), (1,), ()),
        (-13, 4096, 1, ((1,),), (1,)),
    ],
)
def test_a_malformed_definition_is_refused(wire: object) -> None:
    with pytest.raises(ProtocolViolation):
        decode_task(wire)
