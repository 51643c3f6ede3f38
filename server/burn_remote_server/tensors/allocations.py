"""Accounting of the memory that a session's tensors share or that outlives them.

A tensor counts with the bytes of its elements. That is too little if a small view outlives the
tensor whose memory it shares, or if something outside the session's table references the memory,
such as an exposed tensor that was not fetched or a reply that a slow client has not read. So an
allocation, while anything references it, counts with its tensors' total bytes or its own size,
whichever is larger. The excess over the tensors counts as held (``Quota.held``).

A new tensor adds at most its own bytes, whatever memory it shares. So whether an operation fits
depends only on the shapes and on the bytes counted before, not on whether a kernel returns a view
or a copy.

Most tensors own their memory and never appear here. Invariant: an allocation has a record if two
tensors of the table share it, if it is larger than its only tensor, or if something outside the
table references it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from burn_remote_protocol.errors import QuotaExceeded
from burn_remote_protocol.interrupted_finalizers import call_once_when_freed
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.access.quota import PAUSE_SECONDS, TRIES, Quota

__all__ = ["Allocations", "hold_while_alive", "memory_bytes"]


def memory_bytes(spec: TensorSpec) -> int:
    """Return a tensor's bytes on a device, where a bool always takes one byte."""
    return spec.size if spec.dtype.is_bool else spec.nbytes


# An allocation that only tensors of the table reference: the array that owns it, its size, the sum
# of its tensors' bytes, and their number, at least 1. The reference to the array keeps its ``id``
# in use. A plain tuple, because each view makes one, and making an object takes four times as long.
_Shared = tuple[Any, int, int, int]


class _Lent:
    """An allocation that something outside the table references or has referenced."""

    __slots__ = ("outside", "root", "shown", "size", "tensors")

    def __init__(self, root: Any, size: int, shown: int, tensors: int) -> None:
        self.root = root
        self.size = size
        self.shown = shown
        self.tensors = tensors
        self.outside = 0  # the number of references from outside

    def held(self, *, ended: int = 0) -> int:
        """Bytes that count beside those of the tensors, once some outside references have ended."""
        is_alive = self.tensors or self.outside > ended
        return max(0, self.size - self.shown) if is_alive else 0


class Allocations:
    """The allocations of one session that need a record, by the ``id`` of the owning array.

    Only the thread that executes the session calls the methods, but references from outside the
    table may end in any thread.
    """

    def __init__(
        self, quota: Quota, root: Callable[[Any], Any], nbytes: Callable[[Any], int]
    ) -> None:
        self._quota: Final = quota
        self._root: Final = root
        self._nbytes: Final = nbytes
        self.shared: Final[dict[int, _Shared]] = {}
        self.lent: Final[dict[int, _Lent]] = {}
        self._lock: Final = threading.RLock()
        # Keys of records that lost an outside reference. A finalizer may run in a thread that
        # already holds the lock, so it must not wait for the lock; the thread that holds the lock
        # processes this queue.
        self._ended: Final[deque[int]] = deque()

    def add(self, array: Any, inputs: Sequence[Any] = ()) -> Any:
        """Record the memory of an array that becomes a tensor; its bytes are counted already.

        ``inputs`` are tensors whose memory it may share. Returns the array, or a copy if its
        allocation is larger than the array and the excess does not fit into the quota.
        """
        root = array if array.base is None else self._root(array)
        key = id(root)
        shared = self.shared.get(key)
        if shared is not None:
            _, size, shown, tensors = shared
            more = self._nbytes(array)
            if shown < size:
                self._quota.release(min(more, size - shown))
            self.shared[key] = (root, size, shown + more, tensors + 1)
            return array
        if self.lent and (lent := self.lent.get(key)) is not None:
            self._change(key, lent, 1, self._nbytes(array))
            return array
        if root is array and not inputs:
            return array
        size, shown = self._nbytes(root), self._nbytes(array)
        for other in inputs:
            if other is root:
                self.shared[key] = (root, size, shown + size, 2)
                return array
            if other.base is not None and self._root(other) is root:
                self.shared[key] = (root, size, shown + self._nbytes(other), 2)
                return array
        if size > shown:
            try:
                self._quota.hold(size - shown)
            except QuotaExceeded:
                return array.copy()
            self.shared[key] = (root, size, shown, 1)
        return array

    def lend(self, array: Any, borrower: object) -> None:
        """Count the memory of a tensor's array for as long as ``borrower`` lives."""
        root = self._root(array)
        key = id(root)
        lent = self.lent.get(key)
        if lent is None:
            shared = self.shared.pop(key, (root, self._nbytes(root), self._nbytes(array), 1))
            lent = _Lent(*shared)
        with self._lock:
            # A finalizer may have deleted the record since it was looked up.
            self.lent[key] = lent
            lent.outside += 1
        self._end_all()
        call_once_when_freed(borrower, partial(self._end, key))

    def shares(self, array: Any, other: Any) -> bool:
        """Whether two arrays share an allocation."""
        return self._root(array) is self._root(other)

    def forget(self, array: Any) -> None:
        """Count an array as dropped from the table."""
        size = self._nbytes(array)
        base = array.base
        key = id(array if base is None else base)
        shared = self.shared.get(key)
        if shared is None and base is not None:
            # The base may be a view itself, or an object other than an array.
            key = id(self._root(array))
            shared = self.shared.get(key)
        if shared is not None:
            root, whole, shown, tensors = shared
            left = shown - size
            held = whole - shown if shown < whole else 0
            if tensors == 1:
                del self.shared[key]
                if held:
                    self._quota.release(held)
            elif left < whole:
                self.shared[key] = (root, whole, left, tensors - 1)
                self._quota.retain(whole - left - held)
            elif tensors == 2:  # the other tensor covers the whole allocation
                del self.shared[key]
            else:
                self.shared[key] = (root, whole, left, tensors - 1)
        elif self.lent and (lent := self.lent.get(key)) is not None:
            self._change(key, lent, -1, -size)
        self._quota.give_back(size, 1)

    def _change(self, key: int, lent: _Lent, tensors: int, shown: int) -> None:
        """Add a tensor to a lent allocation or remove one, and adjust the held bytes."""
        with self._lock:
            # A finalizer may have deleted the record since the caller looked it up.
            self.lent[key] = lent
            before = lent.held()
            lent.tensors += tensors
            lent.shown += shown
            more = lent.held() - before
            if more > 0:
                self._quota.retain(more)
            elif more < 0:
                self._quota.release(-more)
            self._delete_if_unused(key, lent)
        self._end_all()

    def _delete_if_unused(self, key: int, lent: _Lent) -> None:
        """Delete a record that has neither a tensor nor a reference from outside.

        A record with a tensor stays, because its borrower may become a tensor of this session.
        """
        if not lent.outside and not lent.tensors:
            del self.lent[key]

    def _end(self, key: int) -> None:
        """Count an outside reference as ended. Thread-safe; called by finalizers."""
        self._ended.append(key)
        tries = 0
        while True:
            try:
                self._end_all()
                return
            except MemoryError:  # nobody may call this again, and the bytes would stay counted
                tries += 1
                if tries == TRIES:
                    raise
                time.sleep(PAUSE_SECONDS)

    def _end_all(self) -> None:
        lock: Any = self._lock
        is_owned = lock._is_owned  # private, but ``threading.Condition`` needs it of its lock too
        if is_owned():
            return  # inside of a call of this thread, which ends them when it has left the lock
        try:
            while self._ended and lock.acquire(blocking=False):
                while self._ended:
                    key = self._ended[0]
                    lent = self.lent[key]
                    # Now, because a lack of memory after the change would lose these bytes.
                    freed, left = lent.held() - lent.held(ended=1), lent.outside - 1
                    # No signal handler runs between these statements, because they call nothing.
                    lent.outside = left
                    del self._ended[0]
                    if freed > 0:
                        self._quota.release(freed)
                    self._delete_if_unused(key, lent)
                lock.release()
        finally:
            # An interrupt may come between ``acquire`` and the next instruction.
            if is_owned():
                lock.release()


def hold_while_alive(quota: Quota, owner: object, size: int) -> None:
    """Count bytes outside the tensors until ``owner`` is freed. Raises ``QuotaExceeded``."""
    quota.hold(size)
    call_once_when_freed(owner, partial(quota.release, size))
