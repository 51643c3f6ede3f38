"""What can stand in a tensor's place before, or instead of, its elements?"""

from __future__ import annotations

import threading
from typing import Any

from burn_remote_protocol.errors import OperationFailed, TransferFailed
from burn_remote_protocol.tensors import TensorSpec

__all__ = ["InFlight", "Slot", "Uploading"]


class InFlight:
    """A tensor that is being fetched from another server; only an operation that needs it waits.

    What is delivered first holds, from whichever thread. ``patience_seconds`` is for a fetch that
    nobody else gives up.
    """

    __slots__ = (
        "_arrived", "_error", "_lock", "_patience_seconds", "_value", "is_dropped", "reserved",
        "spec",
    )  # fmt: skip

    def __init__(self, spec: TensorSpec | None, patience_seconds: float | None = None) -> None:
        self.spec = spec
        self._patience_seconds = patience_seconds
        # Bytes of the quota that are kept for it, also after nobody wants it any more.
        self.reserved: int | None = None
        self.is_dropped = False
        self._lock = threading.Lock()
        self._arrived = threading.Event()
        self._value: Any = None
        self._error: OperationFailed | None = None

    def complete(self, array: Any) -> None:
        """Deliver the array."""
        with self._lock:
            if not self._arrived.is_set():
                self._value = None if self.is_dropped else array
                self._arrived.set()

    def fail(self, error: OperationFailed) -> None:
        """Deliver the reason why it will not come."""
        with self._lock:
            if not self._arrived.is_set():
                self._error = error
                self._arrived.set()

    def drop(self) -> None:
        """Let go of the array, now or when it comes."""
        with self._lock:
            self.is_dropped = True
            self._value = None

    def arrived(self) -> bool:
        """Whether the array or the error is here."""
        return self._arrived.is_set()

    def array(self) -> Any:
        """Wait for the array. Raises the ``OperationFailed`` that was delivered instead."""
        # Without a bound: a large tensor may take any time while it makes progress. Fetches are
        # bounded by that (``transfers.pace``), and each settles its slot (``transfers.arrivals``).
        if not self._arrived.wait(self._patience_seconds):
            seconds = self._patience_seconds
            self.fail(TransferFailed(f"the tensor did not arrive within {seconds:g} seconds"))
        if self._error is not None:
            raise self._error
        return self._value


class Uploading:
    """A tensor whose elements are arriving in chunks."""

    __slots__ = ("received", "size", "spec", "upload")

    def __init__(self, spec: TensorSpec, upload: Any) -> None:
        self.spec = spec
        self.size = spec.nbytes
        self.upload = upload
        self.received = 0


Slot = InFlight | Uploading | OperationFailed
