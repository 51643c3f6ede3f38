"""Index updates on a GPU that apply repeated indices in order.

One thread applies all updates of an element one after the other. So results do not depend on
thread timing, as they would with atomic additions. The thread finds the updates of its element in
one of three ways:

- by comparing all positions, if there are few;
- by links from each update to the next one of the same position, which a kernel makes first;
- by sorting the positions, if there are many. This cannot be captured.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, Final

import cupy
import numpy as np

__all__ = ["update_in_order", "update_slices_in_order", "updates_slices"]

# Most comparisons of positions, of all elements together, without links. The kernel that makes
# links takes longer to launch than so many comparisons.
MAX_COMPARISONS: Final = 2**22
# Most positions of which links are made, by comparing each with all others. Sorting more is faster.
MAX_LINKED: Final = 2**14

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


# A warp for each update. ``next`` is the number of updates if no later one has the same position.
_links: Final = cupy.ElementwiseKernel(
    "raw int64 chosen, int64 count",
    "raw int32 next, raw bool is_first",
    """
    const int lane = i & 31, update = i >> 5, updates = count;
    const long long place = chosen[update];
    int is_later = 0, after = updates;
    for (int j = lane; j < updates && after == updates; j += 32) {
        if (chosen[j] == place) {
            if (j < update) is_later = 1;
            if (j > update) after = j;
        }
    }
    __syncwarp();
    is_later = __any_sync(0xffffffffu, is_later);
    for (int step = 16; step; step >>= 1) {
        const int other = __shfl_xor_sync(0xffffffffu, after, step);
        after = other < after ? other : after;
    }
    if (lane == 0) { next[update] = after; is_first[update] = !is_later; }
    """,
    "burn_remote_link_updates",
)


@cache
def _linked_kernel(update: str) -> Any:
    return cupy.ElementwiseKernel(
        "raw int64 chosen, raw int32 links, raw bool is_first, raw T values, int64 count, "
        "int64 inner, int64 length",
        "raw T target",
        f"""
        const long long element = i % inner, update = i / inner % count, outer = i / inner / count;
        if (is_first[update]) {{
            const long long at = (outer * length + chosen[update]) * inner + element;
            T held = target[at];
            for (long long j = update; j < count; j = links[j]) {{
                T next = values[(outer * count + j) * inner + element];
                {_STEPS[update]};
            }}
            target[at] = held;
        }}
        """,
        f"burn_remote_update_linked_{update.lower()}",
    )


def updates_slices(count: int) -> bool:
    """Whether ``count`` slices are updated without sorting."""
    return count <= MAX_LINKED


def update_slices_in_order(target: Any, chosen: Any, values: Any, axis: int, update: str) -> None:
    """Update slices of a C-ordered array along an axis in place.

    ``chosen`` has the ``int64`` position of each slice of ``values`` in ``target``; there are few
    enough for ``updates_slices``.
    """
    if not values.size:
        return
    if target.dtype == np.bool_:
        target, values = target.view(np.uint8), values.astype(np.bool_).view(np.uint8)
        update = _OF_TRUTH[update]
    values = cupy.ascontiguousarray(values.astype(target.dtype, copy=False))
    inner = math.prod(target.shape[axis + 1 :])
    chosen, count, length = cupy.ascontiguousarray(chosen), chosen.size, target.shape[axis]
    if count * values.size <= MAX_COMPARISONS:
        _slice_kernel(update)(chosen, values, count, inner, length, target, size=values.size)
        return
    links, is_first = cupy.empty(count, np.int32), cupy.empty(count, np.bool_)
    _links(chosen, count, links, is_first, size=32 * count)
    _linked_kernel(update)(
        chosen, links, is_first, values, count, inner, length, target, size=values.size
    )


def update_in_order(target: Any, positions: Any, values: Any, update: str) -> None:
    """Update elements of a one-dimensional C-ordered array in place."""
    count = int(positions.size)
    if not count:
        return
    if updates_slices(count):
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
