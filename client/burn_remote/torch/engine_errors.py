"""Errors that hooks raise in backward passes on burn devices.

An exception of a hook unwinds the engine's stack while it is still Python's current exception. The
engine's device guards on that stack call ``type_`` of a backend in Python, and a call into Python
under a current exception fails, which ends the process. So ``type_`` clears the exception and keeps
it. The engine then fails with a ``SystemError``, in place of which its caller raises the kept
exception.
"""

from __future__ import annotations

import functools
import threading
from typing import Any, Final

import torch
from torch.autograd import graph

__all__ = ["DeviceGuard", "keep_errors_of_hooks"]

_this_thread: Final = threading.local()
_original: Final = graph._engine_run_backward


class DeviceGuard(torch._C._acc.DeviceGuard):
    """The device guard of the backend, which PyTorch asks for its device type."""

    def type_(self, _type: Any = torch._C._autograd.DeviceType.PrivateUse1) -> Any:
        try:
            # With -1, this C function checks for a current exception, and raises it. Nothing else
            # that Python code can call does so in 50 ns; the engine calls this for each node.
            "".ljust(-1)
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
