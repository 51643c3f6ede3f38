"""Tracebacks of errors without the frames of this package."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, TypeVar, cast

from burn_remote_protocol.errors import BurnRemoteError

__all__ = ["FULL_TRACEBACKS", "shorten", "shortened"]

Function = TypeVar("Function", bound=Callable[..., Any])

# For work on this package: if this environment variable is not empty, tracebacks keep all frames.
FULL_TRACEBACKS: Final = "BURN_REMOTE_FULL_TRACEBACKS"

_PACKAGES: Final = (__name__.partition(".")[0], BurnRemoteError.__module__.partition(".")[0])

# How CPython stores that a traceback has no line; its attribute is ``None`` then.
_NO_LINE: Final = -1


def shorten(error: BaseException) -> None:
    """Remove the frames of this package from the traceback; then ``raise`` raises it again.

    The text of an error of ours says what to do, and our frames would bury it and the lines of the
    program. Other errors keep the innermost frames that are ours, because they may be our mistakes.
    """
    if os.environ.get(FULL_TRACEBACKS):
        return
    entries: list[TracebackType] = []
    entry = error.__traceback__
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    keeps_ours = not isinstance(error, BurnRemoteError)
    short: TracebackType | None = None
    for entry in reversed(entries):
        is_ours = entry.tb_frame.f_globals.get("__name__", "").partition(".")[0] in _PACKAGES
        if keeps_ours or not is_ours:
            # An exception of a signal handler may come at an instruction without a line.
            line: int | None = entry.tb_lineno
            short = TracebackType(
                short, entry.tb_frame, entry.tb_lasti, _NO_LINE if line is None else line
            )
        keeps_ours = keeps_ours and is_ours
    error.__traceback__ = short


def shortened(function: Function) -> Function:
    """Decorate a function: the tracebacks of its ``BurnRemoteError`` have none of our frames."""

    @functools.wraps(function)
    def called(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except BurnRemoteError as error:
            shorten(error)
            raise

    return cast("Function", called)
