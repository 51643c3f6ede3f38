"""Random calls of every row of the table, to compare estimates with measured costs.

``draw(row, random, elements)`` makes a call with about ``elements`` elements in its largest tensor.
Shapes are narrow or wide, arrays contiguous or not. Values include those for which a function takes
longest: huge quotients, subnormal numbers, prime lengths, windows larger than the image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import numpy as np

from burn_remote_protocol.dtypes import (
    BF16,
    BOOL,
    C64,
    C128,
    F16,
    F32,
    F64,
    I8,
    I32,
    I64,
    U8,
    U32,
    DType,
    QuantScheme,
)
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.operations.wire_values import Scalar
from burn_remote_protocol.tensors import Slice, TensorSpec
from burn_remote_server.backends.array.core.array_dtypes import array_dtype
from support.kernels import signature, spec_of

__all__ = ["DRAWN", "Workload", "draw"]

Array = np.ndarray[Any, Any]

FLOATS: Final = (F32, F32, F64, F16, BF16)
INTEGERS: Final = (I64, I32, I8, U8, U32)
SCHEME: Final = QuantScheme("Q8S", "F32", "Native", (32,), "Symmetric")


@dataclass(frozen=True)
class Workload:
    """One call: the signature and the arrays that it takes, absent inputs left out."""

    signature: Signature
    arrays: tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """The arguments of ``support.kernels.signature``, with arrays in place of specs."""

    tensors: tuple[Any, ...]
    out: tuple[TensorSpec, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)


class Source:
    """Random shapes and arrays of about ``elements`` elements."""

    def __init__(self, random: Random, elements: int) -> None:
        self.random = random
        self.elements = elements
        self.numbers = np.random.default_rng(random.getrandbits(32))

    def one_of(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def whole(self, low: int, high: int) -> int:
        """Return an integer, as often small as large."""
        return max(low, min(high, round(math.exp(self.random.uniform(0, math.log(high + 1))))))

    def split(self, parts: int, elements: int | None = None) -> list[int]:
        """Split a number into nearly equal or very unequal factors."""
        left = max(1, self.elements if elements is None else elements)
        sizes = []
        for _ in range(parts - 1):
            sizes.append(self.whole(1, left))
            left = max(1, left // sizes[-1])
        sizes.append(left)
        self.random.shuffle(sizes)
        return sizes

    def shape(self, least: int = 1) -> tuple[int, ...]:
        if self.random.random() < 0.1:
            return (2,) * max(least, min(14, self.elements.bit_length() - 1))
        return tuple(self.split(self.random.randint(least, 4)))

    def floats(self, shape: tuple[int, ...], dtype: DType | None = None) -> Array:
        scale = self.one_of(1.0, 1.0, 1e-40, 1e30)
        drawn = self.numbers.standard_normal(shape) * scale
        with np.errstate(all="ignore"):
            return self.laid_out(drawn.astype(array_dtype(dtype or self.one_of(*FLOATS))))

    def complexes(self, shape: tuple[int, ...]) -> Array:
        parts = [self.numbers.standard_normal(shape) for _ in range(2)]
        dtype = array_dtype(self.one_of(C64, C128))
        return self.laid_out((parts[0] + 1j * parts[1]).astype(dtype))

    def below(self, limit: int, shape: tuple[int, ...], dtype: DType = I64) -> Array:
        return self.numbers.integers(0, max(1, limit), shape).astype(array_dtype(dtype))

    def integers(self, shape: tuple[int, ...], dtype: DType | None = None) -> Array:
        chosen = array_dtype(dtype or self.one_of(*INTEGERS))
        drawn = self.numbers.integers(1, np.iinfo(chosen).max, shape, dtype=np.int64)
        return self.laid_out(drawn.astype(chosen))

    def bools(self, shape: tuple[int, ...]) -> Array:
        return self.laid_out(self.numbers.random(shape) < 0.5)

    def laid_out(self, array: Array) -> Array:
        """Return the array as it is, or with the strides of a transposed view."""
        if array.ndim > 1 and self.random.random() < 0.3:
            return np.ascontiguousarray(array.T).T
        return array

    def any(self, shape: tuple[int, ...], categories: str = "fib") -> Array:
        make = {"f": self.floats, "i": self.integers, "b": self.bools}
        return make[self.random.choice(categories)](shape)

    def values(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return small numbers of a dtype of arrays."""
        return self.laid_out(self.numbers.integers(0, 2, shape).astype(dtype))

    def like(self, array: Array) -> Array:
        """Return other elements of the same shape and dtype, or of one that broadcasts to it."""
        shape = array.shape
        if self.random.random() < 0.2:
            shape = tuple(1 if self.random.random() < 0.5 else size for size in shape)
        if array.dtype.kind == "b":
            return self.bools(shape)
        dtype = spec_of(array).dtype
        return (
            self.integers(shape, dtype) if array.dtype.kind in "iu" else self.floats(shape, dtype)
        )


Make = Callable[[Source], Case]


def _unary(kinds: str, out: Callable[[Source], Any] | None = None, **parameters: Any) -> Make:
    def make(source: Source) -> Case:
        tensor = source.any(source.shape(), kinds)
        wanted = () if out is None else (TensorSpec(tensor.shape, out(source)),)
        return Case((tensor,), wanted, parameters)

    return make


def _binary(kinds: str) -> Make:
    def make(source: Source) -> Case:
        lhs = source.any(source.shape(), kinds)
        return Case((lhs, source.like(lhs)))

    return make


def _scalar(kinds: str, *values: float | int) -> Make:
    def make(source: Source) -> Case:
        lhs = source.any(source.shape(), kinds)
        if lhs.dtype.kind in "iu":
            values_of_kind = [number for number in values if number >= 1]
        else:
            values_of_kind = [*values]
        number = source.one_of(*values_of_kind)
        return Case((lhs,), parameters={"rhs": int(number) if lhs.dtype.kind in "iu" else number})

    return make


def _cast(source: Source) -> Case:
    kind = source.one_of("f", "i")
    return _unary(kind, _any_float if kind == "f" else _any_integer)(source)


def _powi(source: Source) -> Case:
    lhs = source.any(source.shape(), "fi")
    return Case((lhs, source.below(30, lhs.shape, source.one_of(I64, I32))))


def _created(kinds: tuple[DType, ...], **parameters: Any) -> Make:
    def make(source: Source) -> Case:
        spec = TensorSpec(source.shape(), source.one_of(*kinds))
        return Case((), (spec,), parameters)

    return make


def _random(kinds: tuple[DType, ...]) -> Make:
    def make(source: Source) -> Case:
        distribution = source.one_of(
            ("Default",), ("Bernoulli", 0.3), ("Uniform", 0.0, 50.0), ("Normal", 1.0, 2.0)
        )
        return Case(
            (), (TensorSpec(source.shape(), source.one_of(*kinds)),), {"distribution": distribution}
        )

    return make


def _matrices(
    *,
    square: bool = False,
    definite: bool = False,
    dtypes: tuple[DType, ...] = FLOATS,
    **parameters: Any,
) -> Make:
    def make(source: Source) -> Case:
        count, rows, columns = source.split(3)
        if square or definite:
            rows = columns = max(1, math.isqrt(rows * columns))
        _bounded(source, count * rows * columns * min(rows, columns))
        drawn = source.numbers.standard_normal((count, rows, columns))
        if definite:
            drawn = drawn @ drawn.swapaxes(1, 2) + np.eye(rows)
        tensor = source.laid_out(drawn.astype(array_dtype(source.one_of(*dtypes))))
        chosen = {name: source.one_of(*values) for name, values in parameters.items()}
        if not definite and count * max(rows, columns) ** 2 > 100 * source.elements:
            chosen = dict.fromkeys(chosen, False)  # the larger factor would be huge
        return Case((tensor,), (), chosen)

    return make


def _equations(source: Source) -> Case:
    (lhs,) = _matrices(definite=True)(source).tensors
    count, side, _ = lhs.shape
    rhs = source.floats((source.one_of(1, count), side, source.whole(1, 2 * side)))
    return Case((lhs, rhs.astype(lhs.dtype)))


def _nonzero(source: Source) -> Case:
    tensor = source.any(source.shape())
    return Case((tensor,), (), {"count": int(np.count_nonzero(tensor))})


def _vector(source: Source) -> Any:
    return source.any((source.elements,), "fib")


def _unique(source: Source) -> Case:
    tensor = _vector(source)
    order = np.argsort(tensor, kind="stable")
    count = int(np.unique(tensor, equal_nan=False).size)
    return Case((tensor, order), (), {"count": count})


def _search_sorted(source: Source) -> Case:
    ordered = np.sort(source.any((source.whole(1, source.elements),), "fi"))
    return Case((ordered, source.like(ordered)), (), {"right": source.one_of(False, True)})


def _along(kinds: str, name: str = "axis", **more: Any) -> Make:
    def make(source: Source) -> Case:
        tensor = source.any(source.shape(), kinds)
        axis = source.random.randrange(tensor.ndim)
        return Case((tensor,), parameters={name: axis, **more})

    return make


def _reduced(kinds: str) -> Make:
    return _along(kinds, accumulator_len=0)


def _top(source: Source) -> Case:
    tensor = source.any(source.shape(), "fi")
    axis = source.random.randrange(tensor.ndim)
    count = source.whole(1, tensor.shape[axis])
    return Case((tensor,), parameters={"axis": axis, "accumulator_len": count})


def _alike(source: Source) -> Case:
    lhs = source.floats(source.shape())
    return Case((lhs, source.floats(lhs.shape, spec_of(lhs).dtype)))


def _top_with_indices(source: Source) -> Case:
    tensor = source.any(source.shape(), "fi")
    dim = source.random.randrange(tensor.ndim)
    return Case((tensor,), parameters={"dim": dim, "k": source.whole(1, tensor.shape[dim])})


def _summed(source: Source) -> Case:
    tensor = source.any(source.shape(), "fi")
    return Case((tensor,), parameters={"axes": tuple(range(0, tensor.ndim, 2))})


def _padded(source: Source) -> Case:
    tensor = source.any(source.shape(), "fi")
    mode = source.one_of(("Constant", Scalar.of(2)), ("Edge",))
    padding = tuple((1, 2) if size else (0, 0) for size in tensor.shape)
    return Case((tensor,), parameters={"padding": padding, "mode": mode})


def _layer_norm(source: Source) -> Case:
    x = source.floats(source.shape())
    weights = [source.floats(x.shape[-1:], spec_of(x).dtype) for _ in range(2)]
    return Case((x, *weights), parameters={"epsilon": 1e-5})


def _batch_norm(source: Source) -> Case:
    x = source.floats(tuple(source.split(3)))
    given = [source.floats(x.shape[1:2], spec_of(x).dtype) for _ in range(4)]
    return Case((x, *given), parameters={"epsilon": 1e-5})


def _unfold4d(source: Source) -> Case:
    kernel, options = _geometry(source, 2)
    sizes = _image(source, 2, kernel, options)
    taps = math.prod(kernel)
    planes = max(1, source.elements // math.prod(sizes))
    _bounded(source, planes * math.prod(sizes) * taps)
    return Case(
        (source.floats((1, planes, *sizes)),), (), {"kernel_size": tuple(kernel), **options}
    )


def _permute(source: Source) -> Case:
    tensor = source.any(source.shape())
    axes = [*range(tensor.ndim)]
    source.random.shuffle(axes)
    return Case((tensor,), parameters={"axes": tuple(axes)})


def _swap(source: Source) -> Case:
    tensor = source.any(source.shape())
    dims = {name: source.random.randrange(tensor.ndim) for name in ("dim1", "dim2")}
    return Case((tensor,), parameters=dims)


def _reshape(source: Source) -> Case:
    tensor = source.any(source.shape())
    return Case((tensor,), (TensorSpec((tensor.size,), spec_of(tensor).dtype),))


def _expand(source: Source) -> Case:
    tensor = source.any((1, *source.shape()))
    return Case((tensor,), (TensorSpec((3, *tensor.shape[1:]), spec_of(tensor).dtype),))


def _unfold(source: Source) -> Case:
    size = source.whole(1, 64)
    tensor = source.any((source.whole(1, 8), size + source.elements // size))
    return Case((tensor,), parameters={"dim": 1, "size": size, "step": source.whole(1, size)})


def _slices(source: Source, shape: tuple[int, ...]) -> tuple[Slice, ...]:
    steps = (1, 2, -1, 7)
    return tuple(
        Slice(source.whole(0, size // 2 + 1), None, source.one_of(*steps)) for size in shape
    )


def _slice(source: Source) -> Case:
    tensor = source.any(source.shape())
    return Case((tensor,), parameters={"ranges": _slices(source, tensor.shape)})


def _slice_assign(source: Source) -> Case:
    tensor = source.any(source.shape())
    value = source.values(tensor.shape, tensor.dtype)
    return Case((tensor, value), parameters={"ranges": (Slice(0, None, 1),) * tensor.ndim})


def _select(source: Source) -> Case:
    shape = source.shape()
    tensor = source.any(shape)
    dim = source.random.randrange(len(shape))
    count = source.one_of(1, max(1, source.elements * shape[dim] // max(1, tensor.size)))
    indices = source.below(shape[dim], (count,), source.one_of(I64, I32))
    return Case((tensor, indices), parameters={"dim": dim})


def _select_assign(source: Source) -> Case:
    case = _select(source)
    tensor, indices = case.tensors
    dim = case.parameters["dim"]
    shape = (*tensor.shape[:dim], len(indices), *tensor.shape[dim + 1 :])
    return Case(
        (tensor, indices, source.values(shape, tensor.dtype)),
        parameters={
            **case.parameters,
            "update": source.one_of("Assign", "Add", "Mul", "Min", "Max"),
        },
    )


def _gather(source: Source) -> Case:
    tensor = source.any(source.shape())
    dim = source.random.randrange(tensor.ndim)
    indices = source.below(tensor.shape[dim], tensor.shape, source.one_of(I64, I32))
    return Case((tensor, indices), parameters={"dim": dim})


def _scatter(source: Source) -> Case:
    case = _gather(source)
    tensor, indices = case.tensors
    value = source.values(tensor.shape, tensor.dtype)
    update = source.one_of("Assign", "Add", "Mul", "Min", "Max")
    return Case((tensor, indices, value), parameters={**case.parameters, "update": update})


def _gather_nd(source: Source) -> Case:
    data = source.any(source.shape())
    depth = source.random.randint(1, data.ndim)
    part = math.prod(data.shape[depth:])
    rows = max(1, source.elements // max(1, part, depth))
    columns = [source.below(size, (rows,)) for size in data.shape[:depth]]
    return Case((data, np.stack(columns, axis=-1)))


def _scatter_nd(source: Source) -> Case:
    data, indices = _gather_nd(source).tensors
    shape = (*indices.shape[:-1], *data.shape[indices.shape[-1] :])
    value = source.values(shape, data.dtype)
    update = source.one_of("Assign", "Add", "Mul", "Min", "Max")
    return Case((data, indices, value), parameters={"reduction": update})


def _mask_where(source: Source) -> Case:
    tensor = source.any(source.shape())
    return Case((tensor, source.bools(tensor.shape), source.like(tensor)))


def _mask_fill(source: Source) -> Case:
    tensor = source.any(source.shape(), "fi")
    return Case((tensor, source.bools(tensor.shape)), parameters={"value": 1})


def _repeat(source: Source) -> Case:
    times = source.whole(1, source.elements)
    tensor = source.any(tuple(source.split(source.random.randint(1, 3), source.elements // times)))
    dim = source.random.randrange(tensor.ndim)
    return Case((tensor,), parameters={"dim": dim, "times": times})


def _cat(source: Source) -> Case:
    first = source.any(tuple(source.split(2, max(1, source.elements // 8))), "fi")
    count = source.one_of(1, 8, 500)
    return Case(([first] * count,), parameters={"dim": source.random.randrange(2)})


def _matmul(kinds: str) -> Make:
    def make(source: Source) -> Case:
        batch, rows, inner, columns = source.split(4)
        dtype = source.one_of(*(FLOATS if kinds == "f" else INTEGERS))
        new = source.floats if kinds == "f" else source.integers
        return Case((new((batch, rows, inner), dtype), new((batch, inner, columns), dtype)))

    return make


def _cross(source: Source) -> Case:
    lhs = source.floats((*source.shape(), 3))
    dtype = spec_of(lhs).dtype
    return Case((lhs, source.floats(lhs.shape, dtype)), parameters={"dim": lhs.ndim - 1})


def _quantize(source: Source) -> Case:
    tensor = source.floats((max(1, source.elements // 32), 32), F32)
    scales = np.full(tensor.size // 32, 0.1, np.float32)
    return Case((tensor, scales), parameters={"scheme": SCHEME})


def _dequantize(source: Source) -> Case:
    shape = (max(1, source.elements // 32), 32)
    spec = TensorSpec(shape, DType.quantized(SCHEME))
    return Case((Held(source.numbers.integers(0, 100, spec.nbytes).astype(np.uint8), spec),))


@dataclass(frozen=True)
class Held:
    """An array that holds a tensor of another shape or dtype: a quantized one."""

    array: Array
    spec: TensorSpec


def _grid_sample(source: Source) -> Case:
    batch, channels, height, width = source.split(4)
    dtype = source.one_of(*FLOATS)
    points = max(1, source.elements // max(1, batch * channels))
    grid = source.floats((batch, 1, points, 2), dtype)
    parameters = {
        "mode": source.one_of("Nearest", "Bilinear"),
        "padding_mode": source.one_of("Zeros", "Border", "Reflection"),
        "align_corners": source.one_of(True, False),
    }
    return Case((source.floats((batch, channels, height, width), dtype), grid), (), parameters)


def _embedding(source: Source) -> Case:
    rows, dim, count = source.split(3)
    return Case((source.floats((rows, dim)), source.below(rows, (1, count))))


def _embedding_backward(source: Source) -> Case:
    weights, indices = _embedding(source).tensors
    dtype = spec_of(weights).dtype
    return Case((weights, source.floats((*indices.shape, weights.shape[1]), dtype), indices))


def _linear(source: Source) -> Case:
    rows, inner, columns = source.split(3)
    dtype = source.one_of(*FLOATS)
    x, weight = source.floats((rows, inner), dtype), source.floats((inner, columns), dtype)
    return Case((x, weight, source.one_of(None, source.floats((columns,), dtype))))


def _linear_x_backward(source: Source) -> Case:
    x, weight, _ = _linear(source).tensors
    return Case((weight, source.floats((len(x), weight.shape[1]), spec_of(x).dtype)))


def _linear_weight_backward(source: Source) -> Case:
    x, weight, _ = _linear(source).tensors
    return Case((x, source.floats((len(x), weight.shape[1]), spec_of(x).dtype)))


def _attention(source: Source) -> Case:
    batch, heads, queries, dim = source.split(4)
    keys = source.whole(1, 300)
    dtype = source.one_of(*FLOATS)
    query = source.floats((batch, heads, queries, dim), dtype)
    key = source.floats((batch, heads, keys, dim), dtype)
    value = source.floats((batch, heads, keys, source.whole(1, 16)), dtype)
    mask = source.one_of(None, source.bools((1, 1, queries, keys)))
    options = {
        "scale": None,
        "softcap": source.one_of(None, Scalar.of(30.0)),
        "is_causal": source.one_of(True, False),
    }
    return Case((query, key, value, mask, None), (), options)


def _ctc(source: Source) -> Case:
    steps, batch, length = source.split(3)
    classes = source.whole(2, 20)
    parameters = {"blank": 0}
    tensors = (
        source.floats((steps, batch, classes), source.one_of(F32, F64, F16)),
        source.below(classes, (batch, length)),
        np.full(batch, steps),
        np.full(batch, length),
    )
    return Case(tensors, (), parameters)


def _ctc_backward(source: Source) -> Case:
    case = _ctc(source)
    log_probs = case.tensors[0]
    grad = source.floats((log_probs.shape[1],), spec_of(log_probs).dtype)
    return Case((*case.tensors, grad), (), case.parameters)


def _geometry(source: Source, axes: int) -> tuple[list[int], dict[str, Any]]:
    """Return kernel sizes, and strides, paddings and dilations."""
    kernel = [
        source.whole(1, max(2, round(source.elements ** (1 / axes) / 2))) for _ in range(axes)
    ]
    dilation = [source.one_of(1, 1, 2, 3) for _ in range(axes)]
    reach = [gap * (taps - 1) + 1 for gap, taps in zip(dilation, kernel, strict=True)]
    options = {
        "stride": tuple(source.one_of(1, 1, 2, 5) for _ in range(axes)),
        "padding": tuple(source.one_of(0, length // 2, length) for length in reach),
        "dilation": tuple(dilation),
    }
    return kernel, options


def _image(source: Source, axes: int, kernel: list[int], options: dict[str, Any]) -> list[int]:
    """Return sizes of an image into which the kernel fits."""
    sizes = source.split(axes)
    least = [
        gap * (taps - 1) + 1 - 2 * pad
        for gap, taps, pad in zip(options["dilation"], kernel, options["padding"], strict=True)
    ]
    return [max(1, *pair) for pair in zip(sizes, least, strict=True)]


def _channels(source: Source, size: int) -> tuple[int, int, int]:
    """Return groups, channels of an input group, filters of a group."""
    left = max(1, source.elements // max(1, size))
    groups = source.one_of(1, 1, source.whole(1, min(left, 2000)))
    return groups, source.whole(1, max(1, min(left // groups, 64))), source.whole(1, 4)


def _convolution(axes: int, part: str = "") -> Make:
    def make(source: Source) -> Case:
        kernel, options = _geometry(source, axes)
        sizes = _image(source, axes, kernel, options)
        groups, inner, filters = _channels(source, math.prod(sizes))
        dtype = source.one_of(*FLOATS)
        batch = source.whole(1, 4)
        x = source.floats((batch, groups * inner, *sizes), dtype)
        weight = source.floats((groups * filters, inner, *kernel), dtype)
        parameters = {**options, "groups": groups}
        (out,) = signature(
            f"Module.Conv{axes}d", spec_of(x), spec_of(weight), None, **parameters
        ).outputs
        _bounded(source, math.prod(out.shape) * inner * math.prod(kernel))
        grad = source.floats(out.shape, dtype) if part else None
        if part == "bias":
            bias = source.floats((groups * filters,), dtype)
            return Case((x, bias, grad))
        return Case((x, weight, grad), (), parameters)

    return make


class TooLarge(Exception):
    """A drawn call would take too long to be measured."""


def _bounded(source: Source, work: int) -> None:
    if work > 3_000 * source.elements:
        raise TooLarge


def _transposed(axes: int, part: str = "") -> Make:
    def make(source: Source) -> Case:
        kernel, options = _geometry(source, axes)
        options["padding"] = (0,) * axes
        sizes = source.split(axes, max(1, source.elements // math.prod(kernel)))
        groups, inner, filters = _channels(source, math.prod(sizes) * math.prod(kernel))
        dtype = source.one_of(*FLOATS)
        x = source.floats((source.whole(1, 4), groups * inner, *sizes), dtype)
        weight = source.floats((groups * inner, filters, *kernel), dtype)
        _bounded(source, x.size * filters * math.prod(kernel))
        parameters = {**options, "padding_out": (0,) * axes, "groups": groups}
        if not part:
            return Case((x, weight, None), (), parameters)
        forward = signature(
            f"Module.ConvTranspose{axes}d", spec_of(x), spec_of(weight), None, **parameters
        )
        grad = source.floats(forward.outputs[0].shape, dtype)
        if part == "bias":
            return Case((x, source.floats(grad.shape[1:2], dtype), grad))
        return Case((x, weight, grad), (), parameters)

    return make


def _deformable(source: Source, *, backward: bool = False) -> Case:
    kernel, options = _geometry(source, 2)
    sizes = _image(source, 2, kernel, options)
    inner, filters, groups = source.whole(1, 4), source.whole(1, 4), source.one_of(1, 1, 2, 8)
    dtype = source.one_of(F32, F64, F16)
    x = source.floats((source.whole(1, 3), groups * inner, *sizes), dtype)
    weight = source.floats((filters, groups * inner, *kernel), dtype)
    out = (
        signature("Module.Conv2d", spec_of(x), spec_of(weight), None, **options, groups=1)
        .outputs[0]
        .shape
    )
    _bounded(source, 10 * math.prod(out) * groups * inner * math.prod(kernel))
    points = groups * math.prod(kernel)
    offset = source.floats((len(x), 2 * points, *out[2:]), dtype)
    mask: Any = source.floats((len(x), points, *out[2:]), dtype)
    bias: Any = source.floats((filters,), dtype)
    if not backward and source.one_of(True, False):
        mask = bias = None
    parameters = {**options, "weight_groups": 1, "offset_groups": groups}
    grads = (source.floats(out, dtype),) if backward else ()
    return Case((x, offset, weight, mask, bias, *grads), (), parameters)


def _pooling(axes: int, kind: str, part: str = "") -> Make:
    def make(source: Source) -> Case:
        kernel, options = _geometry(source, axes)
        if kind == "Avg":
            options["dilation"] = (1,) * axes
        sizes = _image(source, axes, kernel, options)
        planes = max(1, source.elements // math.prod(sizes))
        x = source.floats((1, planes, *sizes), source.one_of(*FLOATS))
        parameters: dict[str, Any] = {"kernel_size": tuple(kernel), **options, "ceil_mode": False}
        if kind == "Avg":
            parameters["count_include_pad"] = source.one_of(True, False)
            del parameters["dilation"]
        if axes == 1:
            parameters = {
                key: value[0] if type(value) is tuple else value
                for key, value in parameters.items()
            }
        (out,) = signature(f"Module.{kind}Pool{axes}d", spec_of(x), **parameters).outputs
        _bounded(source, math.prod(out.shape) * sum(kernel))
        if not part:
            return Case((x,), (), parameters)
        grad = source.floats(out.shape, spec_of(x).dtype)
        if part == "indices":
            return Case((x,), (out, TensorSpec(out.shape, I64)), parameters)
        if part == "indices backward":
            places = source.below(math.prod(sizes), out.shape)
            return Case((x, grad, places), (), parameters)
        return Case((x, grad), (), parameters)

    return make


def _adaptive(axes: int, *, backward: bool = False) -> Make:
    def make(source: Source) -> Case:
        planes, *sizes = source.split(axes + 1)
        outputs = source.split(axes, max(1, source.elements // planes))
        x = source.floats((1, planes, *sizes))
        if backward:
            return Case((x, source.floats((1, planes, *outputs), spec_of(x).dtype)))
        return Case((x,), (), {"output_size": outputs[0] if axes == 1 else tuple(outputs)})

    return make


def _interpolate(source: Source, *, backward: bool = False) -> Case:
    planes, *sizes = source.split(3)
    outputs = source.split(2, max(1, source.elements // planes))
    x = source.floats((1, planes, *sizes))
    parameters = {
        "output_size": tuple(outputs),
        "mode": source.one_of("Nearest", "Bilinear", "Bicubic", "Lanczos3"),
        "align_corners": source.one_of(True, False),
    }
    if backward:
        return Case((x, source.floats((1, planes, *outputs), spec_of(x).dtype)), (), parameters)
    return Case((x,), (), parameters)


PRIMES: Final = (2, 97, 1_009, 10_007, 44_987, 100_003)


def _rfft(source: Source) -> Case:
    length = max(prime for prime in PRIMES if prime <= max(2, source.elements))
    shape = source.one_of((length,), (max(1, source.elements // 97), 97), source.shape())
    signal = source.floats(tuple(shape))
    dim = source.random.randrange(signal.ndim)
    return Case((signal,), (), {"dim": dim, "n": source.one_of(None, signal.shape[dim] + 1)})


def _irfft(source: Source) -> Case:
    real = source.floats(source.shape())
    dim = source.random.randrange(real.ndim)
    imaginary = source.floats(real.shape, spec_of(real).dtype)
    return Case(
        (real, imaginary), (), {"dim": dim, "n": source.one_of(2 * real.shape[dim] + 1, 97)}
    )


def _any_float(source: Source) -> Any:
    return source.one_of(*FLOATS)


def _any_integer(source: Source) -> Any:
    return source.one_of(*INTEGERS)


SCALARS: Final = (2.0, 0.37, 1e-300, 3)
POWERS: Final = (2, 3, 7, 0.5, -1)

# Rows that compute nothing, or for which no server has a kernel.
_WITHOUT: Final = frozenset({"Init", "Drop", "Custom", "Distributed.AllReduce"})

_FLOAT_FUNCTIONS: Final = (
    "Exp", "Log", "Log1p", "Erf", "Sqrt", "Cos", "Cosh", "Sin", "Sinh", "Tan", "Tanh", "ArcCos",
    "ArcCosh", "ArcSin", "ArcSinh", "ArcTan", "ArcTanh", "Round", "Floor", "Ceil", "Trunc", "Recip",
    "IsNan", "IsInf",
)  # fmt: skip
_BITWISE: Final = (
    "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseLeftShift", "BitwiseRightShift",
)  # fmt: skip
_COMPARISONS: Final = ("Greater", "GreaterEqual", "Lower", "LowerEqual")


def _any_complex(source: Source) -> DType:
    chosen: DType = source.one_of(C64, C128)
    return chosen


def _complex(source: Source) -> Case:
    return Case((source.complexes(source.shape()),))


def _parts(source: Source) -> Case:
    real = source.floats(source.shape(), source.one_of(F32, F64))
    return Case((real, source.like(real)))


def _transform(kind: str) -> Make:
    def make(source: Source) -> Case:
        shape = source.shape()
        tensor = (
            source.complexes(shape)
            if kind == "c"
            else source.floats(shape, source.one_of(F32, F64))
        )
        axes = source.random.sample(range(len(shape)), source.random.randint(1, min(3, len(shape))))
        # As many samples as there are, fewer, or a few more, which makes prime lengths.
        sizes = [max(1, shape[axis] + source.one_of(0, 0, -1, 1, 5)) for axis in axes]
        norm = source.one_of("Backward", "Ortho", "Forward")
        return Case((tensor,), (), {"axes": tuple(axes), "sizes": tuple(sizes), "norm": norm})

    return make


DRAWN: Final[Mapping[str, Make]] = {
    **{f"Float.{name}": _unary("f") for name in _FLOAT_FUNCTIONS},
    **{f"Numeric.{name}": _binary("fi") for name in ("Add", "Sub", "Mul", "Div", "Rem")},
    **{
        f"Numeric.{name}Scalar": _scalar("fi", *SCALARS[:2], 3)
        for name in ("Add", "Sub", "Mul", "Div")
    },
    "Numeric.RemScalar": _scalar("f", *SCALARS),
    **{f"Numeric.{name}": _binary("fi") for name in _COMPARISONS},
    **{f"Numeric.{name}Elem": _scalar("fi", 0.1, 3) for name in _COMPARISONS},
    **{
        f"Int.{name}": _binary("i")
        for name in _BITWISE
    },
    **{
        f"Int.{name}Scalar": _scalar("i", 1, 3)
        for name in _BITWISE
    },
    **{
        f"Numeric.{name}": _unary("fi")
        for name in ("Abs", "Mean", "Sum", "Prod", "Max", "Min", "MaxAbs")
    },
    **{
        f"Numeric.{name}Dim": _reduced("fi")
        for name in ("Mean", "Sum", "Prod", "Max", "Min", "MaxAbs")
    },
    **{f"Numeric.Cum{name}": _along("fi") for name in ("Sum", "Prod", "Min", "Max")},
    **{f"Base.{name}": _created((*FLOATS, *INTEGERS, BOOL)) for name in ("Empty", "Ones", "Zeros")},
    **{f"Numeric.{name}DimWithIndices": _along("fi", "dim") for name in ("Max", "Min")},
    "Numeric.ArgMax": _reduced("fi"), "Numeric.ArgMin": _reduced("fi"),
    "Numeric.ArgTopK": _top, "Numeric.TopK": _top,
    "Numeric.Full": _created((*FLOATS, *INTEGERS), value=3),
    "Numeric.Clamp": _unary("f", min=-1.0, max=1.0),
    "Numeric.IntRandom": _random(INTEGERS), "Float.Random": _random(FLOATS),
    "Numeric.Powi": _powi, "Numeric.PowiScalar": _scalar("fi", *POWERS),
    "Float.Powf": _binary("f"), "Float.PowfScalar": _scalar("f", *POWERS),
    "Float.ArcTan2": _binary("f"),
    **{
        f"LinearAlgebra.{name}": _matrices(definite=True)
        for name in ("Det", "Eigh", "Eigvalsh", "Inv", "Slogdet")
    },
    **{
        f"LinearAlgebra.{name}": _matrices(definite=True, dtypes=(F32, F64))
        for name in ("Eig", "Eigvals")
    },
    "LinearAlgebra.Cholesky": _matrices(definite=True, upper=(False, True)),
    "LinearAlgebra.Qr": _matrices(complete=(False, True)),
    "LinearAlgebra.Solve": _equations,
    "LinearAlgebra.Svd": _matrices(full_matrices=(False, True)),
    "LinearAlgebra.Svdvals": _matrices(),
    "Float.Hypot": _binary("f"),
    **{f"Elementwise.{name}": _unary("f") for name in ("Expm1", "Log10", "Log2")},
    "Elementwise.FloorDivideScalar": _scalar("f", *SCALARS),
    **{f"Elementwise.{name}": _binary("f") for name in ("CopySign", "LogAddExp", "NextAfter")},
    "Elementwise.FloorDivide": _binary("f"),
    **{
        f"Activation.{name}": _unary("f")
        for name in ("Relu", "Gelu", "Sigmoid", "LogSigmoid")
    },
    **{
        f"Activation.{name}Backward": _alike
        for name in ("Relu", "Gelu", "Sigmoid", "LogSigmoid")
    },
    "Activation.LeakyRelu": _scalar("f", 0.1), "Activation.PRelu": _alike,
    "Activation.HardSigmoid": _unary("f", alpha=0.2, beta=0.5),
    **{f"Activation.{name}": _along("f") for name in ("Softmax", "LogSoftmax", "Softmin")},
    "Numeric.Neg": _unary("fi"), "Numeric.Sign": _unary("fi"),
    "Numeric.ClampMin": _scalar("fi", 0.1, 3), "Numeric.ClampMax": _scalar("fi", 0.1, 3),
    "Numeric.SumDims": _summed, "Numeric.Pad": _padded,
    **{
        f"Numeric.{name}": _along("fi", "dim", descending=descending)
        for name, descending in (("Sort", True), ("SortWithIndices", False), ("ArgSort", False))
    },
    "Numeric.TopKWithIndices": _top_with_indices,
    "Base.NotEqual": _binary("fib"), "Base.NotEqualElem": _scalar("fi", 0.1, 3),
    "Base.All": _unary("fib"), "Base.Any": _unary("fib"),
    "Base.AllDim": _reduced("fib"), "Base.AnyDim": _reduced("fib"),
    "Bool.Xor": _binary("b"),
    "Module.LayerNorm": _layer_norm, "Module.BatchNorm": _batch_norm, "Module.Unfold4d": _unfold4d,
    "Module.AdaptiveAvgPool3d": _adaptive(3),
    "Module.AdaptiveAvgPool3dBackward": _adaptive(3, backward=True),
    **{
        f"Module.ConvTranspose{axes}d{part.title()}Backward": _transposed(axes, part)
        for axes in (1, 2, 3)
        for part in ("weight", "bias")
    },
    "Search.Nonzero": _nonzero, "Search.Unique": _unique,
    "Search.UniqueOrder": lambda source: Case((_vector(source),)),
    "Search.SearchSorted": _search_sorted,
    "Complex.FromParts": _parts, "Complex.IntoComplex": _unary("fib", _any_complex),
    "Complex.Real": _complex, "Complex.Imaginary": _complex, "Complex.Abs": _complex,
    "Complex.Angle": _complex, "Complex.Conjugate": _complex, "Complex.Negative": _complex,
    "Fourier.Fft": _transform("c"), "Fourier.InverseFft": _transform("c"),
    "Fourier.RealFft": _transform("f"), "Fourier.InverseRealFft": _transform("c"),
    "Float.IntoInt": _unary("f", _any_integer), "Int.IntoFloat": _unary("i", _any_float),
    "Bool.IntoFloat": _unary("b", _any_float), "Bool.IntoInt": _unary("b", _any_integer),
    "Bool.Not": _unary("b"), "Bool.And": _binary("b"), "Bool.Or": _binary("b"),
    "Int.BitwiseNot": _unary("i"),
    "Float.Matmul": _matmul("f"), "Int.Matmul": _matmul("i"), "Float.Cross": _cross,
    "Float.Quantize": _quantize, "Float.Dequantize": _dequantize,
    "Float.GridSample2d": _grid_sample,
    "Base.Reshape": _reshape, "Base.SwapDims": _swap, "Base.Permute": _permute,
    "Base.Flip": lambda source: Case((source.any(source.shape()),), (), {"axes": (0,)}),
    "Base.Expand": _expand, "Base.Unfold": _unfold, "Base.Slice": _slice,
    "Base.SliceAssign": _slice_assign, "Base.Select": _select, "Base.SelectAssign": _select_assign,
    "Base.MaskWhere": _mask_where, "Base.MaskFill": _mask_fill,
    "Base.Gather": _gather, "Base.Scatter": _scatter,
    "Base.GatherNd": _gather_nd, "Base.ScatterNd": _scatter_nd,
    "Base.Equal": _binary("fib"), "Base.EqualElem": _scalar("fi", 0.1, 3),
    "Base.RepeatDim": _repeat, "Base.Cat": _cat,
    "Base.Cast": _cast,
    "Module.Embedding": _embedding, "Module.EmbeddingBackward": _embedding_backward,
    "Module.Linear": _linear, "Module.LinearXBackward": _linear_x_backward,
    "Module.LinearWeightBackward": _linear_weight_backward,
    "Module.LinearBiasBackward": lambda source: Case((source.floats(tuple(source.split(2))),)),
    "Module.Attention": _attention,
    "Module.CtcLoss": _ctc, "Module.CtcLossBackward": _ctc_backward,
    **{f"Module.Conv{axes}d": _convolution(axes) for axes in (1, 2, 3)},
    **{f"Module.Conv{axes}dXBackward": _convolution(axes, "x") for axes in (1, 2, 3)},
    **{f"Module.Conv{axes}dWeightBackward": _convolution(axes, "weight") for axes in (1, 2, 3)},
    **{f"Module.Conv{axes}dBiasBackward": _convolution(axes, "bias") for axes in (1, 2, 3)},
    **{f"Module.ConvTranspose{axes}d": _transposed(axes) for axes in (1, 2, 3)},
    "Module.DeformableConv2d": _deformable,
    "Module.DeformableConv2dBackward": lambda source: _deformable(source, backward=True),
    **{
        f"Module.{kind}Pool{axes}d": _pooling(axes, kind)
        for kind in ("Avg", "Max")
        for axes in (1, 2)
    },
    **{f"Module.AvgPool{axes}dBackward": _pooling(axes, "Avg", "backward") for axes in (1, 2)},
    **{f"Module.MaxPool{axes}dWithIndices": _pooling(axes, "Max", "indices") for axes in (1, 2)},
    **{
        f"Module.MaxPool{axes}dWithIndicesBackward": _pooling(axes, "Max", "indices backward")
        for axes in (1, 2)
    },
    **{f"Module.AdaptiveAvgPool{axes}d": _adaptive(axes) for axes in (1, 2)},
    **{f"Module.AdaptiveAvgPool{axes}dBackward": _adaptive(axes, backward=True) for axes in (1, 2)},
    "Module.Interpolate": _interpolate,
    "Module.InterpolateBackward": lambda source: _interpolate(source, backward=True),
    "Module.Rfft": _rfft, "Module.IRfft": _irfft,
}  # fmt: skip


def draw(name: str, random: Random, elements: int) -> Workload | None:
    """Return a random call of the row ``Family.Name``; ``None`` for one too large to measure."""
    try:
        case = DRAWN[name](Source(random, elements))
    except TooLarge:
        return None
    specs = [_spec(tensor) for tensor in case.tensors]
    signed = signature(name, *specs, out=case.out, **case.parameters)
    arrays = [list(tensor) if type(tensor) is list else _held(tensor) for tensor in case.tensors]
    return Workload(signed, tuple(arrays))


def _spec(tensor: Any) -> Any:
    if tensor is None:
        return None
    if type(tensor) is list:
        return tuple(spec_of(item) for item in tensor)
    return tensor.spec if isinstance(tensor, Held) else spec_of(tensor)


def _held(tensor: Any) -> Any:
    return tensor.array if isinstance(tensor, Held) else tensor
