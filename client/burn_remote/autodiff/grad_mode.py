"""Whether this thread or coroutine records operations on tracked tensors."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast, overload

from burn_remote_protocol.errors import ArgumentMismatch, UsageError, type_name

__all__ = [
    "check_function",
    "check_random_numbers",
    "enable_grad",
    "is_recording",
    "no_grad",
    "refusing_random_numbers",
    "set_recording",
]

Function = TypeVar("Function", bound=Callable[..., Any])


# A context variable, because coroutines share a thread: one that waits inside ``no_grad`` must not
# pause recording in the others. Reading it takes a third of the time of a thread-local variable.
_IS_RECORDING: Final = ContextVar("_IS_RECORDING", default=True)

# Whether operations on tracked tensors are recorded here.
is_recording: Final = _IS_RECORDING.get
set_recording: Final = _IS_RECORDING.set


class _Repetition(threading.local):
    """The name of the function that will be called again with the same arguments; empty if none."""

    function: str = ""


_repetition: Final = _Repetition()


class _Switch:
    """A context manager and decorator that sets whether its thread or coroutine records."""

    _records: bool
    _before: list[bool]

    @overload
    def __new__(cls) -> Self: ...
    @overload
    def __new__(cls, function: Function, /) -> Function: ...  # type: ignore[misc]
    def __new__(  # type: ignore[misc]
        cls, function: Callable[..., Any] | None = None, /
    ) -> Any:
        """Make a switch; if a function is given, decorate it (``@no_grad`` without parentheses)."""
        made = super().__new__(cls)
        made._before = []
        return made if function is None else made(function)

    def __enter__(self) -> None:
        self._before.append(is_recording())
        set_recording(self._records)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        set_recording(self._before.pop())

    def __call__(self, function: Function) -> Function:
        """Decorate a function: the mode is set during each call."""
        switch = type(self)
        check_function(switch.__name__, function)
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*arguments: Any, **options: Any) -> Any:
                with switch():
                    return await function(*arguments, **options)

            return cast("Function", awaited)

        @functools.wraps(function)
        def called(*arguments: Any, **options: Any) -> Any:
            with switch():
                return function(*arguments, **options)

        return cast("Function", called)


class no_grad(_Switch):
    """Pause recording: results of operations on tracked tensors are not tracked.

    A context manager (``with no_grad():``) and a decorator (``@no_grad()``), also of coroutines. It
    concerns only the thread or coroutine that enters it, and the coroutines that this one starts
    inside.
    """

    _records = False


class enable_grad(_Switch):
    """Resume recording inside ``no_grad``; a context manager and a decorator."""

    _records = True


def check_function(decorator: str, function: object) -> None:
    """Raise ``ArgumentMismatch`` for anything but a function, such as its result."""
    if not callable(function):
        raise ArgumentMismatch(f"{decorator} takes a function, not {type_name(function)}")


@contextlib.contextmanager
def refusing_random_numbers(function: str) -> Iterator[None]:
    """Make ``check_random_numbers`` raise an error in this thread that names ``function``."""
    before = _repetition.function
    _repetition.function = function
    try:
        yield
    finally:
        _repetition.function = before


def check_random_numbers() -> None:
    """Raise ``UsageError`` if this thread executes a function that will be called again."""
    if _repetition.function:
        raise UsageError(
            f"{_repetition.function} draws random numbers, which would differ in the second call; "
            "draw them outside and pass them as an argument"
        )
