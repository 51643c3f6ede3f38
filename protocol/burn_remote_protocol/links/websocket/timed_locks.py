"""Calls under a lock that is waited for with a timeout; Ctrl-C never leaves the lock taken."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from burn_remote_protocol.signal_exceptions import pass_on_of_signal_handler

__all__ = ["call_holding"]


def call_holding(
    lock: threading.RLock, timeout_seconds: float, function: Callable[..., bool], *arguments: Any
) -> bool:
    """Call ``function`` while holding a lock; return its result, ``False`` after the timeout.

    Ctrl-C may come when ``acquire`` has taken the lock and its result is not yet known. An
    ``RLock`` knows its holder, so the lock can be released even then. The calling thread must not
    hold it already.
    """
    try:
        return lock.acquire(timeout=timeout_seconds) and function(*arguments)
    finally:
        try:
            lock.release()
        except RuntimeError as error:  # another thread holds it
            pass_on_of_signal_handler(error)
