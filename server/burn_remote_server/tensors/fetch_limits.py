"""Limits and quota of the fetches of one session."""

from __future__ import annotations

from functools import partial
from typing import Final

from burn_remote_protocol.errors import QuotaExceeded
from burn_remote_server.access.quota import OverheadAccount, Quota
from burn_remote_server.tensors.allocations import memory_bytes
from burn_remote_server.tensors.slots import InFlight

__all__ = ["FETCH_BYTES", "Fetches"]

# Memory of a running fetch besides its tensor: its placeholder, its entries in the tables of
# waiting fetches, and its task (measured: 2.4 to 3.7 KB, of which the quota counts 1 KiB for the
# tensor itself).
FETCH_BYTES: Final = 3072


class Fetches:
    """A session's running fetches, with the bytes reserved for each. Not thread-safe.

    A tensor that was dropped still takes memory while it arrives. So its bytes count as held until
    the fetch ends.
    """

    def __init__(
        self, quota: Quota, allowed: int | None, object_quota: Quota | None = None
    ) -> None:
        """Reserve tensors in ``quota``, and count objects in ``object_quota``, by default the same.

        Beyond ``allowed`` running fetches, ``begin`` refuses.
        """
        self._quota: Final = quota
        self._objects: Final = OverheadAccount(quota if object_quota is None else object_quota)
        self._allowed: Final = allowed
        self._begun: list[InFlight] = []  # some may have ended since the last check
        self._check_at = 0

    def begin(self, slot: InFlight) -> None:
        """Reserve memory for a tensor. Raises ``QuotaExceeded``."""
        if len(self._begun) >= self._check_at:
            self.remove_ended()
            if self._allowed is not None and len(self._begun) >= self._allowed:
                raise QuotaExceeded(
                    f"running fetches: {len(self._begun) + 1:,} would run, {self._allowed:,} are "
                    "allowed; wait until some end, or raise max_session_transfers on the server"
                )
        if slot.spec is not None:
            self._reserve(slot, memory_bytes(slot.spec))
        try:
            self._count_objects()
        except QuotaExceeded:
            self._free(slot)
            raise
        self._begun.append(slot)

    def drop(self, slot: InFlight) -> None:
        """Discard a tensor that was dropped, or that is now stored as an array."""
        size, quota = slot.reserved, self._quota
        if slot.arrived() or size is None:
            self._free(slot)
            slot.drop()
            return
        slot.reserved = None
        quota.retain(size)
        quota.give_back(size, 1)
        slot.drop(partial(quota.release, size))

    def end(self) -> None:
        """Return all reserved bytes, at the end of the session."""
        for slot in self._begun:
            self._free(slot)
        self._objects.remove(FETCH_BYTES * len(self._begun))
        self._begun.clear()

    def _count_objects(self) -> None:
        try:
            self._objects.add(FETCH_BYTES)
        except QuotaExceeded:
            self.remove_ended()
            self._objects.add(FETCH_BYTES)

    def _reserve(self, slot: InFlight, size: int) -> None:
        refusal = self._quota.refusal([size])
        if refusal is not None:
            raise refusal
        try:
            self._quota.take(size, 1)
        except QuotaExceeded:
            self.remove_ended()
            self._quota.take(size, 1)
        slot.reserved = size

    def remove_ended(self) -> None:
        """Remove ended fetches."""
        before = len(self._begun)
        self._begun = begun = [slot for slot in self._begun if not slot.arrived()]
        self._objects.remove(FETCH_BYTES * (before - len(begun)))
        # The next check waits until the number has doubled, so the average cost is constant.
        self._check_at = 2 * len(begun) + 64
        if self._allowed is not None:
            self._check_at = min(self._check_at, self._allowed)

    def _free(self, slot: InFlight) -> None:
        if slot.reserved is not None:
            self._quota.give_back(slot.reserved, 1)
            slot.reserved = None
