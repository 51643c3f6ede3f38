"""Recognition of exceptions that signal handlers raise.

A handler may raise an exception between any two instructions of the main thread, for example a
``TimeoutError`` from ``SIGALRM``. Code that catches ``OSError`` from a socket, ``ValueError`` from
a parser or ``Exception`` from a kernel must not take it for theirs: it passes the exception on, so
that the program gets it like a ``KeyboardInterrupt``.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import inspect
import signal
from functools import partial
from types import CodeType, FrameType, TracebackType
from typing import Any, Final

__all__ = ["RaisedAgain", "is_of_signal_handler", "pass_on_of_signal_handler"]

# A handler gets two arguments: the number of the signal and the interrupted frame.
_ARGUMENTS: Final = 2

# ``signal.valid_signals`` and ``signal.getsignal`` look each number up in an enumeration, which
# takes 0.3 ms for all: too long for each operation of a server that fails.
_NUMBERS: Final = tuple(map(int, signal.valid_signals()))


class RaisedAgain:
    """Marks classes of exceptions whose traceback no longer shows the signal handler."""


def is_of_signal_handler(error: BaseException) -> bool:
    """Return whether a signal handler or a trace function raised an error.

    Both get the interrupted frame as an argument. A handler that has deleted this argument is
    recognized while it is installed.
    """
    if isinstance(error, RaisedAgain):
        return True
    trace = error.__traceback__
    if trace is None or trace.tb_next is None:  # no function was called that could be a handler
        return False
    handlers = _codes_of_handlers()
    while trace is not None:
        if trace.tb_frame.f_code in handlers or _is_given_frame(trace):
            return True
        trace = trace.tb_next
    return False


def pass_on_of_signal_handler(error: BaseException) -> None:
    """Raise an error again if a signal handler raised it."""
    if is_of_signal_handler(error):
        raise error


def _is_given_frame(trace: TracebackType) -> bool:
    """Return whether the next function of the traceback has this frame as an argument."""
    called = trace.tb_next
    return called is not None and any(
        argument is trace.tb_frame for argument in _arguments(called.tb_frame)
    )


def _arguments(frame: FrameType) -> list[Any]:
    """Return the first positional arguments of a function's call, as far as they still exist."""
    code = frame.f_code
    has_rest = bool(code.co_flags & inspect.CO_VARARGS)
    if not (code.co_argcount or has_rest):
        return []
    values = frame.f_locals
    names = code.co_varnames
    # A method has ``self`` in front of the two arguments.
    found = [values.get(name) for name in names[: min(code.co_argcount, _ARGUMENTS + 1)]]
    if has_rest:
        rest = values.get(names[code.co_argcount + code.co_kwonlyargcount])
        if isinstance(rest, tuple):
            found += rest[: _ARGUMENTS + 1]
    return found


def _codes_of_handlers() -> set[CodeType | None]:
    codes: set[CodeType | None] = set()
    for number in _NUMBERS:
        handler: Any = _signal.getsignal(number)
        if handler is None or isinstance(handler, int):
            continue  # the handler is not Python's, or is ``SIG_DFL`` or ``SIG_IGN``
        while isinstance(handler, partial):
            handler = handler.func
        for called in (handler, type(handler).__call__):  # a function or method, or an object
            codes.add(getattr(called, "__code__", None))
    codes.discard(None)
    return codes
