"""Costs and counts that the estimates of several operations share; the estimate of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from burn_remote_protocol.dtypes import BF16, F16
from burn_remote_protocol.operations.row import Call, Estimates
from burn_remote_protocol.tensors import TensorSpec

__all__ = [
    "BLOCK_BYTES",
    "CONVERSION_COST",
    "FLOAT32_BYTES",
    "INDEX_BYTES",
    "KERNEL_COST",
    "NOTHING",
    "PASS_COST",
    "PRODUCT_COST",
    "QUANTIZED_COST",
    "UNKNOWN",
    "VIEW",
    "constant",
    "element_count",
    "estimated",
    "input_element_count",
    "inputs_of",
    "nothing",
    "output_element_count",
    "width_bytes",
]

# Scratch memory of a windowed kernel (convolution, pooling) per block of its output.
BLOCK_BYTES: Final = 8 * 2**20
# One iteration of a kernel's Python loop: a few calls of the array library on views.
PASS_COST: Final = 10_000
# One call of a kernel that checks its arguments and calls the array library a few times.
KERNEL_COST: Final = 20_000
# One multiplication and addition of a matrix product. NumPy takes a fortieth of it with BLAS, and
# all of it for integers and for strides that BLAS does not support.
PRODUCT_COST: Final = 2
# Converting an element from or to 16 bits.
CONVERSION_COST: Final = 4
QUANTIZED_COST: Final = 10
FLOAT32_BYTES: Final = 4
INDEX_BYTES: Final = 8


def inputs_of(call: Call) -> Iterator[TensorSpec]:
    """Iterate over the inputs that are present, with the members of lists."""
    for item in call.inputs:
        if type(item) is tuple:
            yield from item
        elif item is not None:
            yield item


def element_count(call: Call) -> int:
    """Count the elements of all inputs and outputs."""
    return sum(spec.size for spec in inputs_of(call)) + sum(spec.size for spec in call.requested)


def input_element_count(call: Call) -> int:
    """Count the elements of all inputs."""
    return sum(spec.size for spec in inputs_of(call))


def output_element_count(call: Call) -> int:
    """Count the elements of all outputs."""
    return sum(spec.size for spec in call.requested)


def estimated(estimates: Estimates, call: Call) -> tuple[int, int]:
    """Return the cost and the workspace of a call, including the conversion of its tensors."""
    cost, workspace = estimates.cost(call), estimates.workspace(call)
    if estimates is UNKNOWN:
        return cost, workspace
    first = call.inputs[0] if call.inputs else None
    # Only tensors with a single scale can be moved without dequantizing them.
    moves = (
        not estimates.converts
        and type(first) is TensorSpec
        and first.dtype.scheme is not None
        and first.dtype.scheme.level is None
    )
    for spec in (*inputs_of(call), *call.requested):
        if spec.dtype.scheme is not None:
            cost += QUANTIZED_COST * spec.size
            workspace += spec.size if moves else FLOAT32_BYTES * spec.size
        elif spec.dtype in (F16, BF16):
            cost += CONVERSION_COST * spec.size
            workspace += FLOAT32_BYTES * spec.size if estimates.converts else 0
    return cost, workspace


def width_bytes(spec: TensorSpec) -> int:
    """Return the bytes of an element in the dtype that a kernel computes in."""
    return max(FLOAT32_BYTES, spec.dtype.itemsize)


def nothing(call: Call) -> int:
    """Estimate 0."""
    return 0


def constant(value: int) -> Callable[[Call], int]:
    """Return an estimate that is the same for all calls."""
    return lambda call: value


VIEW: Final = Estimates(nothing, nothing, converts=False)
NOTHING: Final = VIEW
# Custom operations: this cost is high enough that each runs on its session's worker and is timed.
UNKNOWN: Final = Estimates(constant(1_000_000), nothing)
