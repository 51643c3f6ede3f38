"""What does a server count? Plain integers, so that counting costs the hot path next to nothing."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Final

__all__ = ["Counters", "Tally"]


@dataclass(slots=True, eq=False)
class Counters:
    """What one session, or the service itself, has counted.

    **One writer each**: ``+=`` on an attribute is not atomic between threads, so whatever runs in a
    thread of its own has its own ``Counters``. Readers may see a value that is a moment old.
    """

    sessions_opened: int = 0
    sessions_closed: int = 0
    sessions_refused: int = 0
    batches: int = 0
    operations: int = 0
    client_received_bytes: int = 0
    client_sent_bytes: int = 0
    peer_received_bytes: int = 0
    peer_sent_bytes: int = 0
    tensors: int = 0  # live now: goes up and down
    tensor_bytes: int = 0  # live now: goes up and down
    transfers_open: int = 0  # now: goes up and down
    transfers_exposed: int = 0
    transfers_served: int = 0
    transfers_fetched: int = 0
    transfers_expired: int = 0
    transfers_lent: int = 0
    transfers_borrowed: int = 0
    failures: Counter[str] = field(default_factory=Counter)  # by the error's wire code

    def add(self, other: Counters) -> None:
        """Add what another has counted."""
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        # Copied first, in one step: its owner may add a code while we walk through it.
        self.failures.update(other.failures.copy())


_NUMBERS: Final = tuple(item.name for item in fields(Counters) if item.name != "failures")


class Tally:
    """All counters of a process: those in use, and the sum of those that are done. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, Counters] = {}
        self._closed = Counters()

    def open(self) -> Counters:
        """Return new counters for one writer."""
        counters = Counters()
        with self._lock:
            self._open[id(counters)] = counters
        return counters

    def close(self, counters: Counters) -> None:
        """Keep what was counted and forget the counters. A second time does nothing.

        Live tensors and bytes that the owner left in them stay in the total: they were leaked.
        """
        with self._lock:
            if self._open.pop(id(counters), None) is not None:
                self._closed.add(counters)

    def total(self) -> Counters:
        """Return the sum of everything that was ever counted."""
        total = Counters()
        with self._lock:
            total.add(self._closed)
            for counters in self._open.values():
                total.add(counters)
        return total
