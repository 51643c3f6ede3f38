"""Errors of a tensor's attributes that not every tensor has.

Each is an ``AttributeError`` too, which ``hasattr`` and ``inspect.getmembers`` expect: debuggers
and serializers look at all attributes of an object.
"""

from __future__ import annotations

from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch, UsageError

__all__ = ["NoComplexParts", "NoGradient", "NoTranspose"]


class NoTranspose(ShapeMismatch, AttributeError):
    """The tensor has too few or too many axes for this transpose."""


class NoComplexParts(DTypeMismatch, AttributeError):
    """The tensor's dtype has no real and imaginary parts."""


class NoGradient(UsageError, AttributeError):
    """The tensor is a result, whose gradient is not kept."""
