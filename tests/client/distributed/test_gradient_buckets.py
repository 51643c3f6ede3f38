"""Buckets of gradients: the order in which they leave the members."""

from __future__ import annotations

import burn_remote as br
from burn_remote.distributed.gradient_buckets import GradientExchange, bucket_plans
from burn_remote_protocol.dtypes import F32
from burn_remote_protocol.tensors import TensorSpec

SPECS = [TensorSpec((4,), F32) for _ in range(3)]


class Recorded:
    """A reduction that notes to which one a member gives what, in order."""

    def __init__(self, number: int, given: dict[int, list[int]]) -> None:
        self._number = number
        self._given = given

    def give(self, member: int, bucket: list[br.Tensor]) -> None:
        self._given.setdefault(member, []).append(self._number)

    def results(self) -> list[list[br.Tensor]]:
        return [[], []]

    def abandon(self) -> None: ...


def test_all_members_give_their_buckets_in_one_order_whatever_their_losses_reach() -> None:
    given: dict[int, list[int]] = {}
    begun = 0

    def begin() -> Recorded:
        nonlocal begun
        begun += 1
        return Recorded(begun, given)

    with br.LocalDevice() as device:
        plans = bucket_plans(SPECS, SPECS[0].nbytes, 0)  # a bucket for each parameter
        exchange = GradientExchange(plans, [device] * 3, begin)
        for member, reached in enumerate([(2, 1, 0), (0,), (1, 0)]):
            exchange.start(member)
            for place in reached:
                exchange.finish(place, br.ones((4,), device=device))
            exchange.finish_all({})
    assert given == {0: [1, 2, 3], 1: [1, 2, 3], 2: [1, 2, 3]}
