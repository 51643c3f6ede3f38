"""Counters of a server: plain integers, cheap enough for the hot path."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Final

__all__ = ["CounterRegistry", "Counters"]


@dataclass(slots=True, eq=False)
class Counters:
    """The counters of one session, or of the service itself.

    **One writer per instance**: ``+=`` on an attribute is not atomic between threads, so every
    thread that counts has its own ``Counters``. A reader may see a slightly outdated value.
    """

    sessions_opened: int = 0
    sessions_closed: int = 0
    sessions_refused: int = 0
    batches: int = 0
    thread_batches: int = 0
    operations: int = 0
    operations_lost: int = 0
    operations_stuck: int = 0  # gauge
    client_received_bytes: int = 0
    client_sent_bytes: int = 0
    peer_received_bytes: int = 0
    peer_sent_bytes: int = 0
    tensors: int = 0  # gauge
    tensor_bytes: int = 0  # gauge
    transfers_open: int = 0  # gauge
    transfers_exposed: int = 0
    transfers_served: int = 0
    transfers_fetched: int = 0
    transfers_expired: int = 0
    transfers_lent: int = 0
    transfers_borrowed: int = 0
    fusion_windows: int = 0
    fusion_plans_explored: int = 0
    fusion_plans_found: int = 0
    fusion_plans_evicted: int = 0
    fusion_operations: int = 0
    fusion_fallbacks: int = 0
    graphs: int = 0
    graph_calls: int = 0
    graph_fallbacks: int = 0
    graph_captures: int = 0
    graph_replays: int = 0
    graph_replay_fallbacks: int = 0
    graph_captures_refused: int = 0
    graph_captures_released: int = 0
    compile_seconds: float = 0.0
    kernels_compiled: int = 0
    kernels_evicted: int = 0
    kernel_compile_seconds: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)  # by the wire code of the error

    def add(self, other: Counters) -> None:
        """Add the values of ``other``."""
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        # Copy first: copy() is atomic, and the owner may insert a code during an iteration.
        self.failures.update(other.failures.copy())


_NUMBERS: Final = tuple(item.name for item in fields(Counters) if item.name != "failures")


class CounterRegistry:
    """All counters of a process: the open ones and the sum of the closed ones. Thread-safe."""

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
        """Add the counters to the total and release them. Idempotent.

        Gauges that are not zero stay in the total, because they show leaked tensors.
        """
        with self._lock:
            if self._open.pop(id(counters), None) is not None:
                self._closed.add(counters)

    def total(self) -> Counters:
        """Return the sum of all counters, open and closed."""
        total = Counters()
        with self._lock:
            total.add(self._closed)
            for counters in self._open.values():
                total.add(counters)
        return total
