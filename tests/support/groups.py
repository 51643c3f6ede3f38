"""Groups of sessions on servers, and collectives that all their members issue."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import burn_remote as br
from burn_remote_protocol.collectives import (
    CollectiveCall,
    CollectiveKind,
    GroupSpec,
    Reduction,
)

__all__ = ["Group", "group_of"]


class Group:
    """One session for each member; ``numbers`` are the group's numbers in them."""

    def __init__(self, devices: Sequence[Any], bound_seconds: float = 10.0) -> None:
        self.devices = list(devices)
        self.secret = secrets.token_bytes(32)
        self.addresses = tuple(each.runners.session.peer_address for each in devices)
        self.numbers = [
            each.runners.join_group(GroupSpec(self.secret, rank, self.addresses, bound_seconds))
            for rank, each in enumerate(devices)
        ]

    def issue(
        self,
        kind: CollectiveKind,
        inputs: Sequence[Sequence[br.Tensor]],
        reduction: Reduction = Reduction.SUM,
        root: int = 0,
    ) -> list[list[br.Tensor]]:
        """Issue a collective on all members; return each member's outputs."""
        specs = tuple(tensor.handle.spec for tensor in inputs[root])
        call = CollectiveCall(kind, specs, reduction, root)
        return [
            self.issue_one(rank, call, tensors[: len(call.input_specs(rank))])
            for rank, tensors in enumerate(inputs)
        ]

    def issue_one(
        self, rank: int, call: CollectiveCall, inputs: Sequence[br.Tensor] = ()
    ) -> list[br.Tensor]:
        """Issue a collective on one member."""
        handles = self.devices[rank].runners.collective(
            self.numbers[rank], call, [tensor.handle for tensor in inputs]
        )
        return [br.Tensor(handle) for handle in handles]

    def leave(self) -> None:
        """Leave the group on all members."""
        for each, number in zip(self.devices, self.numbers, strict=True):
            each.runners.leave_group(number)


@contextlib.contextmanager
def group_of(*addresses: str, bound_seconds: float = 10.0, **options: Any) -> Iterator[Group]:
    """Open a session at each address, and make them a group."""
    with contextlib.ExitStack() as stack:
        devices = [stack.enter_context(br.RemoteDevice(each, **options)) for each in addresses]
        yield Group(devices, bound_seconds)
