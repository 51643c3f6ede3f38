"""Which arguments are numbers, and how is one refused that is none?"""

from __future__ import annotations

import operator
from typing import Any

from burn_remote_protocol.errors import ArgumentMismatch, UsageError, shown

__all__ = ["real_number", "whole_number"]


def whole_number(what: str, value: Any, least: int, most: int) -> int:
    """Return ``value`` as Python's integer; NumPy's are taken too, truths are not.

    ``what`` names it in the error: ``ArgumentMismatch`` for what is no integer, ``UsageError`` for
    one below ``least`` or above ``most``.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise ArgumentMismatch(f"{what} is a whole number, not {value!r}")
    if not least <= number <= most:
        raise UsageError(f"{what} is from {least:,} to {most:,}, not {shown(number)}")
    return number


def real_number(what: str, value: Any) -> float:
    """Return ``value`` as Python's float. Raises ``ArgumentMismatch`` for what is no number, and
    ``UsageError`` for an integer beyond all of them.
    """
    try:
        if not isinstance(value, str):  # whose numbers Python would read
            return float(value)
    except TypeError:
        pass
    except OverflowError:
        raise UsageError(f"{what} is beyond 64 bits: {shown(value)}") from None
    raise ArgumentMismatch(f"{what} is a number, not {value!r}")
