"""Several failures, raised as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from burn_remote_protocol.errors import OperationFailed, fresh

__all__ = ["together"]

# How many further failures are shown with the first one. Mostly they follow from it.
SHOWN_FAILURES: Final = 3


def together(failures: Sequence[OperationFailed], count: int) -> OperationFailed:
    """Combine ``count`` failures that no read has raised into one error: the first of them.

    ``failures`` holds at least the first failure and as many of the next ones as were kept. The
    result has these in ``others``, and a note that lists a few.
    """
    first = fresh(failures[0])
    first.others = tuple(failures[1:])
    first.others_count = count - 1
    if first.others:
        shown = [f"  {failure}" for failure in first.others[:SHOWN_FAILURES]]
        unshown = first.others_count - len(shown)
        if unshown:
            shown.append(f"  and {unshown:,} more")
        first.add_note("\n".join(["operations that failed after it:", *shown]))
    return first
