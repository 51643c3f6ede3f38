"""Repetition of finalizers that Ctrl-C interrupted.

Python cannot raise an exception out of a finalizer. It reports the exception to
``sys.unraisablehook`` and continues. So a Ctrl-C that arrives in a finalizer is lost, and the rest
of the finalizer does not run. No ``try`` in the finalizer can prevent this, because CPython runs
signal handlers at the first instruction of a function, before any ``try``.

``install`` puts a hook in front of the present one. If an interrupt ends a finalizer that
``repeatable`` has marked, the hook calls the finalizer again. Then it lets CPython raise the
interrupt in the same thread, directly after the finalizer. All other reports go to the previous
hook. So uninterrupted finalizers cost nothing.

If another finalizer runs directly after the first one, the interrupt is raised at its first
instruction, when nothing of it has run. So the hook repeats such a finalizer too, even if it is not
marked. Examples are other libraries' ``__del__`` methods, ``gc.callbacks``, and callbacks of weak
references, such as those of the standard library's ``WeakSet``.

A second Ctrl-C inside the hook, but not inside the repeated finalizer, is lost together with the
first one. If the hook has not called the finalizer again by then, the finalizer is lost too.
"""

from __future__ import annotations

import ctypes
import dis
import gc
import sys
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from types import CodeType, FunctionType, TracebackType
from typing import Any, Final, TypeVar, final

from burn_remote_protocol.signal_exceptions import RaisedAgain, is_of_signal_handler

__all__ = ["call_once_when_freed", "call_when_freed", "install", "repeatable"]

# For each interrupt: a finalizer that always raises would otherwise be called without end.
MAX_REPEATS: Final = 20

F = TypeVar("F", bound=Callable[[Any], object])

_finalizers: Final[dict[CodeType, Callable[[Any], object]]] = {}
# A weak reference calls its function only if the reference itself still exists.
_references: Final[dict[int, _Reference]] = {}

_raise_in_thread: Final = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in_thread.argtypes = (ctypes.c_ulong, ctypes.py_object)


def repeatable(finalizer: F) -> F:
    """Mark a function with one argument, such as a ``__del__``, to be repeated after an interrupt.

    The interrupt may end the first call at any instruction. Returns the function itself.
    """
    _finalizers[finalizer.__code__] = finalizer
    return finalizer


def call_when_freed(owner: object, function: Callable[[], object]) -> None:
    """Call a function when ``owner`` is freed, but not at the end of the process.

    Unlike a call by ``weakref.finalize``, it is repeated if it is interrupted. Raises ``TypeError``
    if ``owner`` does not support weak references.
    """
    reference = _Reference(owner, _freed)
    reference.function = function
    # By id, because a reference has the hash of ``owner``, which may have none.
    _references[id(reference)] = reference


def call_once_when_freed(owner: object, function: Callable[[], object]) -> None:
    """Call a function as ``call_when_freed`` does, but not again if it is interrupted.

    For functions that must not run twice, such as those that give bytes back. An interrupt inside
    ``function`` ends it, but is not lost. Raises ``TypeError`` if ``owner`` does not support weak
    references.
    """
    reference = _Reference(owner, _freed_once)
    reference.function = function
    _references[id(reference)] = reference


class _Reference(weakref.ref[Any]):
    __slots__ = ("function",)
    function: Callable[[], object]


@repeatable
def _freed(reference: _Reference) -> None:
    reference.function()
    _references.pop(id(reference), None)


@repeatable
def _freed_once(reference: _Reference) -> None:
    # CPython runs no signal handler between these statements, because they call nothing.
    function = reference.function
    reference.function = _nothing
    function()
    _references.pop(id(reference), None)


def _nothing() -> None:
    """Stand for a function that has been called."""


def install() -> None:
    """Put the hook in front of the present one, unless it is the present one."""
    if type(sys.unraisablehook) is not _Hook:
        sys.unraisablehook = _Hook(sys.unraisablehook)


@final
class _Hook:
    """A ``sys.unraisablehook``. Each has its own ``previous``, so hooks cannot call in a circle."""

    __slots__ = ("previous",)

    def __init__(self, previous: Callable[[Any], object]) -> None:
        self.previous: Final = previous

    def __call__(self, unraisable: sys.UnraisableHookArgs, /) -> None:
        error = unraisable.exc_value
        # Another ``Exception`` is an error of the finalizer. A repeated call would raise it again.
        is_interrupt = error is not None and (
            not isinstance(error, Exception) or is_of_signal_handler(error)
        )
        finalizer, is_marked = (None, False)
        if is_interrupt:
            finalizer, is_marked = _interrupted_finalizer(unraisable)
        if error is None or finalizer is None:
            self.previous(unraisable)
            return
        own: BaseException | None = None  # an error of the repeated finalizer itself
        left = MAX_REPEATS
        while left:
            left -= 1
            own = None
            try:
                finalizer()
                left = 0
            except Exception as failure:
                own = failure
                if not (is_marked and is_of_signal_handler(failure)):
                    left = 0
            except BaseException as failure:
                # Another Ctrl-C: repeat the finalizer once more. If it is not marked and has begun,
                # this may be its own exception, which each call would raise.
                own = failure
                if not (is_marked or _is_at_start(failure)):
                    left = 0
        if own is not None:
            report: Any = type(unraisable)  # which Python's own hook requires
            self.previous(report((type(own), own, own.__traceback__, None, unraisable.object)))
        # CPython raises the interrupt when this thread next handles pending events: after a call or
        # at a jump backwards. This function must have ended by then. ``defaultdict`` calls its
        # factory in an instruction after which CPython handles no events.
        raising: defaultdict[int, int] = defaultdict(
            partial(_raise_in_thread, threading.get_ident(), _raised_without_arguments(error))
        )
        _ = raising[0]


def _is_at_start(error: BaseException) -> bool:
    """Whether the function that the hook called was interrupted before its first instruction."""
    trace = error.__traceback__
    called = None if trace is None else trace.tb_next
    return called is not None and _has_not_begun(called)


def _has_not_begun(trace: TracebackType) -> bool:
    return trace.tb_next is None and trace.tb_lasti <= _first_offset(trace.tb_frame.f_code)


def _interrupted_finalizer(
    unraisable: sys.UnraisableHookArgs,
) -> tuple[Callable[[], object] | None, bool]:
    """Return a call that repeats the interrupted finalizer, and whether the finalizer is marked.

    The call is ``None`` if the finalizer must not be repeated.
    """
    trace = unraisable.exc_traceback
    if trace is None:
        return None, False
    frame = trace.tb_frame  # the outermost one of the finalizer
    code = frame.f_code
    marked = _finalizers.get(code)
    if marked is not None:
        return partial(marked, frame.f_locals[code.co_varnames[0]]), True
    return (_foreign_finalizer(unraisable.object, trace) if _has_not_begun(trace) else None), False


def _foreign_finalizer(called: Any, trace: TracebackType) -> Callable[[], object] | None:
    frame = trace.tb_frame
    code = frame.f_code
    if any(called is callback for callback in gc.callbacks) and isinstance(called, FunctionType):
        names, count = code.co_varnames, min(code.co_argcount, 2)
        arguments = [frame.f_locals[name] for name in names[:count]]
        if count < 2:  # the others are in ``*args``
            arguments += frame.f_locals[names[count + code.co_kwonlyargcount]]
        return partial(called, *arguments)
    if isinstance(called, FunctionType) and called.__code__ is code and code.co_argcount:
        argument = frame.f_locals[code.co_varnames[0]]
        is_finalizer = code.co_name == "__del__"
    elif callable(called) and code.co_argcount > 1:  # a bound method, or an object with __call__
        argument = frame.f_locals[code.co_varnames[1]]
        is_finalizer = False
    else:
        return None
    is_callback = isinstance(argument, weakref.ref) and argument() is None
    return partial(called, argument) if is_finalizer or is_callback else None


def _first_offset(code: CodeType) -> int:
    """Return the offset of the instruction after the ``RESUME`` at the start of a function."""
    instructions = dis.get_instructions(code)
    next(one for one in instructions if one.opname == "RESUME")
    return next(instructions).offset


def _raised_without_arguments(error: BaseException) -> type[BaseException]:
    """Return a class that makes errors like ``error`` without being given arguments."""
    kind: Any = type(error)
    arguments = error.args
    is_marked = isinstance(error, RaisedAgain)
    # An ``Exception`` needs the mark, by which the hook knows it in a later finalizer.
    if is_marked or not (arguments or isinstance(error, Exception)):
        return kind  # type: ignore[no-any-return]

    def repeat(self: BaseException) -> None:
        kind.__init__(self, *arguments)

    return type(
        kind.__name__, (RaisedAgain, kind), {"__init__": repeat, "__module__": kind.__module__}
    )
