"""Updates of replicated parameters, with a whole or a sharded state of the optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, final

import numpy as np

from burn_remote.arguments.containers import leaves, mapped
from burn_remote.distributed.collective_engine import Bucket
from burn_remote.distributed.gradient_buckets import BucketPlan
from burn_remote.distributed.group import Group
from burn_remote.distributed.packing import part_edges
from burn_remote.functions.creation import tensor
from burn_remote.functions.manipulation import concat
from burn_remote.functions.tensor import Tensor
from burn_remote.functions.tensor_value import is_tensor
from burn_remote.optimizers.optimizer_class import Optimizer
from burn_remote_protocol.errors import UsageError

__all__ = ["ReplicatedUpdate", "ShardedUpdate", "Update", "with_leaves"]

State = Mapping[str, Any]


def with_leaves(tree: Any, found: Sequence[Any]) -> Any:
    """Return nested containers with other leaves, in order."""
    following = iter(found)
    return mapped(lambda _: next(following), tree)


class Update(Protocol):
    """How the optimizer updates the parameters of all members."""

    def updated(
        self, replicas: Sequence[Any], reduced: Sequence[Sequence[Bucket]], rate: float | None
    ) -> list[Any]:
        """Return the new parameters of each member for the reduced buckets of gradients.

        If this raises, nothing has changed.
        """
        ...

    def state(self) -> State:
        """Return the state of the optimizer for all parameters, on the first member."""
        ...

    def states(self) -> Sequence[State]:
        """Return the state that each member has."""
        ...

    def restore(self, states: Sequence[State]) -> None:
        """Continue from the states of members, which may be fewer than before."""
        ...


@final
class ReplicatedUpdate:
    """Each member has the whole state and updates all parameters; see ``Update``."""

    def __init__(
        self,
        group: Group,
        plans: Sequence[BucketPlan],
        optimizer: Optimizer,
        replicas: Sequence[Any],
        state: State | None,
    ) -> None:
        self._plans: Final = plans
        self._optimizer: Final = optimizer
        if state is None:
            self._states: list[State] = [optimizer.init(one) for one in replicas]
        else:
            self._states = [_on(state, device) for device in group.devices]

    def updated(
        self, replicas: Sequence[Any], reduced: Sequence[Sequence[Bucket]], rate: float | None
    ) -> list[Any]:
        """Return the new parameters of each member for the reduced buckets of gradients."""
        made = [
            self._optimizer.update(
                replica, gradients_of(self._plans, replica, buckets), state, lr=rate
            )
            for replica, buckets, state in zip(replicas, reduced, self._states, strict=True)
        ]
        self._states = [state for _, state in made]
        return [params for params, _ in made]

    def state(self) -> State:
        """Return the state of the first member."""
        return self._states[0]

    def states(self) -> Sequence[State]:
        """Return the state of each member."""
        return self._states

    def restore(self, states: Sequence[State]) -> None:
        """Continue from the states of members, which may be fewer than before."""
        self._states = [*states]


@final
class ShardedUpdate:
    """Each member has a part of the state, and updates that part of each bucket; see ``Update``.

    This is stage 1 of ZeRO (Rajbhandari and others, 2020): the reduced gradients are scattered, and
    the updated parameters gathered.
    """

    def __init__(
        self,
        group: Group,
        plans: Sequence[BucketPlan],
        optimizer: Optimizer,
        replicas: Sequence[Any],
        state: State | None,
    ) -> None:
        self._group: Final = group
        self._plans: Final = plans
        self._optimizer: Final = optimizer
        self._tree: Final = mapped(lambda _: 0, replicas[0])
        self._shards: list[Bucket] = [
            self._shard(replica, member) for member, replica in enumerate(replicas)
        ]
        if state is None:
            self._states: list[State] = [optimizer.init(shards) for shards in self._shards]
        else:
            self._states = [
                {
                    name: slot if _is_number(slot) else self._shard(slot, member)
                    for name, slot in _on(state, device).items()
                }
                for member, device in enumerate(group.devices)
            ]

    def updated(
        self, replicas: Sequence[Any], reduced: Sequence[Sequence[Bucket]], rate: float | None
    ) -> list[Any]:
        """Return the new parameters of each member for its shards of the gradients."""
        made = [
            self._optimizer.update(shards, [shard for (shard,) in buckets], state, lr=rate)
            for shards, buckets, state in zip(self._shards, reduced, self._states, strict=True)
        ]
        # One collective for each bucket, so that the parameters of the first bucket are ready
        # early.
        gathered = [
            self._group.all_gather([[shards[number]] for shards, _ in made])
            for number in range(len(self._plans))
        ]
        replicas = [
            with_leaves(self._tree, self._placed([buckets[member] for buckets in gathered]))
            for member in range(len(self._group))
        ]
        self._shards = [shards for shards, _ in made]
        self._states = [state for _, state in made]
        return replicas

    def state(self) -> State:
        """Return the whole state, gathered on the first member."""
        first = self._group.devices[0]
        whole: dict[str, Any] = {}
        for name, slot in self._states[0].items():
            if _is_number(slot):
                whole[name] = slot
                continue
            buckets = [
                [concat([state[name][number].to(first) for state in self._states])]
                for number in range(len(self._plans))
            ]
            whole[name] = with_leaves(self._tree, self._placed(buckets))
        return whole

    def states(self) -> Sequence[State]:
        """Raise ``UsageError``: the parts of lost members are lost."""
        raise UsageError("a sharded state cannot be restored member by member")

    def restore(self, states: Sequence[State]) -> None:
        """Raise ``UsageError``: the parts of lost members are lost."""
        raise UsageError("a sharded state cannot be restored member by member")

    def _shard(self, tree: Any, member: int) -> Bucket:
        """Return a member's part of each bucket of containers like the parameters."""
        tensors = leaves(tree)
        made = []
        for plan in self._plans:
            (whole,) = plan.chosen(tensors)
            edges = part_edges(whole.size, len(self._group))
            made.append(whole[edges[member] : edges[member + 1]])
        return made

    def _placed(self, buckets: Sequence[Bucket]) -> list[Tensor]:
        """Return the tensors of whole buckets in the order of the parameters."""
        return tensors_of(self._plans, buckets)


def gradients_of(plans: Sequence[BucketPlan], replica: Any, buckets: Sequence[Bucket]) -> Any:
    """Return containers like the parameters, with the tensors of whole buckets."""
    return with_leaves(replica, tensors_of(plans, buckets))


def tensors_of(plans: Sequence[BucketPlan], buckets: Sequence[Bucket]) -> list[Tensor]:
    """Return the tensors of whole buckets in the order of the parameters."""
    placed: dict[int, Tensor] = {}
    for plan, bucket in zip(plans, buckets, strict=True):
        placed.update(plan.placed(bucket))
    return [placed[place] for place in range(len(placed))]


def _on(state: State, device: Any) -> State:
    """Return a state with its tensors, and tensors of its arrays, on a device."""

    def moved(one: Any) -> Any:
        if is_tensor(one):
            return one.to(device)
        return tensor(one, device=device) if isinstance(one, np.ndarray) else one

    return {name: mapped(moved, slot) for name, slot in state.items()}


def _is_number(slot: Any) -> bool:
    return isinstance(slot, int | float)
