"""Placeholders for tensors that have no array yet, or will never have one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from burn_remote_protocol.errors import OperationFailed, TransferFailed, detached
from burn_remote_protocol.latches import Latch
from burn_remote_protocol.tensors import TensorSpec

__all__ = ["InFlight", "Lent", "ProgressReport", "Slot", "Uploading"]


class ProgressReport(NamedTuple):
    """The latest evidence that the work on which a fetched tensor depends makes progress.

    ``moment`` is the report's time (``time.monotonic``). ``hops`` is 0 if this session, or the
    source of the tensor, worked at that time. A source that waits for another server sends a larger
    number.
    """

    moment: float
    hops: int

    def hops_after(self, now: float, stale_seconds: float) -> int:
        """Return the hops for passing the report on: one more, and one for each stale time.

        A *stale time* is a period of ``stale_seconds`` since the report. So hops grow with the time
        since the reported work, and servers that wait for each other in a cycle cannot keep each
        other waiting forever.
        """
        return self.hops + 1 + int((now - self.moment) / stale_seconds)


class InFlight:
    """A tensor that is being fetched; only an operation that needs it waits.

    Any thread may deliver a result; the first result counts. ``timeout_seconds`` limits the wait;
    with ``None``, the caller of ``complete`` and ``fail`` must call one of them in any case.
    """

    __slots__ = (
        "_arrived", "_error", "_hurry", "_is_awaited", "_is_lent", "_lock", "_on_end",
        "_timeout_seconds", "_value", "is_dropped", "last_report", "reserved", "spec",
    )  # fmt: skip

    def __init__(self, spec: TensorSpec | None, timeout_seconds: float | None = None) -> None:
        self.spec = spec
        self._timeout_seconds = timeout_seconds
        # The latest report of its source; ``None`` for a tensor of another session of this process.
        self.last_report: ProgressReport | None = None
        # Bytes reserved for it in the quota while it is not dropped.
        self.reserved: int | None = None
        self.is_dropped = False
        self._is_lent = False
        self._lock = threading.Lock()
        self._arrived = Latch()
        self._value: Any = None
        self._error: OperationFailed | None = None
        # Called once, if the tensor arrives or fails after it was dropped.
        self._on_end: Callable[[], None] | None = None
        # Called when a thread begins to wait; see ``call_on_wait``.
        self._hurry: Callable[[], None] | None = None
        self._is_awaited = False

    def call_on_wait(self, hurry: Callable[[], None]) -> None:
        """Call a function whenever a thread begins to wait; at once if one has begun before."""
        with self._lock:
            if self._arrived.is_set():
                return
            self._hurry = hurry
            is_awaited = self._is_awaited
        if is_awaited:
            hurry()

    def note_progress(self, hops: int) -> None:
        """Record that the operations that produce the tensor make progress."""
        self.last_report = ProgressReport(time.monotonic(), hops)

    def complete(self, array: Any) -> None:
        """Deliver the array."""
        with self._lock:
            if not self._arrived.is_set():
                self._value = None if self.is_dropped and not self._is_lent else array
                self._hurry = None
                self._arrived.set()
        del array  # so that the memory of a dropped tensor is free when ``_end`` calls back
        self._end()

    def fail(self, error: OperationFailed) -> None:
        """Deliver an error instead of the array."""
        with self._lock:
            if not self._arrived.is_set():
                self._error = detached(error)
                self._hurry = None
                self._arrived.set()
        self._end()

    def _end(self) -> None:
        with self._lock:
            on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end()

    def lend(self) -> None:
        """Keep the array as long as anything refers to the slot, also after ``drop``."""
        with self._lock:
            self._is_lent = True

    @property
    def is_lent(self) -> bool:
        """Whether a collective takes the tensor as an input."""
        return self._is_lent

    def drop(self, on_end: Callable[[], None] | None = None) -> None:
        """Discard the array, now or when it arrives, unless the slot is lent.

        ``on_end`` is called, in any thread, when the array or an error has been delivered.
        """
        with self._lock:
            self.is_dropped = True
            if not self._is_lent:
                self._value = None
            self._on_end = on_end
        if self.arrived():
            self._end()

    def arrived(self) -> bool:
        """Whether the array or an error was delivered."""
        return self._arrived.is_set()

    def wait(self, timeout_seconds: float) -> bool:
        """Wait up to ``timeout_seconds`` for the array or an error; return whether it arrived."""
        return self._wait(timeout_seconds)

    def _wait(self, timeout_seconds: float | None) -> bool:
        if self._arrived.is_set():
            return True
        with self._lock:  # so ``call_on_wait`` calls its function, or this does
            self._is_awaited = True
            hurry = self._hurry
        if hurry is not None:
            hurry()
        return self._arrived.wait(timeout_seconds)

    def array(self) -> Any:
        """Wait for the array. Raises the ``OperationFailed`` that was delivered instead."""
        # Usually without a time limit: a large tensor may take any time while it makes progress.
        # ``transfers.throughput_watchdog`` ends fetches that make none, and
        # ``transfers.download_scheduler`` completes every slot.
        if not self._wait(self._timeout_seconds):
            seconds = self._timeout_seconds
            self.fail(TransferFailed(f"the tensor did not arrive within {seconds:g} seconds"))
        if self._error is not None:
            raise self._error.with_traceback(None)  # otherwise, each raise would extend it
        return self._value


class Lent:
    """A tensor's shared array that a collective uses; its memory counts until this is freed."""

    __slots__ = ("__weakref__", "array")

    def __init__(self, array: Any) -> None:
        self.array = array


class Uploading:
    """A tensor that is being uploaded in chunks."""

    __slots__ = ("received", "size", "spec", "upload")

    def __init__(self, spec: TensorSpec, upload: Any) -> None:
        self.spec = spec
        self.size = spec.nbytes
        self.upload = upload
        self.received = 0


Slot = InFlight | Uploading | OperationFailed
