"""Accounting of the failures that a session stores instead of tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from sys import getsizeof
from typing import Final

from burn_remote_protocol.errors import OperationFailed, QuotaExceeded, UnknownTensor
from burn_remote_protocol.interrupted_finalizers import call_once_when_freed
from burn_remote_server.access.quota import OverheadAccount, Quota

__all__ = ["Failures"]

# Memory of a failure besides its texts, and of an entry of the table. Both are measured.
FAILURE_BYTES: Final = 800
ENTRY_BYTES: Final = 160


class Failures:
    """Accounts of a session's failures and of their table entries, which count in its quota.

    Each of the two accounts has a free allowance.

    Many tensors may share one failure, which counts once until nothing references it. Each entry of
    the table counts separately. If a failure or an entry does not fit into the quota, reading the
    tensor raises ``QuotaExceeded``.
    """

    def __init__(self, quota: Quota) -> None:
        self._failures: Final = OverheadAccount(quota)
        self._entries: Final = OverheadAccount(quota)
        self._without_room: OperationFailed | None = None
        self._lacks_entries = False

    def kept(self, failure: OperationFailed) -> OperationFailed:
        """Count a new failure; return it, or a shared one without its reason if it does not fit."""
        size = FAILURE_BYTES + sum(
            map(getsizeof, (failure.reason, failure.operation, failure.shapes))
        )
        try:
            self._failures.add(size)
        except QuotaExceeded as error:
            return self._shared(error)
        call_once_when_freed(failure, partial(self._failures.remove, size))
        return failure

    def add_entry(self, check: Callable[[], None]) -> bool:
        """Count an entry of the table; return ``False`` if it does not fit.

        From then on, ``unknown`` returns the error for tensors without an entry. ``check`` raises
        ``QuotaExceeded`` if the table has too many entries.
        """
        try:
            check()
            self._entries.add(ENTRY_BYTES)
        except QuotaExceeded as error:
            self._shared(error)
            self._lacks_entries = True
            return False
        return True

    def remove_entry(self) -> None:
        """Count an entry of the table as freed."""
        self._entries.remove(ENTRY_BYTES)

    def unknown(self, tensor: int) -> OperationFailed:
        """Return the error for a tensor that has neither an array nor an entry."""
        if self._lacks_entries and self._without_room is not None:
            return self._without_room.with_traceback(None)
        return UnknownTensor(f"this session has no tensor {tensor}")

    def _shared(self, error: QuotaExceeded) -> OperationFailed:
        if self._without_room is None:
            self._without_room = QuotaExceeded(
                f"it failed, and the reason could not be kept: {error.reason}",
                operation="An operation",
            )
        return self._without_room
