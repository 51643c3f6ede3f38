"""Reuse of the memory of dying inputs, forced for tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest.mock import patch

from burn_remote_server.programs import plans

__all__ = ["forced_reuse"]


@contextlib.contextmanager
def forced_reuse(least_bytes: int = 0) -> Iterator[None]:
    """Let results of at least ``least_bytes`` take the memory of an input at its last use.

    Applies to the operations that sessions in this process prepare inside the context.
    """
    with patch.object(plans, "REUSED_BYTES", least_bytes):
        yield
