"""How much may one session hold, and how much does it hold now?"""

from __future__ import annotations

from burn_remote_protocol.errors import LimitExceeded, QuotaExceeded

__all__ = ["Quota"]


class Quota:
    """Count the bytes and tensors of a session against their limits.

    Bytes are logical: a view counts as what it shows, so the figure never depends on which results
    happen to share memory.
    """

    __slots__ = ("bytes", "max_bytes", "max_tensors", "tensors")

    def __init__(self, max_bytes: int, max_tensors: int) -> None:
        self.max_bytes = max_bytes
        self.max_tensors = max_tensors
        self.bytes = 0
        self.tensors = 0

    def take(self, size: int, count: int) -> None:
        """Count what is about to be stored. Raises ``QuotaExceeded`` and counts nothing."""
        total = self.bytes + size
        if total > self.max_bytes:
            raise QuotaExceeded(
                f"session bytes: {total:,} would be held, {self.max_bytes:,} are allowed; "
                "drop tensors, or raise max_session_bytes on the server"
            )
        if self.tensors + count > self.max_tensors:
            raise QuotaExceeded(
                f"session tensors: {self.tensors + count:,} would be held, {self.max_tensors:,} "
                "are allowed; drop tensors, or raise max_session_tensors on the server"
            )
        self.bytes = total
        self.tensors += count

    def give_back(self, size: int, count: int) -> None:
        """Count what was freed."""
        self.bytes -= size
        self.tensors -= count

    def take_slot(self, slots: int) -> None:
        """Check how many tensors are failed or on their way.

        Raises ``LimitExceeded``, which ends the session: refusing a failure its place would lose it.
        """
        if slots >= self.max_tensors:
            raise LimitExceeded(
                "failed or awaited tensors of a session", seen=slots + 1, allowed=self.max_tensors
            )
