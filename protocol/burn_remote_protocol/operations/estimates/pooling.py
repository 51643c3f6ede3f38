"""Estimates of pooling, interpolation and sampling on grids."""

from __future__ import annotations

import math
from typing import Any, Final

from burn_remote_protocol.operations.estimates.shared_costs import (
    INDEX_BYTES,
    KERNEL_COST,
    PASS_COST,
    width_bytes,
)
from burn_remote_protocol.operations.row import Call, Estimates
from burn_remote_protocol.tensors import TensorSpec

__all__ = [
    "ADAPTIVE_POOLING",
    "ADAPTIVE_POOLING_BACKWARD",
    "GRID_SAMPLE",
    "INTERPOLATE",
    "INTERPOLATE_BACKWARD",
    "POOL",
    "POOL_BACKWARD",
    "POOL_INDICES_BACKWARD",
    "POOL_WITH_INDICES",
]


def _per_axis(value: Any, axes: int) -> tuple[int, ...]:
    return value if type(value) is tuple else (value,) * axes


def _folded(call: Call, x: TensorSpec, out: TensorSpec, cost: int) -> int:
    """Estimate pooling one axis after the other.

    Each axis takes one pass per tap or per window, whichever are fewer.
    """
    axes = len(x.shape) - 2
    kernel = _per_axis(call.parameters["kernel_size"], axes)
    dilation = _per_axis(call.parameters.get("dilation", 1), axes)
    total = KERNEL_COST
    planes = math.prod(x.shape[:2])
    for axis in range(axes):
        size, count = x.shape[axis + 2], out.shape[axis + 2]
        others = planes * math.prod(
            max(x.shape[other + 2], out.shape[other + 2]) for other in range(axes) if other != axis
        )
        inside = max(1, min(kernel[axis], -(-size // dilation[axis])))
        total += cost * others * (count * inside + size + count)
        total += PASS_COST * min(kernel[axis], count)
    return total


def _folded_workspace(x: TensorSpec, out: TensorSpec, element: int) -> int:
    largest = math.prod(x.shape[:2]) * math.prod(
        max(pair) for pair in zip(x.shape[2:], out.shape[2:], strict=True)
    )
    # The second term is for tables with the number of elements of each window.
    return element * largest + 8 * INDEX_BYTES * sum(out.shape[2:])


POOL: Final = Estimates(
    lambda call: _folded(call, call.inputs[0], call.requested[0], 2),
    lambda call: _folded_workspace(
        call.inputs[0], call.requested[0], 2 * width_bytes(call.inputs[0])
    ),
)
POOL_BACKWARD: Final = Estimates(
    lambda call: _folded(call, call.inputs[0], call.inputs[1], 3),
    lambda call: _folded_workspace(call.inputs[0], call.inputs[1], 3 * width_bytes(call.inputs[0])),
)
POOL_WITH_INDICES: Final = Estimates(
    lambda call: _folded(call, call.inputs[0], call.requested[0], 15),
    lambda call: _folded_workspace(call.inputs[0], call.requested[0], 8 * INDEX_BYTES),
)
POOL_INDICES_BACKWARD: Final = Estimates(
    lambda call: 5 * KERNEL_COST + 3 * call.inputs[0].size + 20 * call.inputs[1].size,
    lambda call: (
        (width_bytes(call.inputs[0])) * call.inputs[0].size + 4 * INDEX_BYTES * call.inputs[1].size
    ),
)

# Entries in the table of one block of an axis, and the bytes of all arrays per entry.
TABLE_ENTRIES: Final = 65_536
TABLE_ENTRY_BYTES: Final = 160


def _resampled(x: TensorSpec, out: TensorSpec, taps: int, *, covers: bool = False) -> int:
    """Estimate resampling the axes of an image one by one, with ``taps`` inputs per output.

    ``covers``: each input contributes to some output, even if there are few outputs.
    """
    planes = math.prod(x.shape[:2])
    total = 5 * KERNEL_COST
    sizes = (*x.shape[2:],)
    counts = (*out.shape[2:],)
    for axis, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        entries = taps * count + (size if covers else 0)
        others = planes * math.prod(
            max(sizes[other], counts[other]) for other in range(len(sizes)) if other != axis
        )
        passes = min(count, taps + -(-size // max(1, count)))
        total += (100 + 5 * others) * entries + 3 * PASS_COST * passes
    return total


def _resampled_workspace(x: TensorSpec, out: TensorSpec, taps: int) -> int:
    planes = math.prod(x.shape[:2])
    largest = planes * math.prod(max(pair) for pair in zip(x.shape[2:], out.shape[2:], strict=True))
    longest = max(max(x.shape[2:]), max(out.shape[2:]))
    table = TABLE_ENTRY_BYTES * min(taps * longest, TABLE_ENTRIES)
    # The last term is for adaptive pooling: the start, end and size of each window.
    return 3 * width_bytes(x) * largest + table + 5 * INDEX_BYTES * sum(out.shape[2:])


INTERPOLATION_TAPS: Final = {
    "Nearest": 1,
    "NearestExact": 1,
    "Bilinear": 2,
    "Bicubic": 4,
    "Lanczos3": 6,
}


def _taps(call: Call) -> int:
    return INTERPOLATION_TAPS.get(call.parameters["mode"], 6)


INTERPOLATE: Final = Estimates(
    lambda call: _resampled(call.inputs[0], call.requested[0], _taps(call)),
    lambda call: _resampled_workspace(call.inputs[0], call.requested[0], _taps(call)),
)
INTERPOLATE_BACKWARD: Final = Estimates(
    lambda call: 2 * _resampled(call.inputs[0], call.inputs[1], _taps(call)),
    lambda call: _resampled_workspace(call.inputs[0], call.inputs[1], _taps(call)),
)
ADAPTIVE_POOLING: Final = Estimates(
    lambda call: _resampled(call.inputs[0], call.requested[0], 2, covers=True),
    lambda call: _resampled_workspace(call.inputs[0], call.requested[0], 2),
)
ADAPTIVE_POOLING_BACKWARD: Final = Estimates(
    lambda call: 2 * _resampled(call.inputs[0], call.inputs[1], 2, covers=True),
    lambda call: _resampled_workspace(call.inputs[0], call.inputs[1], 2),
)


def _grid_sample_cost(call: Call) -> int:
    image, grid = call.inputs
    corners = 1 if call.parameters["mode"] == "Nearest" else 4
    return int(
        10 * KERNEL_COST
        + 2 * image.size
        + (40 + 60 * corners) * grid.size
        + 15 * corners * call.requested[0].size
    )


GRID_SAMPLE: Final = Estimates(
    _grid_sample_cost,
    lambda call: 8 * call.inputs[0].size + 64 * call.inputs[1].size + 40 * call.requested[0].size,
)
