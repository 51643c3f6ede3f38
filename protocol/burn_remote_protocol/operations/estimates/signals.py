"""Estimates of Fourier transforms and of the CTC loss."""

from __future__ import annotations

from typing import Final

from burn_remote_protocol.operations.estimates.shared_costs import (
    BLOCK_BYTES,
    KERNEL_COST,
    PASS_COST,
    element_count,
    input_element_count,
    output_element_count,
)
from burn_remote_protocol.operations.row import Call, Estimates

__all__ = ["CTC", "CTC_BACKWARD", "FOURIER", "TRANSFORM"]


def _fourier_cost(call: Call) -> int:
    samples = call.parameters["n"]
    spec, dim = call.inputs[0], call.parameters["dim"]
    length = max(samples or 0, spec.shape[dim], call.requested[0].shape[dim])
    lines = spec.size // max(1, spec.shape[dim])
    # A prime length takes three transforms of at least twice the length.
    transform = 15 * length * max(1, length.bit_length())
    return int(KERNEL_COST + lines * (transform + 1_000) + 5 * element_count(call))


def _fourier_workspace(call: Call) -> int:
    largest = max(input_element_count(call), output_element_count(call))
    length = call.requested[0].shape[call.parameters["dim"]]
    # The complex spectrum, the transform's copy of its input, and the scratch of one long line.
    return int(40 * largest + 128 * length)


FOURIER: Final = Estimates(_fourier_cost, _fourier_workspace)


def _transform_cost(call: Call) -> int:
    # The kernel truncates all axes before it pads any, so no intermediate result is larger.
    elements = max(input_element_count(call), output_element_count(call))
    cost = KERNEL_COST + 5 * elements
    for size in call.parameters["sizes"]:
        cost += elements * 15 * size.bit_length() + (elements // size + 1) * 500 + KERNEL_COST
    return int(cost)


def _transform_workspace(call: Call) -> int:
    elements = max(input_element_count(call), output_element_count(call))
    # Results along two axes in succession, with padding; the scratch of one long line.
    return int(64 * elements + 128 * max(call.parameters["sizes"]))


TRANSFORM: Final = Estimates(_transform_cost, _transform_workspace)


def _ctc_states(call: Call) -> tuple[int, int]:
    """Return the steps, and the states of all samples at one step."""
    steps, batch, _ = call.inputs[0].shape
    return steps, batch * (2 * call.inputs[1].shape[1] + 1)


def _ctc_cost(call: Call) -> int:
    steps, states = _ctc_states(call)
    return 10 * KERNEL_COST + steps * (5 * PASS_COST + 80 * states) + 2 * element_count(call)


def _ctc_backward_cost(call: Call) -> int:
    steps, states = _ctc_states(call)
    classes = call.inputs[0].size // max(1, steps)
    step = 15 * PASS_COST + 250 * states + 40 * classes
    return int(10 * KERNEL_COST + steps * step + 4 * element_count(call))


def _ctc_workspace(call: Call) -> int:
    steps, states = _ctc_states(call)
    return min(32 * steps * states, BLOCK_BYTES + 32 * states) + 128 * states


CTC: Final = Estimates(_ctc_cost, _ctc_workspace)
# The kernel keeps all forward variables, in float64.
CTC_BACKWARD: Final = Estimates(
    _ctc_backward_cost,
    lambda call: (
        _ctc_workspace(call)
        + 8 * _ctc_states(call)[0] * _ctc_states(call)[1]
        + 16 * call.inputs[0].size
    ),
)
