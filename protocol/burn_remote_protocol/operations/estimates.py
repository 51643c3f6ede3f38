"""Estimates of one operation's duration (``cost``) and scratch memory (``workspace``).

A cost is in nanoseconds of one core of a current server. The server decides by it whether an
operation may run on the event loop, and refuses operations above ``max_operation_cost``. A cost is
an upper estimate in most cases, and must never be less than a tenth of the real duration:
``benchmarks/costs.py`` measures every row. A workspace is in bytes, in addition to inputs and
outputs, for the NumPy kernels.

Estimates are functions of a ``Call`` whose ``requested`` holds the outputs. Similar rows share a
factory function; each row passes its own constants, so the table shows them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

from burn_remote_protocol.dtypes import BF16, F16
from burn_remote_protocol.operations.row import Call, Estimates
from burn_remote_protocol.tensors import TensorSpec

__all__ = [
    "ADAPTIVE_POOLING",
    "ADAPTIVE_POOLING_BACKWARD",
    "ATTENTION",
    "CAT",
    "CONVOLUTION",
    "CONVOLUTION_BACKWARD",
    "CTC",
    "CTC_BACKWARD",
    "DEFORMABLE",
    "DEFORMABLE_BACKWARD",
    "EMBEDDING_BACKWARD",
    "FOURIER",
    "GATHER_ND",
    "GRID_SAMPLE",
    "INTERPOLATE",
    "INTERPOLATE_BACKWARD",
    "LINEAR",
    "LINEAR_WEIGHT_BACKWARD",
    "LINEAR_X_BACKWARD",
    "MATMUL",
    "NONZERO",
    "NOTHING",
    "POOL",
    "POOL_BACKWARD",
    "POOL_INDICES_BACKWARD",
    "POOL_WITH_INDICES",
    "SCATTER_ND",
    "SEARCHED",
    "SOLVE",
    "SORTED",
    "TRANSFORM",
    "TRANSPOSED_BACKWARD",
    "TRANSPOSED_CONVOLUTION",
    "UNFOLD4D",
    "UNKNOWN",
    "VIEW",
    "along_rows",
    "elementwise",
    "estimated",
    "factorization",
    "indexed",
    "per_element",
    "positions",
    "ranked",
    "scanned_rows",
    "updated",
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


def _inputs(call: Call) -> Iterator[TensorSpec]:
    for item in call.inputs:
        if type(item) is tuple:
            yield from item
        elif item is not None:
            yield item


def _elements(call: Call) -> int:
    """Count the elements of all inputs and outputs."""
    return sum(spec.size for spec in _inputs(call)) + sum(spec.size for spec in call.requested)


def _input_elements(call: Call) -> int:
    return sum(spec.size for spec in _inputs(call))


def _output_elements(call: Call) -> int:
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
    for spec in (*_inputs(call), *call.requested):
        if spec.dtype.scheme is not None:
            cost += QUANTIZED_COST * spec.size
            workspace += spec.size if moves else FLOAT32_BYTES * spec.size
        elif spec.dtype in (F16, BF16):
            cost += CONVERSION_COST * spec.size
            workspace += FLOAT32_BYTES * spec.size if estimates.converts else 0
    return cost, workspace


def _width(spec: TensorSpec) -> int:
    """Return the bytes of an element in the dtype that a kernel computes in."""
    return max(FLOAT32_BYTES, spec.dtype.itemsize)


def _none(call: Call) -> int:
    return 0


def _constant(value: int) -> Callable[[Call], int]:
    return lambda call: value


# -- element by element ---------------------------------------------------------------------------


def elementwise(
    cost: int,
    workspace: int = 0,
    *,
    integers: int | None = None,
    call_cost: int = 0,
    converts: bool = False,
) -> Estimates:
    """Return estimates for broadcasting operations: ``cost`` per output element plus ``call_cost``.

    ``workspace`` is in bytes per output element; ``integers`` replaces it for integer tensors.
    """

    def scratch(call: Call) -> int:
        each = workspace
        if integers is not None and call.requested[0].dtype.is_integer:
            each = integers
        return each * _output_elements(call)

    return Estimates(
        lambda call: call_cost + cost * _output_elements(call) + _input_elements(call),
        scratch,
        converts,
    )


def per_element(
    cost: int, workspace: int = 0, *, call_cost: int = 0, converts: bool = True
) -> Estimates:
    """Return estimates for ``cost`` per element of inputs and outputs plus ``call_cost``."""
    return Estimates(
        lambda call: call_cost + cost * _elements(call),
        lambda call: workspace * _input_elements(call),
        converts,
    )


def along_rows(cost: int, row_cost: int, workspace: int = 0) -> Estimates:
    """Return estimates for operations along one axis.

    ``cost`` is per element of inputs and outputs, ``row_cost`` per line along the axis, and
    ``workspace`` in bytes per line.
    """

    def total(call: Call) -> int:
        return cost * _elements(call) + row_cost * _lines(call)

    return Estimates(total, lambda call: workspace * _lines(call))


def scanned_rows(cost: int, row_cost: int, workspace: int, row_workspace: int) -> Estimates:
    """Return estimates for operations along one axis whose results are as large as the input.

    ``cost`` is per element of inputs and outputs, ``workspace`` in bytes per input element; the
    others are per line along the axis.
    """

    def scratch(call: Call) -> int:
        spec: TensorSpec = call.inputs[0]
        return max(1, _width(spec) // 4) * workspace * spec.size + row_workspace * _lines(call)

    return Estimates(along_rows(cost, row_cost).cost, scratch)


def positions(cost: int, row_cost: int, workspace: int) -> Estimates:
    """Return estimates for arg-reductions, which copy the tensor to move the axis to the end."""
    rows = along_rows(cost, row_cost, workspace)

    def scratch(call: Call) -> int:
        spec, axis = call.inputs[0], _axis(call)
        is_last = axis is None or axis == len(spec.shape) - 1
        return rows.workspace(call) + (0 if is_last else _width(spec) * spec.size)

    return Estimates(rows.cost, scratch)


def _axis(call: Call) -> int | None:
    parameters = call.parameters
    return int(parameters.get("axis", parameters.get("dim")))


def _lines(call: Call) -> int:
    spec, axis = call.inputs[0], _axis(call)
    if axis is None or not spec.size:
        return 1
    return int(spec.size // spec.shape[axis])


def ranked(cost: int, workspace: int) -> Estimates:
    """Return estimates for sorting along an axis."""

    def total(call: Call) -> int:
        spec, axis = call.inputs[0], _axis(call)
        length = spec.shape[axis] if axis is not None else spec.size
        return int(cost * spec.size * max(1, length.bit_length()) + 300 * _lines(call))

    return Estimates(total, lambda call: workspace * call.inputs[0].size)


def _sorting_cost(call: Call) -> int:
    size = call.inputs[0].size
    return int(2 * KERNEL_COST + (10 * max(1, size.bit_length()) + 10) * size)


# The library makes the indices with the axes in another order.
NONZERO: Final = Estimates(
    lambda call: KERNEL_COST + 12 * _elements(call),
    lambda call: 2 * INDEX_BYTES * _output_elements(call),
)
# A stable sort of a vector by its indices, and one pass over the sorted elements.
SORTED: Final = Estimates(_sorting_cost, lambda call: 24 * int(call.inputs[0].size))
# A binary search for each value.
SEARCHED: Final = Estimates(
    lambda call: (
        KERNEL_COST
        + (8 * max(1, call.inputs[0].size.bit_length()) + 10) * call.inputs[1].size
        + 2 * call.inputs[0].size
    ),
    lambda call: _width(call.inputs[0]) * _input_elements(call),
)


VIEW: Final = Estimates(_none, _none, converts=False)
NOTHING: Final = VIEW
# Custom operations: this cost is high enough that each runs on its session's worker and is timed.
UNKNOWN: Final = Estimates(_constant(1_000_000), _none)


# -- movement and indices -------------------------------------------------------------------------

CAT: Final = Estimates(
    lambda call: 2 * _elements(call) + 1_000 * len(call.inputs[0]),
    _none,
    converts=False,
)


def indexed(cost: int, workspace: int = 0) -> Estimates:
    """Return estimates for gathering: per output element and per index, which is checked first."""

    def indices(call: Call) -> int:
        return int(call.inputs[1].size)

    return Estimates(
        lambda call: KERNEL_COST // 4 + cost * _output_elements(call) + 10 * indices(call),
        lambda call: workspace * _output_elements(call) + INDEX_BYTES * indices(call),
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
        + 4 * _output_elements(call)
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


# -- matrix products ------------------------------------------------------------------------------


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
    return 8 * (_input_elements(call) + 2 * out.size)


MATMUL: Final = Estimates(_matmul_cost, _matmul_workspace)
LINEAR: Final = Estimates(
    lambda call: (
        KERNEL_COST
        + PRODUCT_COST * call.requested[0].size * call.inputs[1].shape[0]
        + 2 * _elements(call)
    ),
    lambda call: call.inputs[0].nbytes,
)
LINEAR_X_BACKWARD: Final = Estimates(
    lambda call: (
        KERNEL_COST
        + PRODUCT_COST * call.inputs[1].size * call.inputs[0].shape[0]
        + 2 * _elements(call)
    ),
    lambda call: call.inputs[1].nbytes,
)
LINEAR_WEIGHT_BACKWARD: Final = Estimates(
    lambda call: (
        KERNEL_COST
        + PRODUCT_COST * call.inputs[0].size * call.inputs[1].shape[-1]
        + 2 * _elements(call)
    ),
    lambda call: _input_elements(call) * _width(call.inputs[0]),
)

# One matrix of a batch: LAPACK copies it, and its functions have many steps.
MATRIX_COST: Final = 4_000


def _sides(call: Call) -> tuple[int, int, int]:
    """Return the number of matrices, and the longer and the shorter side of each."""
    *batch, rows, columns = call.inputs[0].shape
    return math.prod(batch), max(rows, columns), min(rows, columns)


def factorization(cost: float) -> Estimates:
    """Return estimates for factorizations: ``cost`` per multiplication of their leading term.

    A factorization of a ``[rows, columns]`` matrix has ``rows * columns * min(rows, columns)`` such
    multiplications, and one that makes a larger square matrix accordingly more. LAPACK works on a
    copy of one matrix of the batch at a time.
    """

    def total(call: Call) -> int:
        count, longer, shorter = _sides(call)
        square = max((spec.size for spec in call.requested), default=0)
        products = max(count * longer * shorter, square) * shorter
        return int(2 * KERNEL_COST + MATRIX_COST * count + 60 * _elements(call) + cost * products)

    def workspace(call: Call) -> int:
        _, longer, shorter = _sides(call)
        # Work arrays of the divide-and-conquer algorithms have up to 5 times the shorter side's
        # square, and inputs and results may be copied once to order their axes.
        one = longer * shorter + 5 * shorter * shorter + 64 * longer
        return _width(call.inputs[0]) * (one + _elements(call))

    return Estimates(total, workspace)


def _solve_cost(call: Call) -> int:
    lhs, (out,) = call.inputs[0], call.requested
    side = lhs.shape[-1]
    count = math.prod(out.shape[:-2])
    products = count * side**3 + side * out.size
    return int(2 * KERNEL_COST + MATRIX_COST * count + 20 * _elements(call) + 2 * products)


def _solve_workspace(call: Call) -> int:
    lhs, rhs = call.inputs
    one = lhs.shape[-1] * (lhs.shape[-1] + 2 * rhs.shape[-1])
    return int(_width(lhs) * (one + _elements(call)))


SOLVE: Final = Estimates(_solve_cost, _solve_workspace)

KEYS_AT_ONCE: Final = 2048


def _attention_cost(call: Call) -> int:
    query, key, value = call.inputs[:3]
    batch, heads, queries, _ = query.shape
    keys = key.shape[2]
    scores = batch * heads * queries * keys
    row_bytes = max(1, 2 * min(keys, KEYS_AT_ONCE) * _width(query))
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
    row = 4 * min(key.shape[2], KEYS_AT_ONCE) * _width(query)
    scores = math.prod(query.shape[:3]) * row
    return int(min(scores, max(2 * BLOCK_BYTES, row)) + 3 * query.nbytes + 3 * value.nbytes)


ATTENTION: Final = Estimates(_attention_cost, _attention_workspace)


# -- windows --------------------------------------------------------------------------------------


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
    column = channels * taps * math.prod(out.shape[3:]) * _width(x)
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
        at_once = max(1, BLOCK_BYTES // max(1, plane * _width(x)))
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
    row = x.shape[1] * taps * math.prod(out.shape[3:]) * _width(x)
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
    """Return image, filters and output of the convolution that this one is the gradient of."""
    return call.requested[0], call.inputs[1], call.inputs[0]


def _windows(parts: Callable[[Call], tuple[TensorSpec, TensorSpec, TensorSpec]]) -> Estimates:
    return Estimates(
        lambda call: _windows_cost(call, *parts(call)),
        lambda call: _windows_workspace(call, *parts(call)),
    )


def _transposed_backward(call: Call) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    """Return image, filters and output of the convolution with the same gradient of its filters."""
    return call.inputs[2], call.inputs[1], call.inputs[0]


def _unfolded_cost(call: Call) -> int:
    taps = math.prod(call.parameters["kernel_size"])
    return int(KERNEL_COST + PASS_COST * taps + 4 * _elements(call))


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
    at_once = max(1, BLOCK_BYTES // max(1, row * _width(x)))
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
    at_once = max(row, min(cells, BLOCK_BYTES // _width(x)))
    place = places * at_once // max(1, row)
    plane = x.size // max(1, x.shape[0])
    scatter = 2 * INDEX_BYTES * at_once if factor > 1 else 0
    return int(
        5 * factor * _width(x) * at_once
        + scatter
        + 16 * INDEX_BYTES * place
        + 2 * _width(x) * (plane * factor + weight.size)
    )


DEFORMABLE: Final = Estimates(
    lambda call: _deformable_cost(call, call.requested[0], 1),
    lambda call: _deformable_workspace(call, call.requested[0], 1),
)
DEFORMABLE_BACKWARD: Final = Estimates(
    lambda call: _deformable_cost(call, call.inputs[5], 3),
    lambda call: _deformable_workspace(call, call.inputs[5], 2),
)


# -- pooling and sampling -------------------------------------------------------------------------


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
    lambda call: _folded_workspace(call.inputs[0], call.requested[0], 2 * _width(call.inputs[0])),
)
POOL_BACKWARD: Final = Estimates(
    lambda call: _folded(call, call.inputs[0], call.inputs[1], 3),
    lambda call: _folded_workspace(call.inputs[0], call.inputs[1], 3 * _width(call.inputs[0])),
)
POOL_WITH_INDICES: Final = Estimates(
    lambda call: _folded(call, call.inputs[0], call.requested[0], 15),
    lambda call: _folded_workspace(call.inputs[0], call.requested[0], 8 * INDEX_BYTES),
)
POOL_INDICES_BACKWARD: Final = Estimates(
    lambda call: 5 * KERNEL_COST + 3 * call.inputs[0].size + 20 * call.inputs[1].size,
    lambda call: (
        (_width(call.inputs[0])) * call.inputs[0].size + 4 * INDEX_BYTES * call.inputs[1].size
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
    return 3 * _width(x) * largest + table + 5 * INDEX_BYTES * sum(out.shape[2:])


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


# -- signals --------------------------------------------------------------------------------------


def _fourier_cost(call: Call) -> int:
    samples = call.parameters["n"]
    spec, dim = call.inputs[0], call.parameters["dim"]
    length = max(samples or 0, spec.shape[dim], call.requested[0].shape[dim])
    lines = spec.size // max(1, spec.shape[dim])
    # A prime length takes three transforms of at least twice the length.
    transform = 15 * length * max(1, length.bit_length())
    return int(KERNEL_COST + lines * (transform + 1_000) + 5 * _elements(call))


def _fourier_workspace(call: Call) -> int:
    largest = max(_input_elements(call), _output_elements(call))
    length = call.requested[0].shape[call.parameters["dim"]]
    # The complex spectrum, the transform's copy of its input, and the scratch of one long line.
    return int(40 * largest + 128 * length)


FOURIER: Final = Estimates(_fourier_cost, _fourier_workspace)


def _transform_cost(call: Call) -> int:
    # The kernel truncates all axes before it pads any, so no intermediate result is larger.
    elements = max(_input_elements(call), _output_elements(call))
    cost = KERNEL_COST + 5 * elements
    for size in call.parameters["sizes"]:
        cost += elements * 15 * size.bit_length() + (elements // size + 1) * 500 + KERNEL_COST
    return int(cost)


def _transform_workspace(call: Call) -> int:
    elements = max(_input_elements(call), _output_elements(call))
    # Results along two axes in succession, with padding; the scratch of one long line.
    return int(64 * elements + 128 * max(call.parameters["sizes"]))


TRANSFORM: Final = Estimates(_transform_cost, _transform_workspace)


def _ctc_states(call: Call) -> tuple[int, int]:
    """Return the steps, and the states of all samples at one step."""
    steps, batch, _ = call.inputs[0].shape
    return steps, batch * (2 * call.inputs[1].shape[1] + 1)


def _ctc_cost(call: Call) -> int:
    steps, states = _ctc_states(call)
    return 10 * KERNEL_COST + steps * (5 * PASS_COST + 80 * states) + 2 * _elements(call)


def _ctc_backward_cost(call: Call) -> int:
    steps, states = _ctc_states(call)
    classes = call.inputs[0].size // max(1, steps)
    step = 15 * PASS_COST + 250 * states + 40 * classes
    return int(10 * KERNEL_COST + steps * step + 4 * _elements(call))


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
