"""The interface of engines, which carry out one member's part of a group's collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from burn_remote_protocol.collectives import CollectiveCall
from burn_remote_server.tensors.slots import InFlight, Lent

__all__ = ["CollectiveEngine", "Job"]


@dataclass(slots=True, eq=False)
class Job:
    """One collective of one member.

    ``inputs`` hold shared arrays, or are slots of tensors that still arrive. ``outputs`` are the
    slots to complete; ``tensors`` are their ids, for error messages.
    """

    sequence: int
    call: CollectiveCall
    inputs: Sequence[InFlight | Lent]
    outputs: Sequence[InFlight]
    tensors: Sequence[int]


class CollectiveEngine(Protocol):
    """One member of a group. Any thread may call the methods; none of them waits."""

    @property
    def name(self) -> str:
        """The engine's name, such as ``ring``."""
        ...

    def submit(self, job: Job) -> None:
        """Carry out a collective after those submitted before; it always settles the outputs."""
        ...

    def reject(self, sequence: int, reason: str) -> None:
        """Report to all members that this one cannot carry out a collective."""
        ...

    def leave(self) -> None:
        """Leave the group once the collectives submitted before are done."""
        ...

    def abandon(self, reason: str) -> None:
        """Leave the group now; fail what is not done."""
        ...
