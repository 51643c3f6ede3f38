"""A system that starts no further threads."""

from __future__ import annotations

from typing import NoReturn

__all__ = ["no_thread"]


def no_thread(*_: object, **__: object) -> NoReturn:
    """Fail as CPython does; put it in the place of what starts a thread."""
    raise RuntimeError("can't start new thread")
