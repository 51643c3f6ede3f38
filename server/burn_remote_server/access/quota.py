"""Memory and tensor limits of one session and of all sessions of a device.

A session's bytes are counted in two parts. ``Quota.bytes`` counts the memory of its tensors. The
thread that executes the session updates it for each operation, without a lock. ``Quota.held``
counts other live memory: dropped tensors that a view, an exposed tensor or a reply in transit still
references, buffers, failures, and the Python objects of tensors beyond a first number of them. Any
thread may release held memory, so a lock guards it. Both parts count against the session's limit
and against the device's pool.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sized
from typing import Any, Final, Self, TypeVar

from burn_remote_protocol.errors import QuotaExceeded, SessionLost
from burn_remote_server.access.thread_turns import ThreadTurns

__all__ = ["TENSOR_BYTES", "HeldCopies", "OverheadAccount", "Pool", "Quota", "ended_for_memory"]

# Sessions reserve bytes from the pool in shares of 1/4096 of the pool, at most 16 MiB. With large
# shares, few operations take the pool's lock; with small ones, few reserved bytes stay unused.
SHARES: Final = 4096
LARGEST_SHARE_BYTES: Final = 16 * 1024 * 1024

# Bytes of frames and large signatures that do not count, so that a session whose tensors fill its
# quota still works. Multiplied by ``max_sessions``, this is a small part of a server's memory.
FREE_OVERHEAD_BYTES: Final = 2**18

# The room for urgent bytes beyond a pool's limit, as a divisor of the limit. Urgent bytes are those
# of messages, and take room from tensors only beyond this. Otherwise, a client that drops a
# tensor and uploads the next one would fill the freed room with the messages of the upload.
# Resident memory should stay within 1.25 times the limit.
URGENT_DIVISOR: Final = 16
# What a connection with a native client counts when it is not read: nine chunks of 256 KiB and the
# rest of another one, each byte twice.
ARRIVING_BYTES: Final = 11 * 2**19

# Memory of a tensor besides its elements: the array, its dimensions and its entry in the table.
# These take 260 bytes for a tensor of one dimension and 770 for one of 32. The rest covers the
# fragmentation of the heap: with 768, some runs of the endurance test exceeded the limit.
TENSOR_BYTES: Final = 1024
# Number of tensors whose objects do not count, so that a small quota is available for elements.
FREE_TENSORS: Final = 1024
# Objects are counted in steps of this many tensors, so that most operations need only a comparison.
TENSORS_COUNTED_AT_ONCE: Final = 1024

# How often, and after which pauses, a return of bytes that lacks memory is tried again.
TRIES: Final = 100
PAUSE_SECONDS: Final = 0.001

T = TypeVar("T")


def ended_for_memory(what: str, refusal: QuotaExceeded) -> SessionLost:
    """Return the error that ends a session because something necessary does not fit into memory."""
    return SessionLost(
        f"the server ended the session, because {what} did not fit into the memory limits: "
        f"{refusal.reason}"
    )


def _nothing() -> None:
    """Do nothing."""


def _free_nothing(size: int) -> bool:
    """Return that no memory was freed."""
    return False


def _reclaim_nothing() -> bool:
    """Return that nothing was released."""
    return False


def _repeated(step: Callable[[Any, int], T], owner: object, size: int) -> T:
    """Call a step that returns bytes, and again while it raises ``MemoryError``.

    A step that raises must have done nothing. Bytes that are not returned would count until the
    server ends. A step needs only a few bytes, so it mostly succeeds once another thread has run.
    Raises ``MemoryError`` if all ``TRIES`` calls fail.
    """
    tries = 0
    while True:
        try:
            return step(owner, size)
        except MemoryError:
            tries += 1
            if tries == TRIES:
                raise
        time.sleep(PAUSE_SECONDS)


class Pool:
    """The bytes that all sessions of one device share. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes: Final = max_bytes
        self.share: Final = min(LARGEST_SHARE_BYTES, max_bytes // SHARES)
        # Reentrant: garbage collection may release memory inside ``take`` of the same thread.
        self._lock: Final = threading.RLock()
        self._taken = 0
        self._urgent = 0  # of the taken bytes
        self._urgent_room: Final = max_bytes // URGENT_DIVISOR
        self._given_back = 0
        self._report_after = 2**62
        self._report: Callable[[], None] = _nothing
        # Called with the number of missing bytes before a refusal, without the lock. Returns
        # whether it returned bytes to the pool.
        self.reclaim: Callable[[int], bool] = _free_nothing
        # The threads that exceed the limit, one at a time, because they cannot do without.
        self.overdrafts: Final = ThreadTurns()

    def on_given_back(self, size: int, report: Callable[[], None]) -> None:
        """Call ``report`` each time ``size`` further bytes were returned, in any thread."""
        self._report_after, self._report = size, report

    @property
    def taken(self) -> int:
        """Bytes that sessions have reserved, used or not."""
        return self._taken

    def take(self, size: int) -> bool:
        """Reserve bytes; return whether they were available."""
        if self._take(size):
            return True
        missing = self._taken + size - self.max_bytes - self._urgent_beyond
        return self.reclaim(missing) and self._take(size)

    def _take(self, size: int) -> bool:
        with self._lock:
            if self._taken + size > self.max_bytes + self._urgent_beyond:
                return False
            self._taken += size
            return True

    @property
    def _urgent_beyond(self) -> int:
        """The urgent bytes that do not count against the limit."""
        return min(self._urgent, self._urgent_room)

    def take_urgent(self, size: int) -> bool:
        """Reserve bytes, also from the room beyond the limit; return whether they were available.

        Only for what must arrive before other memory can be freed. The caller returns the bytes by
        ``give_back_urgent``.
        """
        if self._take_urgent(size):
            return True
        missing = self._taken + size - self.max_bytes - self._urgent_room
        return self.reclaim(missing) and self._take_urgent(size)

    def _take_urgent(self, size: int) -> bool:
        with self._lock:
            if self._taken + size > self.max_bytes + self._urgent_room:
                return False
            self._add_urgent(size)
            return True

    def add_urgent(self, size: int) -> None:
        """Count urgent bytes that are already allocated, even beyond the room for them."""
        with self._lock:
            self._add_urgent(size)

    def _add_urgent(self, size: int) -> None:
        # The additions may raise ``MemoryError``, but not the assignments.
        taken, urgent = self._taken + size, self._urgent + size
        self._taken, self._urgent = taken, urgent

    @property
    def has_many_urgent(self) -> bool:
        """Whether urgent bytes use half of the room for them, or leave little of it.

        Sessions with queued frames should then receive no more, so that these take no room from
        the tensors that the frames make.
        """
        room = self._urgent_room
        return self._urgent > min(room // 2, max(0, room - ARRIVING_BYTES))

    def has_room(self, size: int) -> bool:
        """Return whether so many bytes are available without reclaiming any."""
        return self._taken + size <= self.max_bytes

    def can_have_room(self, size: int) -> bool:
        """Return whether so many bytes are available, after reclaiming some if necessary."""
        return self.has_room(size) or (
            self.reclaim(self._taken + size - self.max_bytes) and self.has_room(size)
        )

    def add(self, size: int) -> None:
        """Count bytes that are already allocated, even beyond the pool's limit."""
        with self._lock:
            self._taken += size

    @property
    def is_full(self) -> bool:
        """Whether more bytes are reserved than the limit, and than the room for urgent ones."""
        return self._taken > self.max_bytes + self._urgent_beyond

    def give_back(self, size: int) -> None:
        """Return reserved bytes."""
        self._return_by(Pool._give_back, size)

    def give_back_urgent(self, size: int) -> None:
        """Return bytes that were taken or added as urgent ones."""
        self._return_by(Pool._give_back_urgent, size)

    def _return_by(self, step: Callable[[Pool, int], bool], size: int) -> None:
        try:
            is_due = step(self, size)
        except MemoryError:
            is_due = _repeated(step, self, size)
        if is_due:
            try:  # noqa: SIM105 - ``suppress`` needs memory
                self._report()
            except MemoryError:
                pass  # a later report has the same effect

    def _give_back(self, size: int, urgent: int = 0) -> bool:
        """Return reserved bytes; return whether enough were returned for a report."""
        with self._lock:
            # These additions may raise ``MemoryError``, but not the assignments below.
            taken, given_back = self._taken - size, self._given_back + size
            urgent = self._urgent - urgent
            is_due = given_back >= self._report_after
            if is_due:
                given_back = 0
            self._taken, self._given_back, self._urgent = taken, given_back, urgent
        return is_due

    def _give_back_urgent(self, size: int) -> bool:
        return self._give_back(size, size)

    def refusal(self, size: int) -> QuotaExceeded:
        """Return the error for ``size`` bytes that did not fit."""
        return QuotaExceeded(
            f"bytes of all sessions: {self._taken + size:,} would be held, {self.max_bytes:,} are "
            "allowed; wait until other sessions free memory, or raise max_total_bytes on the server"
        )


class Quota:
    """The bytes and tensors of a session, counted against its limits.

    Any thread may call ``release``; all other methods belong to the thread that executes the
    session.
    """

    __slots__ = (
        "_counted_floor", "_counted_tensors", "_floor", "_held_lock", "_objects", "_pool", "_taken",
        "bytes", "held", "max_bytes", "max_tensor_bytes", "max_tensors", "reclaim", "tensors",
    )  # fmt: skip

    def __init__(
        self,
        max_bytes: int,
        max_tensors: int,
        max_tensor_bytes: int | None = None,
        pool: Pool | None = None,
        objects: Quota | None = None,
    ) -> None:
        """Create an unused quota.

        ``objects`` is the quota of the host memory that tensors take besides their elements, if
        their elements are in other memory.
        """
        self.max_bytes = max_bytes
        self.max_tensors = max_tensors
        self.max_tensor_bytes = max_bytes if max_tensor_bytes is None else max_tensor_bytes
        self.bytes = 0
        self.tensors = 0
        self.held = 0
        # Called before a refusal; returns whether it released bytes or tensors.
        self.reclaim: Callable[[], bool] = _reclaim_nothing
        self._held_lock = threading.RLock()
        self._pool = Pool(max_bytes) if pool is None else pool
        # Bytes reserved from the pool: ``bytes <= _taken`` and ``_taken + held <= max_bytes``.
        # When ``bytes`` falls below ``_floor``, the surplus returns to the pool.
        self._taken = 0
        self._floor = 0
        # The objects of up to ``_counted_tensors`` tensors are paid for: those of the first
        # ``FREE_TENSORS`` do not count, and the others count as held in ``_objects``. When
        # ``tensors`` falls below ``_counted_floor``, the surplus is released.
        self._objects = self if objects is None else objects
        self._counted_tensors = min(FREE_TENSORS, max_tensors)
        self._counted_floor = -1

    @property
    def total_bytes(self) -> int:
        """All bytes that count against the session's limit."""
        return self.bytes + self.held

    def take(self, size: int, count: int) -> None:
        """Count tensors about to be stored. If ``QuotaExceeded`` is raised, nothing is counted."""
        tensors = self.tensors + count
        if tensors > self._counted_tensors:
            self._count_more(count)  # which may free tensors
            tensors = self.tensors + count
        total = self.bytes + size
        if total > self._taken:
            self._take_more(size)  # the same
            tensors = self.tensors + count
            total = self.bytes + size
        self.bytes = total
        self.tensors = tensors

    def take_reserved(self, size: int, count: int) -> bool:
        """Count tensors if they fit into what is reserved from the pool; return whether they do."""
        total, tensors = self.bytes + size, self.tensors + count
        if total > self._taken or tensors > self._counted_tensors:
            return False
        self.bytes, self.tensors = total, tensors
        return True

    def give_back(self, size: int, count: int) -> None:
        """Count tensors as freed."""
        total, tensors = self.bytes - size, self.tensors - count
        self.bytes, self.tensors = total, tensors
        try:
            if total < self._floor:
                self._put_back()
            if tensors < self._counted_floor:
                self._count_fewer()
        except MemoryError:
            pass  # a later call returns the surplus to the pool

    def retain(self, size: int) -> None:
        """Count the bytes of dropped tensors as held, because something else keeps them alive.

        The caller then calls ``give_back`` for the tensors.
        """
        taken, floor = self._taken - size, self._floor - size
        with self._held_lock:
            self.held += size
        self._taken, self._floor = taken, floor

    def hold(self, size: int) -> None:
        """Count memory outside the tensors. If ``QuotaExceeded`` is raised, nothing is counted."""
        try:
            self._hold(size)
        except QuotaExceeded:
            if not self.reclaim():
                raise
            self._hold(size)

    def _hold(self, size: int) -> None:
        if self.bytes + self.held + size > self.max_bytes:
            raise self._refusal(self.bytes + self.held + size)
        over = self._taken + self.held + size - self.max_bytes
        if over > 0:  # return unused bytes of the reserved share
            taken, floor = self._taken - over, self._floor - over
            self._pool.give_back(over)
            self._taken, self._floor = taken, floor
        if not self._pool.take(size):
            raise self._pool.refusal(size)
        try:
            with self._held_lock:
                self.held += size
        except MemoryError:
            self._pool.give_back(size)
            raise

    def release(self, size: int) -> None:
        """Count held memory as freed. Any thread may call this, also after the session's end."""
        try:
            self._release(size)
        except MemoryError:
            _repeated(Quota._release, self, size)
        self._pool.give_back(size)

    def _release(self, size: int) -> None:
        with self._held_lock:
            self.held -= size

    def pass_on(self, size: int, pool: Pool) -> int:
        """Stop counting held memory here; return how many bytes of it stay reserved in ``pool``.

        The caller must return these to the pool.
        """
        if pool is not self._pool:
            self.release(size)
            return 0
        with self._held_lock:
            self.held -= size
        return size

    def refusal(self, sizes: Iterable[int]) -> QuotaExceeded | None:
        """Return the error for tensors that exceed the limit of one tensor, or ``None``."""
        for size in sizes:
            if size > self.max_tensor_bytes:
                return QuotaExceeded(
                    f"tensor bytes: {size:,} would be held, {self.max_tensor_bytes:,} are allowed; "
                    "split the tensor, or raise max_tensor_bytes on the server"
                )
        return None

    def check_slot(self, slots: Sized) -> None:
        """Check the number of failed and awaited tensors. Raises ``QuotaExceeded``."""
        if len(slots) < self.max_tensors:
            return
        self.reclaim()
        if (count := len(slots)) >= self.max_tensors:
            raise QuotaExceeded(
                f"failed and awaited tensors: {count + 1:,} would be held, {self.max_tensors:,} "
                "are allowed; drop tensors, or raise max_session_tensors on the server"
            )

    def end(self) -> None:
        """Return the tensors' bytes to the pool, at the end of the session.

        Held bytes stay counted in the pool until ``release``.
        """
        self._pool.give_back(self._taken)
        self._count(min(FREE_TENSORS, self.max_tensors))
        self.reclaim = _reclaim_nothing
        # From now on, late drops and results must not change the pool.
        self._taken = self.max_bytes = 0
        self._floor = self._counted_floor = -(2**62)

    def _take_more(self, size: int) -> None:
        try:
            self._reserve(self.bytes + size)
        except QuotaExceeded:
            if not self.reclaim():
                raise
            if self.bytes + size > self._taken:
                self._reserve(self.bytes + size)

    def _reserve(self, total: int) -> None:
        allowed = self.max_bytes - self.held
        if total > allowed:
            raise self._refusal(total + self.held)
        pool = self._pool
        wanted = min(allowed, total + pool.share)
        for target in (wanted, total):
            floor = target - 2 * pool.share
            if pool.take(target - self._taken):
                self._taken, self._floor = target, floor
                return
        raise pool.refusal(total - self._taken)

    def _put_back(self) -> None:
        pool = self._pool
        target = max(0, self.bytes) + pool.share
        floor = target - 2 * pool.share
        pool.give_back(self._taken - target)
        self._taken, self._floor = target, floor

    def _count_more(self, count: int) -> None:
        if self.tensors + count > self.max_tensors:
            self.reclaim()
        tensors = self.tensors + count
        if tensors <= self._counted_tensors:
            return
        if tensors > self.max_tensors:
            raise QuotaExceeded(
                f"session tensors: {tensors:,} would be held, {self.max_tensors:,} "
                "are allowed; drop tensors, or raise max_session_tensors on the server"
            )
        try:
            self._count(min(self.max_tensors, tensors + TENSORS_COUNTED_AT_ONCE))
        except QuotaExceeded:
            self._count(tensors)

    def _count_fewer(self) -> None:
        self._count(max(FREE_TENSORS, self.tensors + TENSORS_COUNTED_AT_ONCE))

    def _count(self, tensors: int) -> None:
        """Count the objects of the given number of tensors. Raises ``QuotaExceeded``."""
        size = TENSOR_BYTES * (tensors - self._counted_tensors)
        floor = -1 if tensors <= FREE_TENSORS else tensors - 2 * TENSORS_COUNTED_AT_ONCE
        if size > 0:
            self._objects.hold(size)
        elif size < 0:
            self._objects.release(-size)
        self._counted_tensors, self._counted_floor = tensors, floor

    def _refusal(self, total: int) -> QuotaExceeded:
        held = self.held
        kept = (
            f", {held:,} of them by views, exposed tensors, responses in transit, failures and the "
            "objects of many tensors"
            if held
            else ""
        )
        return QuotaExceeded(
            f"session bytes: {total:,} would be held{kept}, {self.max_bytes:,} are allowed; "
            "drop tensors, or raise max_session_bytes on the server"
        )


class HeldCopies:
    """Copies that count as held in a session's quota until the context ends or ``pass_to``."""

    def __init__(self, quota: Quota) -> None:
        self._quota: Final = quota
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._quota.release(self._size)
        self._size = 0

    def hold(self, size: int) -> None:
        """Count a copy that is about to be made. Raises ``QuotaExceeded``."""
        self._quota.hold(size)
        self._size += size

    def pass_to(self, pool: Pool) -> int:
        """Count the copies elsewhere; see ``Quota.pass_on``."""
        size, self._size = self._size, 0
        return self._quota.pass_on(size, pool)


class OverheadAccount:
    """The bytes of a session's frames, signatures or failures. Thread-safe.

    Bytes beyond ``FREE_OVERHEAD_BYTES`` count as held in the session's quota.
    """

    def __init__(self, quota: Quota) -> None:
        self._quota: Final = quota
        self._lock: Final = threading.RLock()
        self._bytes = 0
        self._charged = 0

    @property
    def bytes(self) -> int:
        """All bytes in the account, including the first ones, which do not count in the quota."""
        return self._bytes

    def add(self, size: int) -> None:
        """Count an object. Call only in the session's thread.

        If ``QuotaExceeded`` is raised, nothing is counted.
        """
        with self._lock:
            total = self._bytes + size
            charged = max(self._charged, total - FREE_OVERHEAD_BYTES)
            if charged > self._charged:
                self._quota.hold(charged - self._charged)
            self._bytes, self._charged = total, charged

    def remove(self, size: int) -> None:
        """Count an object as freed. Any thread may call this."""
        with self._lock:
            self._bytes -= size
            freed = self._charged - max(0, self._bytes - FREE_OVERHEAD_BYTES)
            if freed > 0:
                self._charged -= freed
                self._quota.release(freed)
