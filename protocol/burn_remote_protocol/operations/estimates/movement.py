"""Estimates of operations that move elements, or choose them by indices."""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.operations.estimates.shared_costs import (
    BLOCK_BYTES,
    INDEX_BYTES,
    KERNEL_COST,
    PASS_COST,
    element_count,
    nothing,
    output_element_count,
)
from burn_remote_protocol.operations.row import Call, Estimates

__all__ = ["CAT", "EMBEDDING_BACKWARD", "GATHER_ND", "SCATTER_ND", "indexed", "updated"]

CAT: Final = Estimates(
    lambda call: 2 * element_count(call) + 1_000 * len(call.inputs[0]),
    nothing,
    converts=False,
)


def indexed(cost: int, workspace: int = 0) -> Estimates:
    """Return estimates for gathering: ``cost`` per output element, and a check of each index.

    ``workspace`` is in bytes per output element.
    """

    def indices(call: Call) -> int:
        return int(call.inputs[1].size)

    return Estimates(
        lambda call: KERNEL_COST // 4 + cost * output_element_count(call) + 10 * indices(call),
        lambda call: workspace * output_element_count(call) + INDEX_BYTES * indices(call),
        converts=False,
    )


def updated(cost: int) -> Estimates:
    """Return estimates for scattering: a copy of the tensor, then one step per new element.

    The inputs of the call are the tensor, the indices and the values.
    """

    def total(call: Call) -> int:
        tensor, indices, values = call.inputs
        return int(KERNEL_COST // 2 + 2 * tensor.size + 10 * indices.size + cost * values.size)

    def workspace(call: Call) -> int:
        _, indices, values = call.inputs
        return int(INDEX_BYTES * (2 * values.size + indices.size))

    return Estimates(total, workspace)


def _embedding_backward_cost(call: Call) -> int:
    weights, grad, indices = call.inputs
    return int(KERNEL_COST + 2 * weights.size + 30 * grad.size + 10 * indices.size)


EMBEDDING_BACKWARD: Final = Estimates(
    _embedding_backward_cost,
    lambda call: (
        min(2 * BLOCK_BYTES, 3 * INDEX_BYTES * call.inputs[1].size)
        + 3 * INDEX_BYTES * max(call.inputs[0].shape[-1], call.inputs[2].size)
    ),
)
GATHER_ND: Final = Estimates(
    lambda call: (
        KERNEL_COST
        + 4 * output_element_count(call)
        + 15 * call.inputs[1].size
        + PASS_COST * (call.inputs[1].shape[-1] if call.inputs[1].shape else 0)
    ),
    lambda call: 3 * INDEX_BYTES * call.inputs[1].size,
    converts=False,
)
SCATTER_ND: Final = Estimates(
    lambda call: (
        KERNEL_COST
        + 2 * call.inputs[0].size
        + 30 * call.inputs[2].size
        + 15 * call.inputs[1].size
        + PASS_COST * (call.inputs[1].shape[-1] if call.inputs[1].shape else 0)
    ),
    lambda call: 3 * INDEX_BYTES * (call.inputs[1].size + call.inputs[2].size),
)
