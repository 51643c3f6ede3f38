"""Waiting for another process or thread, whose state can only be polled."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["PATIENCE_SECONDS", "wait_until"]

# How long tests wait for what must happen. It only bounds a failure, so that a slow machine passes.
PATIENCE_SECONDS = 30.0


def wait_until(claim: Callable[[], bool], timeout_seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until the claim is true. Raises ``AssertionError`` at the timeout."""
    deadline = time.monotonic() + timeout_seconds
    while not claim():
        assert time.monotonic() < deadline, f"not true within {timeout_seconds:g} seconds"
        time.sleep(0.01)  # polling interval; nothing depends on its length
