"""Errors of operations that the table lacks."""

from __future__ import annotations

from burn_remote_protocol.errors import UsageError

__all__ = ["UnsupportedOperation"]


class UnsupportedOperation(UsageError, NotImplementedError):
    """An aten operation that burn devices do not have, or do not have for these arguments."""
