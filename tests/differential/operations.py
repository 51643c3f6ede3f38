"""The operations of random programs, one row each: arguments, burn_remote, and the reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

import burn_remote as br
import burn_remote.functional as F
from differential.drawing import (
    ANY,
    BOOLS,
    FLOATS,
    INTEGERS,
    MAX_ELEMENTS,
    NUMBERS,
    Draw,
    NothingFits,
)  # fmt: skip
from differential.reference import (
    converted,
    convolved,
    erf,
    in_float64,
    interpolated,
    mean_squared_error,
    pooled,
    quantized,
    rounded_once,
    shifted,
    truncated_quotient,
)
from support.kernels import Array

__all__ = [
    "ROWS",
    "Arguments",
    "Row",
    "along",
    "like",
    "one",
    "pair",
    "tame",
    "two",
    "with_axis",
    "without_signed_zeros",
]

# The tensors that an operation takes, by name, and its parameters.
Arguments = tuple[tuple[int, ...], tuple[Any, ...]]


@dataclass(frozen=True)
class Row:
    """One operation. ``run`` and ``reference`` take the tensors, then the parameters.

    ``rounds`` is the number of roundings to low precision on the way to the result. It is 0 if the
    result is known to the last bit. ``waits``: the call reads, so a graph cannot hold it.
    """

    name: str
    draw: Callable[[Draw], Arguments]
    run: Callable[..., Any]
    reference: Callable[..., Any]
    rounds: int = 0
    waits: bool = False


# -- arguments --------------------------------------------------------------------------------


def one(dtypes: Sequence[Any] = ANY, **options: Any) -> Callable[[Draw], Arguments]:
    return lambda draw: ((draw.tensor(dtypes, **options),), ())


def moved(draw: Draw) -> Arguments:
    return (draw.tensor(exact=False),), ()


def tame(dtypes: Sequence[Any] = FLOATS) -> Callable[[Draw], Arguments]:
    return lambda draw: ((draw.tame(dtypes),), ())


def two(dtypes: Sequence[Any]) -> Callable[[Draw], Arguments]:
    def drawn(draw: Draw) -> Arguments:
        first = draw.tensor(dtypes)
        pair = (first, draw.beside(first))
        return (pair if draw.chance(0.5) else pair[::-1]), ()

    return drawn


def with_number(dtypes: Sequence[Any], *, finite: bool = False) -> Callable[[Draw], Arguments]:
    def drawn(draw: Draw) -> Arguments:
        name = draw.tensor(dtypes)
        number = draw.number(draw.array(name).dtype)
        if finite and not math.isfinite(number):
            raise NothingFits
        return (name,), (number,)

    return drawn


def with_divisor(draw: Draw) -> Arguments:
    (name,), (number,) = with_number(INTEGERS)(draw)
    return (name,), (number or 3,)


def with_axis(
    dtypes: Sequence[Any] = ANY, *, nonempty: bool = False, exact: bool = True, tame: bool = False
) -> Callable[[Draw], Arguments]:
    def drawn(draw: Draw) -> Arguments:
        name = (
            draw.tame(dtypes, least_rank=1)
            if tame
            else draw.tensor(dtypes, least_rank=1, exact=exact)
        )
        return (name,), (draw.axis_of(name, nonempty=nonempty),)

    return drawn


def with_dtype(draw: Draw) -> Arguments:
    return (draw.tensor(ANY),), (draw.one_of(ANY),)


def with_mask(draw: Draw) -> Arguments:
    first = draw.tensor(exact=False)
    (mask,) = (draw.beside(first, BOOLS),)
    return (first, mask), (draw.number(draw.array(first).dtype),)


def with_condition(draw: Draw) -> Arguments:
    first = draw.tensor(exact=False)
    second = draw.beside(first, exact=False)
    condition = draw.beside(first, BOOLS)
    shapes = [draw.array(name).shape for name in (first, second, condition)]
    try:
        size = math.prod(np.broadcast_shapes(*shapes))
    except ValueError:
        raise NothingFits from None
    if size > MAX_ELEMENTS:
        raise NothingFits
    return (condition, first, second), ()


def with_shape(draw: Draw) -> Arguments:
    name = draw.tensor(exact=False)
    left = draw.array(name).size
    shape: list[int] = []
    if not left:
        return (name,), ((0, draw.integer(0, 3)),)
    while left > 1 and len(shape) < 4:
        factor = draw.one_of([n for n in range(1, min(left, 12) + 1) if left % n == 0])
        shape.append(factor)
        left //= factor
    shape.append(left)
    return (name,), (tuple(shape) if draw.chance(0.8) or len(shape) > 4 else (*shape, 1),)


def with_order(draw: Draw) -> Arguments:
    name = draw.tensor(exact=False)
    return (name,), (tuple(int(axis) for axis in draw.random.permutation(draw.array(name).ndim)),)


def with_wider_shape(draw: Draw) -> Arguments:
    name = draw.tensor(exact=False)
    shape = draw.array(name).shape
    wider = [draw.integer(0, 4) if n == 1 else n for n in shape]
    wider = [draw.integer(1, 3)] * draw.integer(0, 4 - min(4, len(shape))) + wider
    if math.prod(wider) > MAX_ELEMENTS:
        raise NothingFits
    return (name,), (tuple(wider),)


def a_slice(draw: Draw, size: int) -> slice:
    step = draw.one_of([1, 1, 1, 2, 3, -1, -1, -2])
    ends = [draw.one_of([None, draw.integer(-size - 1, size + 1)]) for _ in range(2)]
    return slice(ends[0], ends[1], step)


def index_into(draw: Draw, name: int) -> tuple[Any, ...]:
    index: list[Any] = []
    for size in draw.array(name).shape:
        if draw.chance(0.15):
            break
        whole = size and draw.chance(0.2)
        index.append(draw.integer(-size, size - 1) if whole else a_slice(draw, size))
    if draw.chance(0.15):
        index.append(...)
    if draw.chance(0.1) and len(index) < 4:
        index.insert(draw.integer(0, len(index)), None)
    return tuple(index)


def with_index(draw: Draw) -> Arguments:
    name = draw.tensor(exact=False, least_rank=1)
    return (name,), (index_into(draw, name),)


def with_index_and_number(draw: Draw) -> Arguments:
    name = draw.tensor(exact=False, least_rank=1)
    index = index_into(draw, name)
    if None in index:
        raise NothingFits
    return (name,), (index, draw.number(draw.array(name).dtype))


def with_index_and_value(draw: Draw) -> Arguments:
    """Choose a tensor that replaces a slice of another tensor or of itself."""
    name = draw.tensor(exact=False, least_rank=1)
    array = draw.array(name)
    index = tuple(item for item in index_into(draw, name) if item is not None)
    taken = array[index]
    known = draw.known[name]
    value = draw.tensor(
        (array.dtype,),
        exact=False,
        fits=lambda other: (
            other.device == known.device
            and other.array.ndim <= taken.ndim
            and all(
                n in (1, wanted)
                for n, wanted in zip(other.array.shape[::-1], taken.shape[::-1], strict=False)
            )
        ),
    )
    return (name, value), (index,)


def with_positions(draw: Draw) -> Arguments:
    name = draw.tensor(exact=False, least_rank=1)
    axis = draw.axis_of(name, nonempty=True)
    size = draw.array(name).shape[axis]
    count = draw.integer(0, 6)
    if draw.array(name).size // size * count > MAX_ELEMENTS:
        raise NothingFits
    positions = draw.random.integers(0, size, count)
    return (name,), (positions.astype(draw.one_of(["i8", "i4", "u1", "i2"])), axis)


def with_indices_along(draw: Draw) -> Arguments:
    (name,), (positions, axis) = with_positions(draw)
    shape = list(draw.array(name).shape)
    size = shape[axis]
    shape[axis] = len(positions)
    return (name,), (draw.random.integers(0, size, shape), axis)


def with_updates(draw: Draw) -> Arguments:
    """Choose integers added at indices that may repeat: the order does not matter."""
    name = draw.tensor(INTEGERS, least_rank=1)
    axis = draw.axis_of(name, nonempty=True)
    array = draw.array(name)
    shape = list(array.shape)
    shape[axis] = draw.integer(0, 4)
    indices = draw.random.integers(0, array.shape[axis], shape)
    return (name,), (indices, draw.elements(tuple(shape), array.dtype), axis)


def with_neighbours(draw: Draw) -> Arguments:
    """Choose one to four tensors whose shapes differ in one axis only."""
    first = draw.tensor(exact=False, least_rank=1)
    axis = draw.axis_of(first)
    known = draw.known[first]
    place = axis % known.array.ndim

    def rest(array: Array) -> tuple[int, ...]:
        return (*array.shape[:place], *array.shape[place + 1 :])

    names = [first]
    for _ in range(draw.integer(0, 3)):
        other = draw.tensor(
            (known.array.dtype,),
            exact=False,
            least_rank=1,
            fits=lambda one: (
                one.device == known.device
                and one.array.ndim == known.array.ndim
                and rest(one.array) == rest(known.array)
            ),
        )
        names.append(other)
    if sum(draw.array(name).size for name in names) > MAX_ELEMENTS:
        raise NothingFits
    return tuple(names), (axis,)


def with_twins(draw: Draw) -> Arguments:
    first = draw.tensor(exact=False)
    names = (first, *(draw.like(first, exact=False) for _ in range(draw.integer(0, 2))))
    if sum(draw.array(name).size for name in names) > MAX_ELEMENTS:
        raise NothingFits
    rank = draw.array(first).ndim
    return names, (draw.integer(-rank - 1, rank),)


def with_window(draw: Draw) -> Arguments:
    name = draw.tensor(exact=False, least_rank=1)
    axis = draw.axis_of(name, nonempty=True)
    size = draw.integer(1, min(4, draw.array(name).shape[axis]))
    if draw.array(name).ndim > 3:
        raise NothingFits
    return (name,), (axis, size, draw.integer(1, 3))


def with_shift(draw: Draw) -> Arguments:
    (name,), (axis,) = with_axis(exact=False)(draw)
    return (name,), (draw.integer(-7, 7), draw.one_of([axis, None]))


def with_repetitions(draw: Draw) -> Arguments:
    name = draw.tensor(exact=False, least_rank=1)
    repetitions = tuple(draw.integer(0, 3) for _ in range(draw.array(name).ndim))
    if draw.array(name).size * math.prod(repetitions) > MAX_ELEMENTS:
        raise NothingFits
    return (name,), (repetitions,)


def with_repeats(draw: Draw) -> Arguments:
    (name,), (axis,) = with_axis(exact=False)(draw)
    repeats = draw.integer(0, 3)
    if draw.array(name).size * repeats > MAX_ELEMENTS:
        raise NothingFits
    return (name,), (repeats, axis)


def with_borders(draw: Draw) -> Arguments:
    name = draw.tensor(exact=False, least_rank=1)
    array = draw.array(name)
    borders = tuple(draw.integer(0, 2) for _ in range(2 * array.ndim))
    if array.size > 700:
        raise NothingFits
    return (name,), (borders, draw.number(array.dtype))


def with_diagonal(draw: Draw) -> Arguments:
    return (draw.tensor(exact=False, least_rank=2),), (draw.integer(-3, 3),)


def with_matrix(dtypes: Sequence[Any], fresh: Callable[..., Array] | None = None) -> Any:
    """Choose a matrix, or a stack of them, and a fresh one to multiply it with."""

    def drawn(draw: Draw) -> Arguments:
        name = (
            draw.tame(dtypes, least_rank=2)
            if dtypes is FLOATS
            else draw.tensor(dtypes, least_rank=2)
        )
        array = draw.array(name)
        shape = (array.shape[-1], draw.integer(1, 5))
        if array.size * shape[1] > 4 * MAX_ELEMENTS:
            raise NothingFits
        small = draw.random.integers(-4 * (array.dtype.kind != "u"), 5, shape)
        return (name,), (small.astype(array.dtype),)

    return drawn


def with_k(draw: Draw) -> Arguments:
    (name,), (axis,) = with_axis(NUMBERS, nonempty=True)(draw)
    if np.isnan(draw.array(name).astype(np.float64)).any():
        raise NothingFits
    return (name,), (draw.integer(1, draw.array(name).shape[axis]), axis)


def image(draw: Draw) -> Arguments:
    """Choose an image ``[n, c, h, w]`` of tame numbers without an empty axis."""
    return (draw.tame(rank=4),), ()


def with_filters(draw: Draw) -> Arguments:
    (name,), _ = image(draw)
    array = draw.array(name)
    kernel = draw.integer(1, 3)
    dilation, padding = draw.integer(1, 2), draw.integer(0, 2)
    reach = dilation * (kernel - 1) + 1
    if min(array.shape[2:]) + 2 * padding < reach:
        raise NothingFits
    shape = (draw.integer(1, 3), array.shape[1], kernel, kernel)
    weight = (draw.random.integers(-4, 5, shape) / 4).astype(array.dtype)
    return (name,), (weight, draw.integer(1, 3), padding, dilation)


def with_pooling(draw: Draw) -> Arguments:
    (name,), _ = image(draw)
    size = draw.integer(1, 3)
    padding = draw.integer(0, size // 2)
    if min(draw.array(name).shape[2:]) + 2 * padding < size:
        raise NothingFits
    return (name,), (size, draw.integer(1, 3), padding)


def with_size(draw: Draw) -> Arguments:
    (name,), _ = image(draw)
    return (name,), (draw.integer(1, 7), draw.integer(1, 7))


def with_block(draw: Draw) -> Arguments:
    name = draw.tame((np.dtype("f4"),), least_rank=1)
    last = draw.array(name).shape[-1]
    blocks = [n for n in range(1, min(last, 60) + 1) if last % n == 0]
    return (name,), (draw.one_of([None, draw.one_of(blocks)]),)


def with_block_and_order(draw: Draw) -> Arguments:
    name = draw.tame((np.dtype("f4"),))
    order = tuple(int(axis) for axis in draw.random.permutation(draw.array(name).ndim))
    return (name,), (order, draw.integer(0, 2))


def spread_rows(draw: Draw) -> Arguments:
    """Choose rows that are not almost constant: their differences would have few exact digits."""
    name = draw.tame(least_rank=1)
    array = draw.array(name).astype(np.float64)
    deviation, size = array.std(-1), np.abs(array).max(-1)
    if ((deviation > 0) & (deviation < size / 100)).any():
        raise NothingFits
    return (name,), ()


def with_rows(draw: Draw) -> Arguments:
    """Choose a table of rows and integers that name them."""
    table = draw.tensor(exact=False, least_rank=2, fits=lambda known: known.array.ndim == 2)
    count = draw.array(table).shape[0]
    if not count or draw.array(table).shape[1] > 100 or draw.array(table).dtype not in FLOATS:
        raise NothingFits
    shape = (draw.integer(1, 4), draw.integer(1, 4))
    return (table,), (draw.random.integers(0, count, shape),)


def with_keys(draw: Draw) -> Arguments:
    name = draw.tame(rank=4)
    array = draw.array(name)
    if array.size > 700:
        raise NothingFits
    shape = (*array.shape[:2], draw.integer(1, 4), array.shape[3])
    keys, values = ((draw.random.integers(-4, 5, shape) / 4).astype(array.dtype) for _ in range(2))
    return (name,), (keys, values)


# -- both sides -------------------------------------------------------------------------------


def like(x: br.Tensor, array: Any) -> br.Tensor:
    """Return an array as a tensor on the device of another."""
    return br.tensor(array, device=x.device)


def nonzero(y: br.Tensor) -> br.Tensor:
    return br.where(y == 0, 1, y)


def not_zero(y: Array) -> Array:
    return np.where(y == 0, y.dtype.type(1), y)


def pair(function: Any, reference: Any, name: str, dtypes: Sequence[Any]) -> list[Row]:
    """Return rows for two tensors, a tensor and a number, and a number and a tensor."""
    computed = rounded_once(reference)
    return [
        Row(name, two(dtypes), function, computed),
        Row(f"{name}_number", with_number(dtypes), function, computed),
        Row(
            f"number_{name}",
            with_number(dtypes),
            lambda x, n: function(n, x),
            rounded_once(lambda x, n: reference(n, x)),
        ),
    ]


def comparison(name: str) -> list[Row]:
    function, reference = getattr(br, name), getattr(np, name)
    return [
        Row(name, two(NUMBERS), function, reference),
        Row(
            f"{name}_number",
            with_number(NUMBERS),
            function,
            # A number is compared as one of the tensor's dtype: 0.1 equals float16 0.1.
            lambda x, n: reference(x, converted(np.asarray(n), x.dtype)),
        ),
    ]


def approximate(function: Any, reference: Any, name: str, rounds: int = 1) -> Row:
    return Row(name, tame(), function, in_float64(reference), rounds)


def along(name: str, dtypes: Sequence[Any], reference: Any, **options: Any) -> Row:
    function = getattr(br, name)
    return Row(
        name,
        with_axis(
            dtypes, **{key: options.pop(key) for key in ("nonempty", "tame") if key in options}
        ),
        lambda x, axis: function(x, axis=axis),
        # NumPy sorts bfloat16 NaN like a number.
        rounded_once(reference),
        **options,
    )


def without_signed_zeros(row: Row) -> Row:
    """Return an operation that selects one of several equal elements, such as 0.0 and -0.0.

    Which of the two NumPy returns depends on the processor and on the layout of the array.
    """

    def reference(*arguments: Any) -> Any:
        result = row.reference(*arguments)
        return np.where(result == 0, result.dtype.type(0), result)

    return replace(row, run=lambda *arguments: row.run(*arguments) + 0, reference=reference)


def widened_sum(x: Array, axis: int | None) -> Array:
    dtype = {"u": np.uint64, "i": np.int64, "b": np.int64}[x.dtype.kind]
    return np.asarray(np.sum(x, axis, dtype))


def softmax(x: Array, axis: int) -> Array:
    exponentials = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis, keepdims=True))


def layer_norm(x: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5))


def attention(q: Array, k: Array, v: Array) -> Array:
    scores = np.einsum("nhqd,nhkd->nhqk", q, k) / math.sqrt(q.shape[-1])
    return np.asarray(np.einsum("nhqk,nhkd->nhqd", softmax(scores, -1), v))


def replaced(x: Array, index: Any, value: Any) -> Array:
    result = x.copy()
    if not isinstance(value, np.ndarray):
        value = converted(np.asarray(value), x.dtype)
    result[index] = value
    return result


def added_along(x: Array, indices: Array, values: Array, axis: int) -> Array:
    result = x.copy()
    for place in np.ndindex(indices.shape):
        target = list(place)
        target[axis] = int(indices[place])
        result[tuple(target)] += values[place]
    return result


def unfolded(x: Array, axis: int, size: int, step: int) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(x, size, axis)
    return windows[(slice(None),) * (axis % x.ndim) + (slice(None, None, step),)]


def padded(x: Array, borders: tuple[int, ...], number: Any) -> Array:
    widths = [borders[2 * axis : 2 * axis + 2] for axis in range(x.ndim)][::-1]
    return np.pad(x, widths, constant_values=converted(np.asarray(number), x.dtype))


def largest(x: Array, k: int, axis: int) -> Array:
    ordered = np.flip(np.sort(x, axis), axis)
    return np.take(ordered, np.arange(k), axis)


def as_float(x: Array) -> Array:
    return x.astype(np.float32) if x.dtype.kind in "iu" else x


def moved_quantized(x: br.Tensor, order: tuple[int, ...], how: int) -> br.Tensor:
    held = x.quantize()
    if how == 0:
        return held.permute_dims(order).dequantize()
    if how == 1:
        return held.flip().dequantize() if x.ndim else held.dequantize()
    return held.reshape((-1,)).dequantize()


def moved_numbers(x: Array, order: tuple[int, ...], how: int) -> Array:
    held = quantized(x, None)
    if how == 0:
        return held.transpose(order)
    return np.flip(held) if how == 1 else held.reshape(-1)


SIGNED: Final = tuple(dtype for dtype in NUMBERS if dtype.kind != "u")

# Their results are one of several equal elements, or of an element and a bound.
CHOICES: Final = frozenset({
    "maximum", "minimum", "clip", "clip_both", "relu", "max", "min", "cummax", "cummin", "sort",
    "topk", "max_pool2d",
})  # fmt: skip

ROWS: Final = {
    row.name: without_signed_zeros(row) if row.name in CHOICES else row
    for row in (
        # -- exact arithmetic
        *pair(br.add, np.add, "add", NUMBERS),
        *pair(br.subtract, np.subtract, "subtract", NUMBERS),
        *pair(br.multiply, np.multiply, "multiply", NUMBERS),
        *pair(br.divide, np.true_divide, "divide", FLOATS),
        *pair(br.floor_divide, np.floor_divide, "floor_divide", FLOATS),
        *pair(br.remainder, np.remainder, "remainder", FLOATS),
        *pair(br.logical_and, np.logical_and, "logical_and", BOOLS)[:1],
        *pair(br.logical_or, np.logical_or, "logical_or", BOOLS)[:1],
        *pair(br.logical_xor, np.logical_xor, "logical_xor", BOOLS)[:1],
        *pair(br.bitwise_and, np.bitwise_and, "bitwise_and", INTEGERS + BOOLS),
        *pair(br.bitwise_or, np.bitwise_or, "bitwise_or", INTEGERS + BOOLS),
        *pair(br.bitwise_xor, np.bitwise_xor, "bitwise_xor", INTEGERS + BOOLS),
        *pair(br.maximum, np.maximum, "maximum", NUMBERS)[:1],
        *pair(br.minimum, np.minimum, "minimum", NUMBERS)[:1],
        Row("divide_integers", two(INTEGERS), br.divide,
            lambda x, y: np.true_divide(as_float(x), as_float(y))),
        Row("floor_divide_integers", two(INTEGERS), lambda x, y: x // nonzero(y),
            lambda x, y: np.floor_divide(x, not_zero(y))),
        Row("floor_divide_number", with_divisor, br.floor_divide, np.floor_divide),
        Row("remainder_integers", two(INTEGERS), lambda x, y: x % nonzero(y),
            lambda x, y: np.remainder(x, not_zero(y))),
        Row("remainder_number_integers", with_divisor, br.remainder, np.remainder),
        Row("trunc_divide", two(INTEGERS), lambda x, y: br.trunc_divide(x, nonzero(y)),
            lambda x, y: truncated_quotient(x, not_zero(y))),
        Row("pow_integers", two(INTEGERS), lambda x, y: x ** (y & 7), lambda x, y: x ** (y & 7)),
        Row("left_shift", two(INTEGERS), lambda x, y: x << y,
            lambda x, y: shifted(x, y, left=True)),
        Row("right_shift", two(INTEGERS), lambda x, y: x >> y,
            lambda x, y: shifted(x, y, left=False)),
        Row("abs", one(SIGNED), br.abs, np.absolute),
        Row("negative", one(SIGNED), br.negative, np.negative),
        # The sign of -0.0 is documented as -0.0 on Burn 0.21 servers and as 0.0 elsewhere; adding 0
        # makes both 0.0. tests/client/functions/test_elementwise.py tests that of native servers.
        Row("sign", one(NUMBERS), lambda x: br.sign(x) + 0,
            lambda x: np.where(x == 0, x.dtype.type(0), np.sign(x))),
        Row("square", one(NUMBERS), br.square, rounded_once(np.square)),
        Row("sqrt", one(FLOATS), br.sqrt, rounded_once(np.sqrt)),
        Row("reciprocal", one(FLOATS), br.reciprocal, rounded_once(np.reciprocal)),
        Row("floor", one(FLOATS), br.floor, np.floor),
        Row("ceil", one(FLOATS), br.ceil, np.ceil),
        Row("trunc", one(FLOATS), br.trunc, np.trunc),
        Row("round", one(FLOATS), br.round, np.rint),
        Row("invert", one(INTEGERS + BOOLS), br.bitwise_invert, np.invert),
        Row("logical_not", one(ANY), br.logical_not, np.logical_not),
        Row("isnan", one(FLOATS), br.isnan, np.isnan),
        Row("isinf", one(FLOATS), br.isinf, np.isinf),
        Row("isfinite", one(FLOATS), br.isfinite, np.isfinite),
        Row("clip", with_number(NUMBERS, finite=True), lambda x, n: br.clip(x, n, None),
            rounded_once(np.maximum)),
        Row("clip_both", with_number(NUMBERS, finite=True), lambda x, n: br.clip(x, n, n),
            rounded_once(lambda x, n: np.minimum(np.maximum(x, n), n))),
        Row("relu", one(FLOATS), F.relu, rounded_once(lambda x: np.maximum(x, 0))),
        Row("equal_any", two(ANY), br.equal, np.equal),
        Row("not_equal_any", two(ANY), br.not_equal, np.not_equal),
        *(row for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
          for row in comparison(name)),
        Row("astype", with_dtype, lambda x, dtype: x.astype(dtype), converted),
        # -- reductions
        along("max", NUMBERS, lambda x, axis: x.max(axis), nonempty=True),
        along("min", NUMBERS, lambda x, axis: x.min(axis), nonempty=True),
        along("max_abs", SIGNED, lambda x, axis: np.absolute(x).max(axis), nonempty=True),
        along("argmax", NUMBERS, lambda x, axis: x.argmax(axis), nonempty=True),
        along("argmin", NUMBERS, lambda x, axis: x.argmin(axis), nonempty=True),
        along("any", ANY, lambda x, axis: (x != 0).any(axis)),
        along("all", ANY, lambda x, axis: (x != 0).all(axis)),
        along("count_nonzero", ANY, lambda x, axis: (x != 0).sum(axis)),
        along("sort", NUMBERS, np.sort),
        along("argsort", NUMBERS, lambda x, axis: np.argsort(x, axis, kind="stable")),
        along("cummax", NUMBERS, lambda x, axis: np.maximum.accumulate(x, axis)),
        along("cummin", NUMBERS, lambda x, axis: np.minimum.accumulate(x, axis)),
        Row("sum_integers", with_axis(INTEGERS + BOOLS), lambda x, axis: x.sum(axis), widened_sum),
        Row("sum_all_integers", one(INTEGERS + BOOLS), br.sum, lambda x: widened_sum(x, None)),
        Row("cumulative_sum_integers", with_axis(INTEGERS),
            lambda x, axis: br.cumulative_sum(x, axis=axis),
            lambda x, axis: np.cumsum(x, axis, widened_sum(x[:0].reshape(-1), 0).dtype)),
        Row("topk", with_k, lambda x, k, axis: br.topk(x, k, axis=axis)[0],
            rounded_once(largest)),
        Row("diff", with_axis(NUMBERS, nonempty=True), lambda x, axis: br.diff(x, axis=axis),
            rounded_once(lambda x, axis: np.diff(x, axis=axis))),
        along("sum", FLOATS, in_float64(lambda x, axis: x.sum(axis)), tame=True, rounds=1),
        along("mean", FLOATS, in_float64(lambda x, axis: x.mean(axis)), tame=True, nonempty=True,
              rounds=1),
        along("std", FLOATS, in_float64(lambda x, axis: x.std(axis)), tame=True, nonempty=True,
              rounds=3),
        along("cumulative_sum", FLOATS, in_float64(lambda x, axis: x.cumsum(axis)), tame=True,
              rounds=1),
        Row("sum_all", tame(), br.sum, in_float64(np.sum), 1),
        # -- movement
        Row("reshape", with_shape, lambda x, shape: x.reshape(shape), np.reshape),
        Row("flatten", moved, br.flatten, np.ravel),
        Row("permute_dims", with_order, br.permute_dims, np.transpose),
        Row("expand_dims", lambda draw: ((draw.tensor(exact=False),), (draw.one_of([0, -1]),)),
            lambda x, axis: br.expand_dims(x, axis), np.expand_dims),
        Row("squeeze", moved, br.squeeze, np.squeeze),
        Row("flip", moved, br.flip, np.flip),
        Row("flip_axis", with_axis(exact=False), lambda x, axis: br.flip(x, axis=axis), np.flip),
        Row("broadcast_to", with_wider_shape, br.broadcast_to, np.broadcast_to),
        Row("slice", with_index, lambda x, index: x[index], lambda x, index: x[index]),
        Row("concat", with_neighbours, lambda *given: br.concat(given[:-1], axis=given[-1]),
            lambda *given: np.concatenate(given[:-1], axis=given[-1])),
        Row("stack", with_twins, lambda *given: br.stack(given[:-1], axis=given[-1]),
            lambda *given: np.stack(given[:-1], axis=given[-1])),
        Row("unfold", with_window, br.unfold, unfolded),
        Row("roll", with_shift, lambda x, shift, axis: br.roll(x, shift, axis=axis), np.roll),
        Row("tile", with_repetitions, br.tile, np.tile),
        Row("repeat", with_repeats, lambda x, n, axis: br.repeat(x, n, axis=axis), np.repeat),
        Row("pad", with_borders, lambda x, borders, n: br.functional.pad(x, borders, value=n),
            padded),
        Row("tril", with_diagonal, lambda x, k: br.tril(x, k=k), np.tril),
        Row("triu", with_diagonal, lambda x, k: br.triu(x, k=k), np.triu),
        Row("take", with_positions, lambda x, at, axis: br.take(x, like(x, at), axis=axis),
            lambda x, at, axis: np.take(x, at, axis)),
        Row("take_along_axis", with_indices_along,
            lambda x, at, axis: br.take_along_axis(x, like(x, at), axis=axis),
            np.take_along_axis),
        Row("scatter_add", with_updates,
            lambda x, at, values, axis: br.scatter(
                x, axis, like(x, at), like(x, values), update="add"),
            added_along),
        # -- choice and replacement
        Row("mask_fill", with_mask, br.mask_fill,
            lambda x, mask, n: np.where(mask, converted(np.asarray(n), x.dtype), x)),
        Row("where_number", with_mask, lambda x, mask, n: br.where(mask, x, n),
            lambda x, mask, n: np.where(mask, x, converted(np.asarray(n), x.dtype))),
        Row("where", with_condition, br.where, np.where),
        Row("set_number", with_index_and_number, lambda x, index, n: x.set(index, n), replaced),
        Row("set", with_index_and_value, lambda x, value, index: x.set(index, value),
            lambda x, value, index: replaced(x, index, value)),
        # -- products and functions
        Row("matmul_integers", with_matrix(INTEGERS), lambda x, y: x @ like(x, y), np.matmul),
        Row("matmul", with_matrix(FLOATS), lambda x, y: x @ like(x, y), in_float64(np.matmul), 1),
        approximate(br.exp, lambda x: np.exp(np.minimum(x, 900)), "exp"),
        approximate(lambda x: br.log(br.abs(x) + 1), lambda x: np.log(np.abs(x) + 1), "log", 3),
        approximate(br.sin, np.sin, "sin"),
        approximate(br.cos, np.cos, "cos"),
        approximate(br.tanh, np.tanh, "tanh"),
        approximate(br.atan, np.arctan, "atan"),
        approximate(br.erf, erf, "erf"),
        approximate(lambda x: br.exp2(br.tanh(x)), lambda x: np.exp2(np.tanh(x)), "exp2", 3),
        # -- networks
        approximate(F.sigmoid, lambda x: 1 / (1 + np.exp(-x)), "sigmoid", 4),
        approximate(F.silu, lambda x: x / (1 + np.exp(-x)), "silu", 6),
        approximate(F.gelu, lambda x: x * (1 + erf(x / math.sqrt(2))) / 2, "gelu", 6),
        approximate(F.softplus, lambda x: np.logaddexp(x, 0), "softplus", 6),
        Row("softmax", with_axis(FLOATS, nonempty=True, tame=True), F.softmax, in_float64(softmax),
            8),
        Row("layer_norm", spread_rows,
            lambda x: F.layer_norm(x, x.shape[-1:]), in_float64(layer_norm), 64),
        Row("linear", with_matrix(FLOATS), lambda x, w: F.linear(x, like(x, w.T.copy())),
            in_float64(np.matmul), 1),
        Row("conv2d", with_filters,
            lambda x, w, stride, padding, dilation: F.conv2d(
                x, like(x, w), stride=stride, padding=padding, dilation=dilation),
            in_float64(convolved), 1),
        Row("max_pool2d", with_pooling,
            lambda x, size, stride, padding: F.max_pool2d(x, size, stride, padding),
            lambda x, *sizes: pooled(x.astype("f8"), "max", *sizes).astype(x.dtype)),
        Row("avg_pool2d", with_pooling,
            lambda x, size, stride, padding: F.avg_pool2d(x, size, stride, padding),
            in_float64(lambda x, *sizes: pooled(x, "mean", *sizes)), 1),
        Row("interpolate", with_size,
            lambda x, height, width: F.interpolate(x, size=(height, width)), interpolated),
        Row("attention", with_keys,
            lambda x, k, v: F.scaled_dot_product_attention(x, like(x, k), like(x, v)),
            in_float64(attention), 4),
        Row("embedding", with_rows, lambda table, at: F.embedding(like(table, at), table),
            lambda table, at: table[at]),
        Row("mse_loss", lambda draw: ((draw.tame(),), (draw.integer(-2, 2),)),
            lambda x, n: F.mse_loss(x, br.full_like(x, float(n))),
            mean_squared_error, 6),
        # -- quantized tensors
        Row("quantize", with_block,
            lambda x, block: x.quantize(br.quant_scheme("Q8S", block=block)).dequantize(),
            quantized, 1),
        Row("move_quantized", with_block_and_order, moved_quantized, moved_numbers, 1),
    )
}  # fmt: skip
