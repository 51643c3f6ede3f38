"""Iteration over a tensor, with a warning about reads of single elements."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = ["RoundTripWarning", "iterated"]

# Elements to examine before the warning. A program that has read each of them before it asked for
# the next one will most likely read all.
EXAMINED: Final = 16

_warned = False


class RoundTripWarning(UserWarning):
    """A program waits for many elements one by one, where one read would return them all."""


def iterated(x: Tensor) -> Iterator[Tensor]:
    """Iterate over the first axis; warn once per process if the program reads each element."""
    session = x.handle.client.session
    before = _requests(session)
    for position in range(x.shape[0]):
        if position == EXAMINED and not _warned and _requests(session) - before >= EXAMINED:
            _warn(x)
        yield x[position]


def _requests(session: object) -> int:
    return getattr(getattr(session, "traffic", None), "requests", 0)


def _warn(x: Tensor) -> None:
    global _warned
    _warned = True
    warnings.warn(
        f"each element of {x.handle.spec} is read by a request of its own, which costs a round "
        "trip; x.tolist() and x.numpy() read all elements with one",
        RoundTripWarning,
        stacklevel=3,
    )
