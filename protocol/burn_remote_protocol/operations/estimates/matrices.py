"""Estimates of matrix products, factorizations and attention."""

from __future__ import annotations

import math
from typing import Final

from burn_remote_protocol.operations.estimates.shared_costs import (
    BLOCK_BYTES,
    KERNEL_COST,
    PASS_COST,
    PRODUCT_COST,
    element_count,
    input_element_count,
    width_bytes,
)
from burn_remote_protocol.operations.row import Call, Estimates

__all__ = [
    "ATTENTION",
    "LINEAR",
    "LINEAR_WEIGHT_BACKWARD",
    "LINEAR_X_BACKWARD",
    "MATMUL",
    "SOLVE",
    "factorization",
]


def _matmul_cost(call: Call) -> int:
    (out,), lhs = call.requested, call.inputs[0]
    products = math.prod(out.shape[:-2])
    # For small matrices, the overhead of each call exceeds the multiplications.
    return int(max(PRODUCT_COST * out.size * lhs.shape[-1], out.size + 500 * products))


def _matmul_workspace(call: Call) -> int:
    # Integers are multiplied as float64 where the result is exact.
    (out,) = call.requested
    if not out.dtype.is_integer:
        return 0
    return 8 * (input_element_count(call) + 2 * out.size)


MATMUL: Final = Estimates(_matmul_cost, _matmul_workspace)
LINEAR: Final = Estimates(
    lambda call: (
        KERNEL_COST
        + PRODUCT_COST * call.requested[0].size * call.inputs[1].shape[0]
        + 2 * element_count(call)
    ),
    lambda call: call.inputs[0].nbytes,
)
LINEAR_X_BACKWARD: Final = Estimates(
    lambda call: (
        KERNEL_COST
        + PRODUCT_COST * call.inputs[1].size * call.inputs[0].shape[0]
        + 2 * element_count(call)
    ),
    lambda call: call.inputs[1].nbytes,
)
LINEAR_WEIGHT_BACKWARD: Final = Estimates(
    lambda call: (
        KERNEL_COST
        + PRODUCT_COST * call.inputs[0].size * call.inputs[1].shape[-1]
        + 2 * element_count(call)
    ),
    lambda call: input_element_count(call) * width_bytes(call.inputs[0]),
)

# One matrix of a batch: LAPACK copies it, and its functions have many steps.
MATRIX_COST: Final = 4_000

# LAPACK iterates until the elements converge, and because of bugs some never do. So a server's
# event loop must not run such an operation, however small: this is ten times its default limit.
ITERATED_COST: Final = 1_000_000


def _sides(call: Call) -> tuple[int, int, int]:
    """Return the number of matrices, and the longer and the shorter side of each."""
    *batch, rows, columns = call.inputs[0].shape
    return math.prod(batch), max(rows, columns), min(rows, columns)


def factorization(cost: float, *, iterates: bool = False) -> Estimates:
    """Return estimates for factorizations: ``cost`` per multiplication of their leading term.

    ``iterates``: the number of steps depends on the elements, so the cost is at least
    ``ITERATED_COST``.

    A factorization of a ``[rows, columns]`` matrix has ``rows * columns * min(rows, columns)`` such
    multiplications, and one that makes a larger square matrix accordingly more. LAPACK works on a
    copy of one matrix of the batch at a time.
    """

    def total(call: Call) -> int:
        count, longer, shorter = _sides(call)
        square = max((spec.size for spec in call.requested), default=0)
        products = max(count * longer * shorter, square) * shorter
        estimate = 2 * KERNEL_COST + MATRIX_COST * count + 60 * element_count(call)
        return max(int(estimate + cost * products), ITERATED_COST if iterates else 0)

    def workspace(call: Call) -> int:
        _, longer, shorter = _sides(call)
        # Work arrays of the divide-and-conquer algorithms have up to 5 times the shorter side's
        # square, and inputs and results may be copied once to order their axes.
        one = longer * shorter + 5 * shorter * shorter + 64 * longer
        return width_bytes(call.inputs[0]) * (one + element_count(call))

    return Estimates(total, workspace)


def _solve_cost(call: Call) -> int:
    lhs, (out,) = call.inputs[0], call.requested
    side = lhs.shape[-1]
    count = math.prod(out.shape[:-2])
    products = count * side**3 + side * out.size
    return int(2 * KERNEL_COST + MATRIX_COST * count + 20 * element_count(call) + 2 * products)


def _solve_workspace(call: Call) -> int:
    lhs, rhs = call.inputs
    one = lhs.shape[-1] * (lhs.shape[-1] + 2 * rhs.shape[-1])
    return int(width_bytes(lhs) * (one + element_count(call)))


SOLVE: Final = Estimates(_solve_cost, _solve_workspace)

KEYS_AT_ONCE: Final = 2048


def _attention_cost(call: Call) -> int:
    query, key, value = call.inputs[:3]
    batch, heads, queries, _ = query.shape
    keys = key.shape[2]
    scores = batch * heads * queries * keys
    row_bytes = max(1, 2 * min(keys, KEYS_AT_ONCE) * width_bytes(query))
    queries_at_once = max(1, min(queries, BLOCK_BYTES // row_bytes))
    heads_at_once = max(1, BLOCK_BYTES // (row_bytes * queries_at_once))
    passes = batch * -(-heads // heads_at_once) * -(-queries // queries_at_once)
    passes *= max(1, -(-keys // KEYS_AT_ONCE))
    products = PRODUCT_COST * scores * (query.shape[3] + value.shape[3])
    # Each head's product is a separate call of BLAS.
    return int(
        KERNEL_COST + products + 30 * scores + 10 * PASS_COST * passes + 1_000 * batch * heads
    )


def _attention_workspace(call: Call) -> int:
    query, key, value = call.inputs[:3]
    row = 4 * min(key.shape[2], KEYS_AT_ONCE) * width_bytes(query)
    scores = math.prod(query.shape[:3]) * row
    return int(min(scores, max(2 * BLOCK_BYTES, row)) + 3 * query.nbytes + 3 * value.nbytes)


ATTENTION: Final = Estimates(_attention_cost, _attention_workspace)
