"""Which tensors may be fetched, by whom, how often and until when?

One registry serves a whole process: its sessions expose tensors, its peers and its own sessions fetch
them. A fetch may come before its expose and waits. Arrays are never changed in place, so a fetch
inside the process hands over the array itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from burn_remote_protocol.errors import OperationFailed, QuotaExceeded, TransferFailed
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.interface import Backend

__all__ = ["Exposed", "Transfers"]

# Fetches that wait for their expose. Larger: a peer that guesses ids holds more memory. Smaller: a
# burst of moves between two servers whose sessions run at different speeds is refused.
MAX_WAITING: Final = 65_536


@dataclass(frozen=True, slots=True)
class Exposed:
    """A tensor that may be fetched: the array, where it lives, and what it is; or why it failed."""

    array: Any
    spec: TensorSpec
    backend: Backend
    failure: OperationFailed | None = None


@dataclass(slots=True)
class _Entry:
    exposed: Exposed
    owner: object
    remaining: int
    expires: float


@dataclass(slots=True)
class _Waiting:
    callbacks: list[Callable[[Exposed], None]] = field(default_factory=list)


Key = tuple[str, bytes | int]


class Transfers:
    """Where exposed tensors and the fetches that want them meet. Thread-safe.

    Keys name the dialect beside the id, since Burn's small ids must not open a native transfer.
    """

    def __init__(self, max_exposed_per_session: int = 65_536) -> None:
        self._lock = threading.Lock()
        self._entries: dict[Key, _Entry] = {}
        self._waiting: dict[Key, _Waiting] = {}
        self._max_exposed = max_exposed_per_session
        self._owned: dict[object, int] = {}
        # How many exposes, fetches served, and exposes that nobody fetched in time there were.
        self.exposed = 0
        self.served = 0
        self.expired = 0

    def expose(
        self, key: Key, exposed: Exposed, *, owner: object, count: int, expires_seconds: float
    ) -> None:
        """Let ``count`` fetches have a tensor until it expires.

        Raises ``TransferFailed`` for an id that is in use and ``QuotaExceeded`` for too many.
        """
        if count < 1:
            return
        with self._lock:
            self._expire()
            if key in self._entries:
                raise TransferFailed("this transfer id is already in use")
            if self._owned.get(owner, 0) >= self._max_exposed:
                raise QuotaExceeded(
                    f"exposed tensors of a session: {self._max_exposed:,} are allowed"
                )
            self.exposed += 1
            waiting = self._waiting.pop(key, None)
            callbacks = waiting.callbacks[:count] if waiting else []
            self.served += len(callbacks)
            if len(callbacks) < count:
                self._owned[owner] = self._owned.get(owner, 0) + 1
                self._entries[key] = _Entry(
                    exposed, owner, count - len(callbacks), time.monotonic() + expires_seconds
                )
        for callback in callbacks:
            callback(exposed)

    def fetch(self, key: Key, callback: Callable[[Exposed], None]) -> None:
        """Call ``callback(exposed)`` once, now or when the tensor is exposed, in that thread.

        Whoever stops waiting must ``forget`` the callback. Raises ``TransferFailed`` when too many wait.
        """
        with self._lock:
            self._expire()
            entry = self._entries.get(key)
            if entry is None:
                if len(self._waiting) >= MAX_WAITING:
                    raise TransferFailed(f"{MAX_WAITING:,} fetches wait for their tensor already")
                self._waiting.setdefault(key, _Waiting()).callbacks.append(callback)
                return
            self.served += 1
            entry.remaining -= 1
            if entry.remaining == 0:
                self._remove(key, entry)
        callback(entry.exposed)

    def forget(self, key: Key, callback: Callable[[Exposed], None]) -> None:
        """Stop waiting for a tensor."""
        with self._lock:
            waiting = self._waiting.get(key)
            if waiting is not None and callback in waiting.callbacks:
                waiting.callbacks.remove(callback)
                if not waiting.callbacks:
                    del self._waiting[key]

    def withdraw(self, owner: object) -> None:
        """Free what a session exposed and nobody fetched."""
        with self._lock:
            for key, entry in [*self._entries.items()]:
                if entry.owner is owner:
                    self._remove(key, entry)

    def expire(self) -> None:
        """Free what was exposed for longer than it was meant to be."""
        with self._lock:
            self._expire()

    def __len__(self) -> int:
        return len(self._entries)

    def _expire(self) -> None:
        # Entries stand in the order of their expose and nearly always expire in it.
        now = time.monotonic()
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            if entry.expires > now:
                return
            self.expired += 1
            self._remove(key, entry)

    def _remove(self, key: Key, entry: _Entry) -> None:
        del self._entries[key]
        left = self._owned[entry.owner] - 1
        if left:
            self._owned[entry.owner] = left
        else:
            del self._owned[entry.owner]
