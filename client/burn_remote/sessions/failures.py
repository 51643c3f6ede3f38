"""Several failures, raised as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from burn_remote_protocol.errors import OperationFailed, fresh

__all__ = ["together"]

# Further failures whose text is shown with the first one; mostly they follow from it.
SHOWN_FAILURES: Final = 3


def together(failures: Sequence[OperationFailed], count: int) -> OperationFailed:
    """Return the first of ``count`` failures that no read raised, with those after it.

    ``failures`` are the first ones of them. The result has the others in ``others``, and a note
    that lists a few.
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
