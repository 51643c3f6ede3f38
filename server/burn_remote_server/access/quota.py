"""How much may one session hold, and all together, and how much do they hold now?"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

from burn_remote_protocol.errors import LimitExceeded, QuotaExceeded

__all__ = ["Pool", "Quota"]

# Sessions take bytes out of the pool in shares of the whole of this size, so that the lock is not
# asked per operation. Larger shares: more of the pool lies with sessions that do not use it.
# Smaller: the lock is taken more often.
SHARES: Final = 4096
LARGEST_SHARE_BYTES: Final = 16 * 1024 * 1024


class Pool:
    """The bytes that all sessions of one device share. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes: Final = max_bytes
        self.share: Final = min(LARGEST_SHARE_BYTES, max_bytes // SHARES)
        self._lock: Final = threading.Lock()
        self._taken = 0

    @property
    def taken(self) -> int:
        """Bytes that sessions have taken, used or not."""
        return self._taken

    def take(self, size: int) -> bool:
        """Take bytes out of the pool if there are so many."""
        with self._lock:
            if self._taken + size > self.max_bytes:
                return False
            self._taken += size
            return True

    def give_back(self, size: int) -> None:
        """Put bytes back."""
        with self._lock:
            self._taken -= size


class Quota:
    """Count the bytes and tensors of a session against their limits.

    Bytes are logical: a view counts as what it shows, so the figure never depends on which results
    happen to share memory.
    """

    __slots__ = (
        "_floor", "_pool", "_taken", "bytes", "max_bytes", "max_tensor_bytes", "max_tensors",
        "tensors",
    )  # fmt: skip

    def __init__(
        self,
        max_bytes: int,
        max_tensors: int,
        max_tensor_bytes: int | None = None,
        pool: Pool | None = None,
    ) -> None:
        self.max_bytes = max_bytes
        self.max_tensors = max_tensors
        self.max_tensor_bytes = max_bytes if max_tensor_bytes is None else max_tensor_bytes
        self.bytes = 0
        self.tensors = 0
        self._pool = pool
        # What was taken out of the pool, and below which use some of it goes back.
        self._taken = max_bytes if pool is None else 0
        self._floor = 0

    def take(self, size: int, count: int) -> None:
        """Count what is about to be stored. Raises ``QuotaExceeded`` and counts nothing."""
        total = self.bytes + size
        if total > self._taken:
            self._take_more(total)
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
        if self.bytes < self._floor:
            self._put_back()

    def refusal(self, sizes: Iterable[int]) -> QuotaExceeded | None:
        """Return why tensors of these sizes could never be held, or ``None``."""
        for size in sizes:
            if size > self.max_tensor_bytes:
                return QuotaExceeded(
                    f"tensor bytes: {size:,} would be held, {self.max_tensor_bytes:,} are allowed; "
                    "split the tensor, or raise max_tensor_bytes on the server"
                )
        return None

    def take_slot(self, slots: int) -> None:
        """Check how many tensors are failed or on their way.

        Raises ``LimitExceeded``, which ends the session: refusing a failure its place would lose
        it.
        """
        if slots >= self.max_tensors:
            raise LimitExceeded(
                "failed or awaited tensors of a session", seen=slots + 1, allowed=self.max_tensors
            )

    def end(self) -> None:
        """Put everything back into the pool: the session has ended."""
        if self._pool is not None:
            self._pool.give_back(self._taken)
            # Late drops and results must not reach the pool any more.
            self._taken = self.max_bytes = 0
            self._floor = -(2**62)

    def _take_more(self, total: int) -> None:
        if total > self.max_bytes:
            raise QuotaExceeded(
                f"session bytes: {total:,} would be held, {self.max_bytes:,} are allowed; "
                "drop tensors, or raise max_session_bytes on the server"
            )
        pool = self._pool
        assert pool is not None  # without one, all that is allowed was taken at the start
        wanted = min(self.max_bytes, total + pool.share)
        for target in (wanted, total):
            if pool.take(target - self._taken):
                self._taken = target
                self._floor = target - 2 * pool.share
                return
        seen = pool.taken + total - self._taken
        raise QuotaExceeded(
            f"bytes of all sessions: {seen:,} would be held, {pool.max_bytes:,} are allowed; "
            "wait until others need less, or raise max_total_bytes on the server"
        )

    def _put_back(self) -> None:
        pool = self._pool
        assert pool is not None  # without one, the floor is 0
        target = max(0, self.bytes) + pool.share
        pool.give_back(self._taken - target)
        self._taken = target
        self._floor = target - 2 * pool.share
