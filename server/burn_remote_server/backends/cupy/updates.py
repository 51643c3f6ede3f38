"""Index updates on a GPU that apply repeated indices in order.

The positions are sorted. One thread per distinct position applies its updates one after the other,
so results do not depend on thread timing, as they would with atomic additions.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import cupy
import numpy as np

__all__ = ["update_in_order"]

_STEPS: Final = {
    "Assign": "held = next",
    "Add": "held = held + next",
    "Mul": "held = held * next",
    # A value that differs from itself is NaN, which wins both comparisons.
    "Min": "held = (held != held || held < next) ? held : next",
    "Max": "held = (held != held || held > next) ? held : next",
}

# Booleans add by "or" and multiply by "and".
_OF_TRUTH: Final = {"Assign": "Assign", "Add": "Max", "Mul": "Min", "Min": "Min", "Max": "Max"}


@cache
def _kernel(update: str) -> Any:
    return cupy.ElementwiseKernel(
        "raw int64 sorted, raw int64 order, raw T values, int64 count",
        "raw T target",
        f"""
        long long place = sorted[i];
        if (i == 0 || sorted[i - 1] != place) {{
            T held = target[place];
            for (long long j = i; j < count && sorted[j] == place; ++j) {{
                T next = values[order[j]];
                {_STEPS[update]};
            }}
            target[place] = held;
        }}
        """,
        f"burn_remote_update_{update.lower()}",
    )


def update_in_order(target: Any, positions: Any, values: Any, update: str) -> None:
    """Update elements of a one-dimensional C-ordered array in place."""
    count = int(positions.size)
    if not count:
        return
    if target.dtype == np.bool_:
        target, values = target.view(np.uint8), values.astype(np.bool_).view(np.uint8)
        update = _OF_TRUTH[update]
    order = cupy.argsort(positions, kind="stable").astype(np.int64, copy=False)
    ordered = positions[order].astype(np.int64, copy=False)
    values = cupy.ascontiguousarray(values.astype(target.dtype, copy=False))
    if values.size != count:
        values = cupy.ascontiguousarray(cupy.broadcast_to(values, positions.shape))
    _kernel(update)(ordered, order, values, count, target, size=count)
