"""Index updates on a GPU that apply repeated indices in order.

One thread per distinct position applies the updates of this position one after the other. So
results do not depend on thread timing, as they would with atomic additions. Many positions are
sorted first. With few positions, each thread searches all of them for its own, which also works
while a stream captures.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Final

import cupy
import numpy as np

__all__ = ["has_slice_kernel", "update_in_order", "update_slices_in_order"]

# Most comparisons of positions without sorting; above this number, sorting is faster.
MAX_COMPARISONS: Final = 2**26

_STEPS: Final = {
    "Assign": "held = next",
    "Add": "held = held + next",
    "Mul": "held = held * next",
    # A value that differs from itself is NaN. NaN is the result of both comparisons.
    "Min": "held = (held != held || held < next) ? held : next",
    "Max": "held = (held != held || held > next) ? held : next",
}

# For booleans, a sum is "or" and a product is "and", which are the maximum and the minimum.
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


@cache
def _slice_kernel(update: str) -> Any:
    return cupy.ElementwiseKernel(
        "raw int64 chosen, raw T values, int64 count, int64 inner, int64 length",
        "raw T target",
        f"""
        const long long element = i % inner, update = i / inner % count, outer = i / inner / count;
        const long long place = chosen[update];
        bool is_first = true;
        for (long long j = 0; j < update && is_first; ++j) is_first = chosen[j] != place;
        if (is_first) {{
            const long long at = (outer * length + place) * inner + element;
            T held = target[at];
            for (long long j = update; j < count; ++j) {{
                if (chosen[j] == place) {{
                    T next = values[(outer * count + j) * inner + element];
                    {_STEPS[update]};
                }}
            }}
            target[at] = held;
        }}
        """,
        f"burn_remote_update_slices_{update.lower()}",
    )


def has_slice_kernel(count: int, size: int) -> bool:
    """Whether ``count`` slices with ``size`` elements in total are updated without sorting."""
    return count * size <= MAX_COMPARISONS


def update_slices_in_order(target: Any, chosen: Any, values: Any, axis: int, update: str) -> None:
    """Update slices of a C-ordered array along an axis in place.

    ``chosen`` has the ``int64`` position of each slice of ``values`` in ``target``.
    """
    if not values.size:
        return
    if target.dtype == np.bool_:
        target, values = target.view(np.uint8), values.astype(np.bool_).view(np.uint8)
        update = _OF_TRUTH[update]
    values = cupy.ascontiguousarray(values.astype(target.dtype, copy=False))
    inner = math.prod(target.shape[axis + 1 :])
    _slice_kernel(update)(
        cupy.ascontiguousarray(chosen), values, chosen.size, inner, target.shape[axis], target,
        size=values.size,
    )  # fmt: skip


def update_in_order(target: Any, positions: Any, values: Any, update: str) -> None:
    """Update elements of a one-dimensional C-ordered array in place."""
    count = int(positions.size)
    if not count:
        return
    if has_slice_kernel(count, count):
        values = cupy.broadcast_to(values, positions.shape)
        update_slices_in_order(target, positions.astype(np.int64, copy=False), values, 0, update)
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
