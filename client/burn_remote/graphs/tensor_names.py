"""Names of the tensors that a function captures, for error messages."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from burn_remote.functions.tensor import Tensor
from burn_remote.runner.interface import TensorHandle

__all__ = ["name_in"]

# Bounds of the search: objects that it examines, and attributes and indices in one name. A name is
# a convenience: an error without one gives the shape and dtype.
MAX_OBJECTS: Final = 10_000
MAX_DEPTH: Final = 4


def name_in(function: Callable[..., Any], call: Any, handle: TensorHandle) -> str:
    """Return the name under which a function sees a tensor, or its shape and dtype.

    ``call`` has the positional and the keyword arguments.
    """
    waiting = deque((name, value, 0) for name, value in _variables(function, call))
    seen: set[int] = set()
    while waiting and len(seen) < MAX_OBJECTS:
        name, value, depth = waiting.popleft()
        if isinstance(value, Tensor):
            if value.handle.id == handle.id and value.handle.client.session is (
                handle.client.session
            ):
                return f"{name} ({handle.spec})"
        elif id(value) not in seen and depth < MAX_DEPTH:
            seen.add(id(value))
            waiting.extend((longer, one, depth + 1) for longer, one in _parts(name, value))
    return f"a {handle.spec}"


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, member in [*value.items()]:
            yield f"{name}[{key!r}]", member
    elif isinstance(value, tuple | list):
        for place, member in enumerate(value):
            yield f"{name}[{place}]", member
    elif not inspect.ismodule(value):
        for attribute, member in [*getattr(value, "__dict__", {}).items()]:
            yield f"{name}.{attribute}", member


def _variables(function: Any, call: Any) -> Iterator[tuple[str, Any]]:
    """Iterate over the names and values that a function sees, except its local variables."""
    args, kwargs = call
    while hasattr(function, "func") and hasattr(function, "keywords"):  # functools.partial
        yield from function.keywords.items()
        yield from zip(_parameters(function.func), function.args, strict=False)
        args = (*function.args, *args)
        function = function.func
    if inspect.ismethod(function):
        args = (function.__self__, *args)
        function = function.__func__
    elif not inspect.isfunction(inspect.unwrap(function)):
        yield "self", function
        function = type(function).__dict__.get("__call__")
    function = inspect.unwrap(function)
    if not inspect.isfunction(function):
        return
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    parameters = _parameters(function)
    defaults = function.__defaults__ or ()
    yield from zip(parameters[code.co_argcount - len(defaults) :], defaults, strict=False)
    yield from (function.__kwdefaults__ or {}).items()
    # Before other global variables: ``self`` has the attributes that methods use.
    yield from _objects((*zip(parameters, args, strict=False), *kwargs.items()))
    for name in code.co_names:
        if name in function.__globals__:
            yield name, function.__globals__[name]
    yield from function.__globals__.items()


def _objects(arguments: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Iterate over the arguments that are not tensors or containers of tensors.

    Tensors among the arguments are inputs of the graph, so the function did not capture them.
    """
    for name, value in arguments:
        if not isinstance(value, Tensor | tuple | list | dict):
            yield name, value


def _parameters(function: Any) -> tuple[str, ...]:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return () if code is None else code.co_varnames[: code.co_argcount]
