"""Estimates of convolutions of every kind, and of unfolding."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from burn_remote_protocol.operations.estimates.shared_costs import (
    BLOCK_BYTES,
    INDEX_BYTES,
    KERNEL_COST,
    PASS_COST,
    PRODUCT_COST,
    element_count,
    width_bytes,
)
from burn_remote_protocol.operations.row import Call, Estimates
from burn_remote_protocol.tensors import TensorSpec

__all__ = [
    "CONVOLUTION",
    "CONVOLUTION_BACKWARD",
    "DEFORMABLE",
    "DEFORMABLE_BACKWARD",
    "TRANSPOSED_BACKWARD",
    "TRANSPOSED_CONVOLUTION",
    "UNFOLD4D",
]


def _reaching(sizes: tuple[int, ...], taps: tuple[int, ...], outputs: tuple[int, ...]) -> int:
    """Count the taps that lie inside the input for at least one window; each costs one pass."""
    return math.prod(
        min(tap, max(1, count) * max(1, size))
        for size, tap, count in zip(sizes, taps, outputs, strict=True)
    )


def _windows_cost(call: Call, x: TensorSpec, weight: TensorSpec, out: TensorSpec) -> int:
    """Estimate a convolution of ``x`` to ``out``, or one of its gradients."""
    batch, channels = x.shape[:2]
    taps = math.prod(weight.shape[2:])
    positions = math.prod(out.shape[2:])
    products = batch * out.shape[1] * positions * weight.shape[1] * taps
    column = channels * taps * math.prod(out.shape[3:]) * width_bytes(x)
    rows_at_once = BLOCK_BYTES // max(1, column)
    height = out.shape[2]
    images_at_once = rows_at_once // max(1, height)
    blocks = (
        -(-batch // images_at_once)
        if images_at_once
        else batch * -(-height // max(1, rows_at_once))
    )
    if call.parameters["groups"] > 1 or channels == 1:
        # A depthwise layer iterates over its taps once per image and block of channels.
        plane = 4 * (positions * max(1, out.shape[1] // max(1, channels)) + math.prod(x.shape[2:]))
        at_once = max(1, BLOCK_BYTES // max(1, plane * width_bytes(x)))
        blocks = max(blocks, batch * -(-channels // at_once))
    reaching = _reaching(x.shape[2:], weight.shape[2:], out.shape[2:])
    return int(
        5 * KERNEL_COST
        + PRODUCT_COST * products
        + 4 * batch * channels * min(taps, reaching) * positions
        + PASS_COST * reaching * blocks
        + 500 * call.parameters["groups"] * blocks
        + 2 * (x.size + weight.size + out.size)
    )


def _windows_workspace(call: Call, x: TensorSpec, weight: TensorSpec, out: TensorSpec) -> int:
    taps = math.prod(weight.shape[2:])
    row = x.shape[1] * taps * math.prod(out.shape[3:]) * width_bytes(x)
    columns = x.shape[0] * out.shape[2] * row
    # The kernel copies weights that are not contiguous, and a block's part of the output.
    return int(min(columns, max(BLOCK_BYTES, row)) * 2 + weight.nbytes + 2 * BLOCK_BYTES)


def _convolution(call: Call) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    """Return the image, the filters and the output of a convolution."""
    return call.inputs[0], call.inputs[1], call.requested[0]


def _convolution_backward(call: Call) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    """Return the image, the filters and the gradient of the output."""
    return call.inputs[0], call.inputs[1], call.inputs[2]


def _transposed(call: Call) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    """Return image, filters and output of the plain convolution with the same products.

    A transposed convolution computes the gradient of that convolution with respect to its image.
    """
    return call.requested[0], call.inputs[1], call.inputs[0]


def _windows(parts: Callable[[Call], tuple[TensorSpec, TensorSpec, TensorSpec]]) -> Estimates:
    return Estimates(
        lambda call: _windows_cost(call, *parts(call)),
        lambda call: _windows_workspace(call, *parts(call)),
    )


def _transposed_backward(call: Call) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    """Return image, filters and output of the plain convolution with the same products.

    The gradients of both convolutions with respect to their filters are equal.
    """
    return call.inputs[2], call.inputs[1], call.inputs[0]


def _unfolded_cost(call: Call) -> int:
    taps = math.prod(call.parameters["kernel_size"])
    return int(KERNEL_COST + PASS_COST * taps + 4 * element_count(call))


CONVOLUTION: Final = _windows(_convolution)
CONVOLUTION_BACKWARD: Final = _windows(_convolution_backward)
TRANSPOSED_CONVOLUTION: Final = _windows(_transposed)
TRANSPOSED_BACKWARD: Final = _windows(_transposed_backward)
UNFOLD4D: Final = Estimates(_unfolded_cost, lambda call: BLOCK_BYTES + call.requested[0].nbytes)


def _columns(call: Call, out: TensorSpec) -> tuple[int, int, int, int]:
    """Return sizes of a deformable convolution.

    They are the elements of all columns, those of the columns of one row of windows, the sampling
    positions per row (each read for every channel), and the number of blocks of rows.
    """
    x, weight = call.inputs[0], call.inputs[2]
    taps = math.prod(weight.shape[2:])
    height, width = out.shape[2:]
    row = x.shape[1] * taps * width
    places = call.parameters["offset_groups"] * taps * width
    at_once = max(1, BLOCK_BYTES // max(1, row * width_bytes(x)))
    return x.shape[0] * height * row, row, places, x.shape[0] * -(-height // at_once)


def _deformable_cost(call: Call, out: TensorSpec, factor: int) -> int:
    x, weight = call.inputs[0], call.inputs[2]
    cells, _, places, blocks = _columns(call, out)
    products = math.prod(out.shape) * math.prod(weight.shape[1:])
    rows = x.shape[0] * out.shape[2]
    return int(
        10 * KERNEL_COST
        + factor * (PRODUCT_COST * products + 40 * cells + 200 * rows * places)
        + 20 * PASS_COST * factor * blocks
        + 8 * PASS_COST * factor * blocks * call.parameters["offset_groups"]
        + 4 * x.size
    )


def _deformable_workspace(call: Call, out: TensorSpec, factor: int) -> int:
    x, weight = call.inputs[0], call.inputs[2]
    cells, row, places, _ = _columns(call, out)
    at_once = max(row, min(cells, BLOCK_BYTES // width_bytes(x)))
    place = places * at_once // max(1, row)
    plane = x.size // max(1, x.shape[0])
    scatter = 2 * INDEX_BYTES * at_once if factor > 1 else 0
    return int(
        5 * factor * width_bytes(x) * at_once
        + scatter
        + 16 * INDEX_BYTES * place
        + 2 * width_bytes(x) * (plane * factor + weight.size)
    )


DEFORMABLE: Final = Estimates(
    lambda call: _deformable_cost(call, call.requested[0], 1),
    lambda call: _deformable_workspace(call, call.requested[0], 1),
)
DEFORMABLE_BACKWARD: Final = Estimates(
    lambda call: _deformable_cost(call, call.inputs[5], 3),
    lambda call: _deformable_workspace(call, call.inputs[5], 2),
)
