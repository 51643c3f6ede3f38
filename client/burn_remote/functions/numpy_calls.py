"""Calls of NumPy's functions, made with the parameters of ours.

NumPy takes by position what some of our functions take by name, such as the diagonal of
``numpy.tril(x, 1)``.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from burn_remote_protocol.errors import BurnRemoteError

__all__ = ["by_name", "call"]

Function = Callable[..., Any]

_BY_PLACE: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


def by_name(
    numpys: Function, ours: Function, arguments: tuple[Any, ...], options: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Name the positional arguments of NumPy's function for which ours has no place."""
    room = _room(ours)
    if len(arguments) <= room:
        return arguments, options
    names = _names(numpys)
    if len(names) < len(arguments):
        return arguments, options
    return arguments[:room], {**dict(zip(names[room:], arguments[room:], strict=False)), **options}


def call(
    called: str, ours: Function, arguments: tuple[Any, ...], options: Mapping[str, Any]
) -> Any:
    """Call our function in place of NumPy's, whose name is ``called``.

    Raises ``TypeError`` with that name for keywords that only NumPy's function has.
    """
    try:
        return ours(*arguments, **options)
    except TypeError as error:
        unknown = () if isinstance(error, BurnRemoteError) else _unknown(ours, options)
        if not unknown:
            raise
        names = ", ".join([f"{name}=" for name in unknown])
        raise TypeError(
            f"{called} with {names} is not computed on the device; omit {names}, or pass "
            "x.numpy() in place of the tensor"
        ) from None


@functools.cache
def _names(function: Function) -> tuple[str, ...]:
    """Return the names of the positional parameters of a function of NumPy, if it tells them."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return ()
    return tuple([one.name for one in parameters if one.kind in _BY_PLACE])


@functools.cache
def _room(function: Function) -> int:
    """Return how many positional arguments one of our functions takes."""
    parameters = inspect.signature(function).parameters.values()
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return sys.maxsize
    return len([one for one in parameters if one.kind in _BY_PLACE])


def _unknown(function: Function, options: Mapping[str, Any]) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return ()
    return tuple([name for name in options if name not in parameters])
