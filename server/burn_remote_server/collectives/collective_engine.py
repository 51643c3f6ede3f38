"""The interfaces of a member of a group, and of engines, which exchange its elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from burn_remote_protocol.collectives import CollectiveCall
from burn_remote_protocol.messages import BeginCollective
from burn_remote_server.tensors.slots import InFlight, Lent

__all__ = ["CollectiveEngine", "GroupIsBroken", "Job", "Membership"]


class GroupIsBroken(Exception):
    """A thread cannot complete its work for a group; the failure has been reported."""


@dataclass(slots=True, eq=False)
class Job:
    """One collective of one member.

    Each of ``inputs`` holds a shared array, or is the slot of a tensor that has not arrived yet.
    ``outputs`` are the slots to complete; ``tensors`` are their ids, for error messages. ``begun``
    is its announcement, once its member has made it.
    """

    sequence: int
    call: CollectiveCall
    inputs: Sequence[InFlight | Lent]
    outputs: Sequence[InFlight]
    tensors: Sequence[int]
    begun: BeginCollective | None = None


class CollectiveEngine(Protocol):
    """How a member exchanges elements with the others. Only its member's worker calls it."""

    @property
    def name(self) -> str:
        """The engine's name, such as ``ring``."""
        ...

    def carry_out(self, job: Job, inputs: Sequence[Any]) -> Sequence[Any] | None:
        """Carry out a collective; return the shared arrays of outputs.

        The member has announced the collective to the next member before this call.
        ``Member.await_agreement`` waits for the announcement of the previous member.
        ``inputs`` are arrays. Returns ``None`` if the collective is still in progress after the
        call; the engine then calls ``Member.complete`` later. Raises ``GroupIsBroken`` and
        ``BurnRemoteError``.
        """
        ...

    def examine(self) -> None:
        """Raise ``BurnRemoteError`` if a collective in progress has failed. Called repeatedly."""
        ...

    def finish(self) -> None:
        """Wait for the collectives in progress.

        Raises ``GroupIsBroken`` and ``BurnRemoteError``.
        """
        ...

    def close(self) -> None:
        """Free the engine's resources, because its member leaves the group."""
        ...


class Membership(Protocol):
    """A session's side of a member of a group. Any thread may call it; no method waits."""

    def submit(self, job: Job) -> None:
        """Carry out a collective after those submitted before.

        Each output always gets an array or an error.
        """
        ...

    def reject(self, sequence: int, reason: str) -> None:
        """Report to all members that this one cannot carry out a collective."""
        ...

    def leave(self, *, has_session: bool = True) -> None:
        """Leave the group once the collectives submitted before are done.

        Without its session, or without collectives, the member does not wait long for neighbours
        that have not joined.
        """
        ...

    def abandon(self, reason: str) -> None:
        """Leave the group now; fail the collectives that are not done."""
        ...
