"""The interfaces that an engine calls: its outbox, and the session's groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from burn_remote_protocol.collectives import GroupSpec
from burn_remote_protocol.errors import OperationFailed
from burn_remote_protocol.messages import Collective, Fetch, JoinGroup, LeaveGroup, ReplyValue
from burn_remote_server.tensors.slots import InFlight, Lent

__all__ = ["Groups", "Outbox"]


class Outbox(Protocol):
    """The engine's output. Its methods are called in the thread that runs the engine."""

    def reply(self, request: int, value: ReplyValue) -> None:
        """Respond to a request; a large ``TensorData`` may be sent later, in chunks."""
        ...

    def failed(self, tensors: tuple[int, ...], error: OperationFailed) -> None:
        """Report a failed operation, unless it failed only because an input had failed."""
        ...

    def fetch(self, task: Fetch, slot: InFlight) -> None:
        """Start a fetch, whose result or error is always delivered to ``slot``."""
        ...


class Groups(Protocol):
    """The groups of which a session is a member. Its methods never wait."""

    def join(self, task: JoinGroup) -> None:
        """Become a member of a group."""
        ...

    def spec(self, group: int) -> GroupSpec:
        """Return the group with a number. Raises ``OperationFailed``."""
        ...

    def submit(
        self, task: Collective, inputs: Sequence[InFlight | Lent], outputs: Sequence[InFlight]
    ) -> None:
        """Carry out a collective; each of its outputs always gets an array or an error.

        Raises ``OperationFailed``.
        """
        ...

    def reject(self, task: Collective, reason: str) -> None:
        """Tell the other members that this one cannot carry out a collective."""
        ...

    def leave(self, task: LeaveGroup) -> None:
        """Leave a group once the collectives submitted before are done."""
        ...

    def end(self) -> None:
        """Leave all groups."""
        ...
