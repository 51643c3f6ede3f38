"""Errors of operations, of the classes that PyTorch programs catch."""

from __future__ import annotations

from burn_remote_protocol.errors import UsageError

__all__ = ["InvalidOperation", "UnsupportedOperation", "as_runtime_error"]


class UnsupportedOperation(UsageError, NotImplementedError):
    """An aten operation that burn devices do not have, or do not have for these arguments."""


class InvalidOperation(UsageError, RuntimeError):
    """An operation whose tensors do not fit it; ``__cause__`` is the error of burn-remote."""


def as_runtime_error(error: Exception) -> Exception:
    """Return an error of burn-remote as the ``RuntimeError`` of PyTorch, and others unchanged.

    Indices that are out of range stay ``IndexError``, as in PyTorch.
    """
    if isinstance(error, UsageError) and not isinstance(error, RuntimeError | IndexError):
        translated = InvalidOperation(str(error))
        translated.__cause__ = error
        return translated
    return error
