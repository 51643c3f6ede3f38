"""How are elements updated by index on a GPU so that repeats count in their order?

Positions are sorted; one thread per distinct position applies its updates one after the other, so
results do not depend on which thread comes first, as they would with atomic additions.
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
    # What is not equal to itself is NaN, which is the smallest and the largest.
    "Min": "held = (held != held || held < next) ? held : next",
    "Max": "held = (held != held || held > next) ? held : next",
}

# Truth values are added by "or" and multiplied by "and".
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
    """Update elements of a one-dimensional C-ordered array that is the caller's own."""
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
