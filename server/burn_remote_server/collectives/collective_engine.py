"""The interfaces of a member of a group, and of engines, which exchange its elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from burn_remote_protocol.collectives import CollectiveCall
from burn_remote_protocol.messages import BeginCollective
from burn_remote_server.tensors.slots import InFlight, Lent

__all__ = [
    "CollectiveEngine",
    "Engine",
    "GroupIsBroken",
    "Job",
    "Membership",
    "StartingEngine",
]


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


class Engine(Protocol):
    """The methods of every engine. Only its member's worker calls them."""

    @property
    def name(self) -> str:
        """The engine's name, such as ``ring``."""
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


class CollectiveEngine(Engine, Protocol):
    """An engine that exchanges the elements in the thread that calls it, the member's worker."""

    def carry_out(self, job: Job, inputs: Sequence[Any]) -> Sequence[Any]:
        """Carry out a collective; return the shared arrays of outputs.

        The member has announced the collective to the next member before this call.
        ``Member.await_agreement`` waits for the announcement of the previous member.
        ``inputs`` are arrays. Raises ``GroupIsBroken`` and ``BurnRemoteError``.
        """
        ...


@runtime_checkable
class StartingEngine(Engine, Protocol):
    """An engine that only starts collectives, which a device carries out.

    The member's worker or the thread of its session calls the following methods, one at a time.
    """

    def has_room(self) -> bool:
        """Whether another collective may be started; otherwise it calls ``Member.wake`` later."""
        ...

    def is_busy(self) -> bool:
        """Whether a collective is in progress. Any thread may call this."""
        ...

    def starts_at_once(self, call: CollectiveCall) -> bool:
        """Whether ``start`` certainly does not wait for another member."""
        ...

    def start(self, job: Job, inputs: Sequence[Any]) -> None:
        """Start a collective on shared arrays; call ``Member.complete`` when it has finished.

        All members have announced it. Raises ``GroupIsBroken`` and ``BurnRemoteError``.
        """
        ...


class Membership(Protocol):
    """A session's side of a member of a group. Any thread may call it; no method waits."""

    def submit(self, job: Job) -> None:
        """Carry out a collective after those submitted before.

        It may begin only with ``flush``. Each output always gets an array or an error.
        """
        ...

    def flush(self) -> None:
        """Begin the collectives that were submitted."""
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
