"""The memory that a member of a group uses besides tensors, counted in its session's quota."""

from __future__ import annotations

import threading
from typing import Final

from burn_remote_protocol.collectives import CollectiveCall
from burn_remote_server.access.quota import Quota
from burn_remote_server.collectives.packing import Packing
from burn_remote_server.collectives.ring_schedule import scratch_bytes

__all__ = ["Scratch"]


class Scratch:
    """The scratch memory of one member: the most that any of its collectives needed so far.

    A member carries out one collective at a time, so waiting collectives add nothing. ``quota``
    counts host memory. ``is_staged``: tensors are in the memory of a device, and pass through host
    memory.
    """

    def __init__(self, quota: Quota, *, is_staged: bool) -> None:
        self._quota: Final = quota
        self._is_staged: Final = is_staged
        self._lock: Final = threading.Lock()
        self._bytes = 0
        self._has_ended = False

    def reserve(self, call: CollectiveCall, members: int, rank: int) -> None:
        """Count what a collective needs beyond earlier ones. Raises ``QuotaExceeded``."""
        packing = Packing(call)
        needed = scratch_bytes(packing.call, members) + packing.copied_bytes
        if self._is_staged:
            specs = (*call.input_specs(rank), *call.output_specs(members, rank))
            needed += sum(spec.nbytes for spec in specs)
        with self._lock:
            more = needed - self._bytes
            if more > 0 and not self._has_ended:
                self._quota.hold(more)
                self._bytes = needed

    def release(self) -> None:
        """Release the counted memory: the member has left, and its threads have ended."""
        with self._lock:
            self._has_ended = True
            if self._bytes:
                self._quota.release(self._bytes)
            self._bytes = 0
