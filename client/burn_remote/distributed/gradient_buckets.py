"""Buckets of gradients, which are reduced while the backward pass goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, final

from burn_remote.distributed.collective_engine import Bucket, Reduction
from burn_remote.distributed.packing import Layout
from burn_remote.functions.creation import zeros
from burn_remote.functions.device_class import Device
from burn_remote.functions.tensor import Tensor
from burn_remote_protocol.tensors import TensorSpec

__all__ = ["BucketPlan", "GradientExchange", "bucket_plans"]


@final
class BucketPlan:
    """Parameters of one dtype whose gradients are reduced together, by their places.

    If ``shard_count`` is not 0, the gradients are reduced as one flat tensor, padded with zeros so
    that it can be cut into that many equal shards.
    """

    __slots__ = ("_layout", "_padding", "places", "specs")

    def __init__(
        self, places: Sequence[int], specs: Sequence[TensorSpec], shard_count: int
    ) -> None:
        self.places: Final = tuple(places)
        self.specs: Final = tuple([specs[place] for place in places])
        size = sum(spec.size for spec in self.specs)
        padding = TensorSpec((-size % max(shard_count, 1),), self.specs[0].dtype)
        self._padding: Final = padding if padding.size else None
        padded = self.specs if self._padding is None else (*self.specs, padding)
        self._layout: Final = Layout(padded) if shard_count else None

    def chosen(self, tensors: Sequence[Tensor] | Mapping[int, Tensor]) -> Bucket:
        """Return the bucket of these parameters, or of their gradients."""
        bucket = [tensors[place] for place in self.places]
        if self._layout is None:
            return bucket
        if self._padding is not None:
            spec, device = self._padding, bucket[0].device
            bucket.append(zeros(spec.shape, dtype=spec.dtype, device=device))
        return self._layout.packed(bucket)

    def placed(self, bucket: Bucket) -> Iterable[tuple[int, Tensor]]:
        """Iterate over the places of the parameters and the tensors of a whole bucket."""
        if self._layout is not None:
            bucket = self._layout.unpacked(bucket)[: len(self.places)]
        return zip(self.places, bucket, strict=True)


def bucket_plans(
    specs: Sequence[TensorSpec], limit_bytes: int, shard_count: int
) -> list[BucketPlan]:
    """Distribute parameters over buckets, the last parameters first.

    A backward pass finishes the gradients of the last layers first. A bucket ends before
    ``limit_bytes`` would be exceeded, and where the dtype changes. ``shard_count`` is the number of
    shards, 0 for none.
    """
    runs: list[list[int]] = []
    size = 0
    for place in reversed(range(len(specs))):
        spec = specs[place]
        is_full = size + spec.nbytes > limit_bytes
        if not runs or is_full or specs[runs[-1][-1]].dtype != spec.dtype:
            runs.append([])
            size = 0
        runs[-1].append(place)
        size += spec.nbytes
    return [BucketPlan(places, specs, shard_count) for places in runs]


@final
class GradientExchange:
    """The reductions of the gradients of one backward pass on each member.

    A member sends a bucket as soon as all gradients of this bucket, and of the buckets before it,
    are finished. So all members issue the same collectives in the same order, even if the loss
    reaches different parameters on each. A parameter without a gradient counts as zeros.
    """

    def __init__(
        self,
        plans: Sequence[BucketPlan],
        devices: Sequence[Device],
        begin: Callable[[], Reduction],
    ) -> None:
        self._plans = plans
        self._devices = devices
        self._begin = begin
        self._reductions: list[Reduction | None] = [None for _ in plans]
        self._bucket_of = {
            place: number for number, plan in enumerate(plans) for place in plan.places
        }
        self._member = -1
        self._sent = 0  # the number of buckets that the member has sent
        self._finished: list[dict[int, Tensor]] = []

    def start(self, member: int) -> None:
        """Begin to take the gradients of a member."""
        self._member = member
        self._sent = 0
        self._finished = [{} for _ in self._plans]

    def finish(self, place: int, gradient: Tensor) -> None:
        """Take a finished gradient of the member; send the buckets that are complete now."""
        self._finished[self._bucket_of[place]][place] = gradient
        while self._sent < len(self._plans):
            if len(self._finished[self._sent]) < len(self._plans[self._sent].places):
                break
            self._send(self._sent)

    def finish_all(self, waiting: dict[int, Tensor]) -> None:
        """Send all buckets that the member has not sent.

        ``waiting`` has gradients of earlier passes for parameters that this pass did not reach.
        """
        for place in [*waiting]:
            self.finish(place, waiting[place])
        device = self._devices[self._member]
        for number in range(self._sent, len(self._plans)):
            plan, finished = self._plans[number], self._finished[number]
            for place, spec in zip(plan.places, plan.specs, strict=True):
                if place not in finished:
                    finished[place] = zeros(spec.shape, dtype=spec.dtype, device=device)
            self._send(number)

    def results(self) -> list[list[Bucket]]:
        """Return the reduced buckets of each member."""
        made = [one.results() for one in self._reductions if one is not None]
        return [[buckets[member] for buckets in made] for member in range(len(self._devices))]

    def abandon(self) -> None:
        """End reductions to which not all members have given."""
        for one in self._reductions:
            if one is not None:
                one.abandon()

    def _send(self, number: int) -> None:
        self._sent = number + 1
        plan, finished = self._plans[number], self._finished[number]
        reduction = self._reductions[number]
        if reduction is None:
            reduction = self._reductions[number] = self._begin()
        reduction.give(self._member, plan.chosen(finished))
