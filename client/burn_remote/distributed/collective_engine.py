"""The interface of engines, which carry out the collectives of a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from burn_remote.distributed.reduce_operations import ReduceOperation
from burn_remote.functions.tensor import Tensor
from burn_remote_protocol.errors import CollectiveFailed

__all__ = ["Bucket", "Engine", "Reduction"]

# The tensors that one member contributes to a collective, or receives from it.
Bucket = list[Tensor]


class Reduction(Protocol):
    """One reduction, to which the members give their buckets one after the other."""

    def give(self, member: int, bucket: Bucket) -> None:
        """Give the bucket of a member; its tensors are sent to the others from here on.

        Each member gives once. All buckets have the same shapes and dtypes.
        """
        ...

    def results(self) -> list[Bucket]:
        """Return the bucket of each member, once all have given theirs. Does not wait."""
        ...

    def abandon(self) -> None:
        """End the reduction although some members gave nothing. No effect after ``results``."""
        ...


class Engine(Protocol):
    """Carries out collectives of the members of one group, in the order in which they are issued.

    The tensors of a bucket belong to the device of its member and are not tracked. No method waits,
    except for tensors that pass through this process: those of a member that other members cannot
    reach.
    """

    @property
    def name(self) -> str:
        """The name of the engine, for ``Group.engine``."""
        ...

    def all_reduce(self, operation: ReduceOperation) -> Reduction:
        """Begin a reduction whose results go to all members."""
        ...

    def reduce_scatter(self, operation: ReduceOperation) -> Reduction:
        """Begin a reduction that gives each member one part along axis 0 of each tensor."""
        ...

    def reduce(self, operation: ReduceOperation, root: int) -> Reduction:
        """Begin a reduction whose results go to one member; the others get empty buckets."""
        ...

    def all_gather(self, buckets: Sequence[Bucket]) -> list[Bucket]:
        """Give each member the tensors of all, joined along axis 0 in the order of the members."""
        ...

    def broadcast(self, bucket: Bucket, root: int) -> list[Bucket]:
        """Give each member the tensors of one."""
        ...

    def all_to_all(self, buckets: Sequence[Bucket]) -> list[Bucket]:
        """Give each member its part of the tensors of all, joined along axis 0."""
        ...

    def barrier(self) -> None:
        """Have later operations of each member run after all earlier ones of all members."""
        ...

    def failure(self) -> CollectiveFailed | None:
        """Wait until all that was issued is carried out, or a member failed; return its failure.

        Raises ``Unsupported`` if the engine does not know which member failed.
        """
        ...

    def end_open_reductions(self) -> None:
        """End reductions that were interrupted before all members joined. Call it before others.

        An interrupt of ``Reduction.abandon`` leaves such a reduction.
        """
        ...

    def close(self) -> None:
        """Free what the engine holds. A second call does nothing."""
        ...
