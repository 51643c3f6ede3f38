"""How many tensors may one session be fetching, and who pays for those that it no longer wants?"""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.errors import QuotaExceeded
from burn_remote_server.access.quota import Quota
from burn_remote_server.execution.plans import memory_bytes
from burn_remote_server.execution.slots import InFlight

__all__ = ["Fetches"]


class Fetches:
    """A session's fetches, with the room reserved for each. Not thread-safe.

    What is still arriving takes memory, dropped or not: its room stays reserved until then.
    """

    def __init__(self, quota: Quota, allowed: int | None) -> None:
        self._quota: Final = quota
        self._allowed: Final = allowed
        self._begun: list[InFlight] = []  # and not known to have ended
        self._look_at = 0

    def begin(self, slot: InFlight) -> None:
        """Reserve room for a tensor. Raises ``QuotaExceeded``."""
        if len(self._begun) >= self._look_at:
            self._end()
            if self._allowed is not None and len(self._begun) >= self._allowed:
                raise QuotaExceeded(
                    f"tensors being fetched: {len(self._begun) + 1:,} would be, {self._allowed:,} "
                    "are allowed; wait for some, or raise max_session_transfers on the server"
                )
        if slot.spec is not None:
            self._reserve(slot, memory_bytes(slot.spec))
        self._begun.append(slot)

    def drop(self, slot: InFlight) -> None:
        """Let go of a tensor that nobody wants any more, or that was stored as an array."""
        if slot.arrived():
            self._free(slot)
        slot.drop()

    def end(self) -> None:
        """Free the room of all: the session has ended and dropped its tensors."""
        for slot in self._begun:
            self._free(slot)
        self._begun.clear()

    def _reserve(self, slot: InFlight, size: int) -> None:
        refusal = self._quota.refusal([size])
        if refusal is not None:
            raise refusal
        try:
            self._quota.take(size, 1)
        except QuotaExceeded:
            self._end()
            self._quota.take(size, 1)
        slot.reserved = size

    def _end(self) -> None:
        """Forget the fetches that have ended; free the room of those dropped before."""
        begun = []
        for slot in self._begun:
            if not slot.arrived():
                begun.append(slot)
            elif slot.is_dropped:
                self._free(slot)
        self._begun = begun
        # Not at every fetch: that would take longer the more there are.
        self._look_at = 2 * len(begun) + 64
        if self._allowed is not None:
            self._look_at = min(self._look_at, self._allowed)

    def _free(self, slot: InFlight) -> None:
        if slot.reserved is not None:
            self._quota.give_back(slot.reserved, 1)
            slot.reserved = None
