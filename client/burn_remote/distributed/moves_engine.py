"""The engine ``moves``: collectives composed of slices, additions and moves between devices.

It works with all devices, also of different kinds. Between servers, each part moves directly from
the server that has it to the one that needs it. Each member reduces one part of the elements: all
others send it theirs, and it sends the result to all. So each member sends and receives ``2 (n - 1)
/ n`` of the bytes, as in a ring, but in two moves instead of ``2 (n - 1)``. Small buckets, and all
buckets in a group of two members, are sent to all members at once, which saves one of these moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from burn_remote.distributed.collective_engine import Bucket
from burn_remote.distributed.packing import Layout, part_edges
from burn_remote.distributed.reduce_operations import ReduceOperation, reduced
from burn_remote.functions.creation import ones
from burn_remote.functions.device_class import Device
from burn_remote.functions.manipulation import concat
from burn_remote_protocol.dtypes import I32, Category
from burn_remote_protocol.errors import CollectiveFailed, Unsupported

__all__ = ["MovesEngine"]

# A move of this many bytes takes about as long as one of no bytes.
SMALL_BYTES: Final = 32 * 1024


@final
class MovesEngine:
    """Carries out collectives by operations on the members and by moves; see ``Engine``."""

    name: Final = "moves"

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = tuple(devices)

    def all_reduce(self, operation: ReduceOperation) -> AllReduce:
        """Begin a reduction whose results go to all members."""
        return AllReduce(self._devices, operation)

    def reduce_scatter(self, operation: ReduceOperation) -> ReduceScatter:
        """Begin a reduction that gives each member one part along axis 0 of each tensor."""
        return ReduceScatter(self._devices, operation)

    def reduce(self, operation: ReduceOperation, root: int) -> Reduce:
        """Begin a reduction whose results go to one member; the others get empty buckets."""
        return Reduce(self._devices, operation, root)

    def all_gather(self, buckets: Sequence[Bucket]) -> list[Bucket]:
        """Give each member the tensors of all, joined along axis 0 in the order of the members."""
        arrived = [self.broadcast(bucket, member) for member, bucket in enumerate(buckets)]
        return [
            [concat(parts) for parts in zip(*[sent[member] for sent in arrived], strict=True)]
            for member in range(len(self._devices))
        ]

    def broadcast(self, bucket: Bucket, root: int) -> list[Bucket]:
        """Give each member the tensors of one."""
        sent = _Packed(bucket)
        return [
            bucket if member == root else sent.on(device)
            for member, device in enumerate(self._devices)
        ]

    def all_to_all(self, buckets: Sequence[Bucket]) -> list[Bucket]:
        """Give each member its part of the tensors of all, joined along axis 0."""
        arrived = [_sent_parts(bucket, self._devices, own) for own, bucket in enumerate(buckets)]
        return [
            [concat(parts) for parts in zip(*[sent[member] for sent in arrived], strict=True)]
            for member in range(len(self._devices))
        ]

    def barrier(self) -> None:
        """Have later operations of each member run after all earlier ones of all members."""
        reduction = self.all_reduce(ReduceOperation.SUM)
        for member, device in enumerate(self._devices):
            reduction.give(member, [ones((1,), dtype=I32, device=device)])
        # Each session waits at its addition, which needs the tensors of all others.
        reduction.results()

    def failure(self) -> CollectiveFailed | None:
        """Raise ``Unsupported``: a failed move does not say which member it was."""
        raise Unsupported(
            "the engine 'moves' does not know which member failed; read a result of each member, "
            "or use native servers, whose groups have the engine 'ring'"
        )

    def end_open_reductions(self) -> None:
        """Do nothing: no member waits for another one."""

    def close(self) -> None:
        """Do nothing: between collectives, the engine holds no tensors."""


@final
class AllReduce:
    """A reduction whose results go to all members; see ``Reduction``."""

    def __init__(self, devices: Sequence[Device], operation: ReduceOperation) -> None:
        self._devices = devices
        self._operation = operation
        self._layout = Layout(())
        # ``_arrived[t][s]`` is the bucket that member ``t`` received from member ``s``, or the part
        # of it that ``t`` reduces.
        self._arrived: list[list[Bucket]] = [[[] for _ in devices] for _ in devices]
        self._is_whole = True

    def give(self, member: int, bucket: Bucket) -> None:
        """Send each other member a member's whole bucket, or the part that the receiver reduces."""
        count = len(self._devices)
        self._layout = Layout([x.handle.spec for x in bucket])
        packed = self._layout.packed(bucket)
        self._is_whole = count <= 2 or sum(x.nbytes for x in packed) <= SMALL_BYTES
        for target, parts in enumerate(
            _moved(packed, self._devices, member)
            if self._is_whole
            else _sent_parts(packed, self._devices, member)
        ):
            self._arrived[target][member] = parts

    def results(self) -> list[Bucket]:
        """Return the bucket of each member."""
        own = [_reduced_buckets(sent, self._operation) for sent in self._arrived]
        self.abandon()
        if not self._is_whole:
            gathered = MovesEngine(self._devices).all_gather(own)
            return [self._layout.unpacked(packed) for packed in gathered]
        return [self._layout.unpacked(packed) for packed in own]

    def abandon(self) -> None:
        """Free the tensors that have arrived."""
        self._arrived.clear()


@final
class ReduceScatter:
    """A reduction whose results are cut along axis 0, one part for each member.

    See ``Reduction``.
    """

    def __init__(self, devices: Sequence[Device], operation: ReduceOperation) -> None:
        self._devices = devices
        self._operation = operation
        self._arrived: list[list[Bucket]] = [[[] for _ in devices] for _ in devices]

    def give(self, member: int, bucket: Bucket) -> None:
        """Send each other member its part of a member's bucket."""
        for target, parts in enumerate(_sent_parts(bucket, self._devices, member)):
            self._arrived[target][member] = parts

    def results(self) -> list[Bucket]:
        """Return the part of each member."""
        made = [_reduced_buckets(sent, self._operation) for sent in self._arrived]
        self.abandon()
        return made

    def abandon(self) -> None:
        """Free the tensors that have arrived."""
        self._arrived.clear()


@final
class Reduce:
    """A reduction whose results go to one member; see ``Reduction``."""

    def __init__(self, devices: Sequence[Device], operation: ReduceOperation, root: int) -> None:
        self._devices = devices
        self._operation = operation
        self._root = root
        self._arrived: list[Bucket] = [[] for _ in devices]

    def give(self, member: int, bucket: Bucket) -> None:
        """Send a member's bucket to the root."""
        if member != self._root:
            bucket = _Packed(bucket).on(self._devices[self._root])
        self._arrived[member] = bucket

    def results(self) -> list[Bucket]:
        """Return the bucket of each member, which is empty for all but the root."""
        made = _reduced_buckets(self._arrived, self._operation)
        self.abandon()
        return [made if member == self._root else [] for member in range(len(self._devices))]

    def abandon(self) -> None:
        """Free the tensors that have arrived."""
        self._arrived.clear()


class _Packed:
    """A bucket to be sent; several small tensors are packed into one for each dtype."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        # Not for large tensors, because packing copies them, nor for quantized ones, which cannot
        # be packed.
        self._layout = (
            Layout([x.handle.spec for x in bucket])
            if len(bucket) > 1
            and all(x.nbytes <= SMALL_BYTES for x in bucket)
            and not any(x.dtype.category is Category.QUANTIZED for x in bucket)
            else None
        )
        self._packed = bucket if self._layout is None else self._layout.packed(bucket)

    def on(self, device: Device) -> Bucket:
        """Return the bucket on another device."""
        moved = [x.to(device) for x in self._packed]
        return moved if self._layout is None else self._layout.unpacked(moved)


def _moved(bucket: Bucket, devices: Sequence[Device], member: int) -> list[Bucket]:
    """Return a member's bucket on each device."""
    return [
        bucket if target == member else [x.to(device) for x in bucket]
        for target, device in enumerate(devices)
    ]


def _sent_parts(bucket: Bucket, devices: Sequence[Device], member: int) -> list[Bucket]:
    """Return for each member its part along axis 0 of one member's tensors, on its device."""
    count = len(devices)
    edges = [part_edges(x.shape[0], count) for x in bucket]
    sent: list[Bucket] = []
    for target, device in enumerate(devices):
        parts = [x[cut[target] : cut[target + 1]] for x, cut in zip(bucket, edges, strict=True)]
        sent.append(parts if target == member else _Packed(parts).on(device))
    return sent


def _reduced_buckets(sent: Sequence[Bucket], operation: ReduceOperation) -> Bucket:
    """Return the reduction of one bucket of each member."""
    return [reduced(tensors, operation) for tensors in zip(*sent, strict=True)]
