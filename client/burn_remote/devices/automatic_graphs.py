"""The setting of devices that makes a session recognize repeated operations."""

from __future__ import annotations

import os
from typing import Final

from burn_remote_protocol.errors import UsageError

__all__ = ["VARIABLE", "automatic_graphs_wanted"]

VARIABLE: Final = "BURN_REMOTE_AUTOMATIC_GRAPHS"

_VALUES: Final = {"": False, "0": False, "false": False, "1": True, "true": True}


def automatic_graphs_wanted(given: bool | None) -> bool:
    """Return the argument of a device if given, else the environment variable's value.

    Raises ``UsageError`` for an argument or a value that is neither true nor false.
    """
    if given is not None:
        if not isinstance(given, bool):
            raise UsageError(f"automatic_graphs must be True or False, not {given!r}")
        return given
    text = os.environ.get(VARIABLE, "")
    try:
        return _VALUES[text.lower()]
    except KeyError:
        raise UsageError(f"${VARIABLE} must be 1 or 0, not {text!r}") from None
