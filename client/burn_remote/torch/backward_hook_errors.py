"""Errors that hooks raise in backward passes on burn devices.

An exception of a hook unwinds the engine's stack while it is still Python's current exception. The
engine's device guards on that stack call ``type_`` of a backend in Python, and a call into Python
under a current exception fails, which ends the process. So ``type_`` clears the exception and keeps
it. The engine then fails with a ``SystemError``, in place of which its caller raises the kept
exception.

An exception that ``type_`` raises ends the process too, because the guards' C++ methods are
``noexcept``. So no handler of a signal, such as Ctrl-C, may run inside ``type_``.
"""

from __future__ import annotations

import dis
import functools
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

import torch
from torch.autograd import graph

__all__ = ["DeviceGuard", "keep_errors_of_hooks"]

_this_thread: Final = threading.local()
_original: Final = graph._engine_run_backward


_TEXT: Final = "a"

_F = TypeVar("_F", bound=Callable[..., Any])


def _without_signals(function: _F) -> _F:
    """Have CPython run no handlers of signals at the start of a function.

    ``RESUME`` runs them if its argument is 0 or 1. From 2 on, it stands behind ``yield from`` or
    ``await``.
    """
    code = bytearray(function.__code__.co_code)
    starts = [one for one in dis.get_instructions(function) if one.opname == "RESUME"]
    code[starts[0].offset + 1] = 3
    function.__code__ = function.__code__.replace(co_code=bytes(code))
    return function


class DeviceGuard(torch._C._acc.DeviceGuard):
    """The device guard of the backend, which PyTorch asks for its device type."""

    @_without_signals
    def type_(self, _type: Any = torch._C._autograd.DeviceType.PrivateUse1) -> Any:
        # Calls nothing: CPython would run handlers of signals after a call.
        try:
            # With -1, this operation checks for a current exception, and raises it. The engine
            # calls this function for each node.
            _TEXT[-1]
        except BaseException as error:
            _this_thread.error = error
        return _type


def keep_errors_of_hooks() -> None:
    """Have backward passes raise the exceptions that hooks raised."""
    graph._engine_run_backward = torch.autograd._engine_run_backward = _run_backward


@functools.wraps(_original)
def _run_backward(*args: Any, **kwargs: Any) -> Any:
    _this_thread.error = None
    try:
        return _original(*args, **kwargs)
    except SystemError:
        error = _this_thread.error
        if error is None:
            raise
    finally:
        _this_thread.error = None
    raise error
