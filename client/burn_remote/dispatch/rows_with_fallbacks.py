"""Functions with two forms: one row where the session has it, else a composition of older rows.

A session with a Burn server has the rows of that server's release; a native session has the rows
that its server announced. ``preferring`` is the only place that chooses a form, and ``CHOICES``
lists all such functions: tests run both forms of each. Their results have the same bits in float32
and float64, unless the function says otherwise. In 16-bit dtypes a single row rounds once, and so
does a composition that ``rounded_once`` decorates.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar, cast

from burn_remote_protocol.operations.row import Row

__all__ = ["CHOICES", "Choice", "has_row", "preferring"]

Function = TypeVar("Function", bound=Callable[..., Any])


class Choice(NamedTuple):
    """A function's two forms: with ``row``, and composed of rows that every session has."""

    row: Row
    preferred: Callable[..., Any]
    composed: Callable[..., Any]


CHOICES: Final[list[Choice]] = []


def has_row(row: Row, *operands: Any) -> bool:
    """Return whether the session of the first tensor among the operands has a row."""
    for operand in operands:
        handle = getattr(operand, "handle", None)
        if handle is not None:
            return bool(handle.client.session.has_row(row))
    return False


def preferring(row: Row, preferred: Callable[..., Any]) -> Callable[[Function], Function]:
    """Decorate a composition: sessions that have ``row`` call ``preferred`` in its place.

    Both take the same arguments. The session of the first tensor among them decides.
    """

    def decorate(composed: Function) -> Function:
        CHOICES.append(Choice(row, preferred, composed))

        def choose(*arguments: Any, **options: Any) -> Any:
            chosen = preferred if has_row(row, *arguments) else composed
            return chosen(*arguments, **options)

        return cast("Function", functools.update_wrapper(choose, composed))

    return decorate
