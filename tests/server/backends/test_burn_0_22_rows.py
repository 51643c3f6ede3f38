"""The kernels of the rows that Burn 0.22 added, against definitions in double precision.

The definitions are written from the formulas of the functions, element by element or window by
window, and share no code with the kernels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import pytest

from burn_remote_protocol.dtypes import I32, I64
from burn_remote_protocol.operations.table import TABLE
from burn_remote_protocol.operations.vocabularies import SINCE_BURN_0_22
from burn_remote_protocol.operations.wire_values import Scalar
from burn_remote_protocol.tensors import TensorSpec
from support.kernels import BFLOAT16, compute

# An array; NumPy's types describe no index of several kinds.
Array = Any

RANDOM: Final = np.random.default_rng(20261122)
SPECIAL: Final = np.array([0.0, -0.0, 1.0, -1.0, 30.0, -30.0, 800.0, -800.0, np.inf, -np.inf])


class Comparison(NamedTuple):
    """A call of a row, and what it must agree with.

    ``reference`` receives the tensors, floats in double precision, and the parameters.
    """

    reference: Callable[..., Any]
    tensors: tuple[Array, ...]
    parameters: dict[str, Any]
    tolerance: float


COMPARISONS: Final[dict[str, list[Comparison]]] = {}


def compare(
    name: str,
    reference: Callable[..., Any],
    *tensors: Array,
    tolerance: float = 2e-6,
    **parameters: Any,
) -> None:
    COMPARISONS.setdefault(name, []).append(Comparison(reference, tensors, parameters, tolerance))


def normal(*shape: int, dtype: Any = np.float32) -> Array:
    return np.asarray(RANDOM.normal(size=shape)).astype(dtype)


def integers(*shape: int, dtype: Any = np.int64) -> Array:
    return RANDOM.integers(-5, 5, size=shape).astype(dtype)


def each(function: Callable[..., float]) -> Callable[..., Array]:
    """Return a function of arrays that applies one of numbers to each element."""
    return np.vectorize(function, otypes=[np.float64], excluded={"alpha", "beta"})


# -- Activation functions -------------------------------------------------------------------------


def normal_distribution(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def density(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else math.exp(x)


def log_sigmoid(x: float) -> float:
    return min(x, 0.0) - math.log1p(math.exp(-abs(x)))


def gelu(x: float) -> float:
    return 0.0 if x == -math.inf else x * normal_distribution(x)


def softmax_of(row: Array) -> Array:
    powers = [math.exp(x - max(row)) for x in row]
    return np.array(powers) / math.fsum(powers)


def log_softmax_of(row: Array) -> Array:
    return row - max(row) - math.log(math.fsum(math.exp(x - max(row)) for x in row))


for _dtype, _bound in ((np.float32, 2e-6), (np.float64, 1e-12), (np.float16, 2e-3)):
    _x, _grad = normal(5, 7, dtype=_dtype), normal(5, 7, dtype=_dtype)
    _edges = SPECIAL.astype(_dtype)
    for _values in (_x, _edges):
        compare("Activation.Relu", each(lambda x: max(x, 0.0)), _values, tolerance=_bound)
        compare("Activation.Sigmoid", each(sigmoid), _values, tolerance=_bound)
    compare("Activation.Gelu", each(gelu), _x, tolerance=_bound)
    compare("Activation.LogSigmoid", each(log_sigmoid), _x, tolerance=_bound)
    compare("Activation.LogSigmoid", each(log_sigmoid), _edges[:8], tolerance=_bound)
    compare(
        "Activation.LeakyRelu",
        each(lambda x, rhs: x if x > 0 else rhs * x),
        _x,
        rhs=0.1,
        tolerance=_bound,
    )
    compare(
        "Activation.PRelu",
        each(lambda x, slope: x if x > 0 else slope * x),
        _x,
        normal(1, 7, dtype=_dtype),
        tolerance=_bound,
    )
    compare(
        "Activation.HardSigmoid",
        each(lambda x, alpha, beta: min(max(alpha * x + beta, 0.0), 1.0)),
        _x,
        alpha=0.2,
        beta=0.5,
        tolerance=_bound,
    )
    compare(
        "Activation.ReluBackward",
        each(lambda y, grad: grad if y > 0 else 0.0),
        np.maximum(_x, 0),
        _grad,
        tolerance=_bound,
    )
    compare(
        "Activation.GeluBackward",
        each(lambda x, grad: grad * (normal_distribution(x) + x * density(x))),
        _x,
        _grad,
        tolerance=_bound,
    )
    compare(
        "Activation.SigmoidBackward",
        each(lambda y, grad: grad * y * (1 - y)),
        _x,
        _grad,
        tolerance=4 * _bound,
    )
    compare(
        "Activation.LogSigmoidBackward",
        each(lambda x, grad: grad * sigmoid(-x)),
        _x,
        _grad,
        tolerance=_bound,
    )
    for _axis in (0, 1):
        for _name, _function in (
            ("Softmax", softmax_of),
            ("LogSoftmax", log_softmax_of),
            ("Softmin", lambda row: softmax_of(-row)),
        ):
            compare(
                f"Activation.{_name}",
                lambda x, axis, function=_function: np.apply_along_axis(function, axis, x),
                100 * _x,
                axis=_axis,
                tolerance=40 * _bound,
            )

# -- Numbers --------------------------------------------------------------------------------------

for _tensor in (normal(3, 4), integers(3, 4), integers(5, dtype=np.int8), np.arange(4, dtype="u1")):
    compare("Numeric.Neg", lambda x: (0 - x).astype(x.dtype), _tensor)
    compare("Numeric.Sign", lambda x: (x > 0).astype(x.dtype) - (x < 0), _tensor)
    compare("Numeric.ClampMin", lambda x, rhs: np.where(x < rhs, rhs, x), _tensor, rhs=1)
    compare("Numeric.ClampMax", lambda x, rhs: np.where(x > rhs, rhs, x), _tensor, rhs=1)
compare("Numeric.Neg", lambda x: -x, SPECIAL)
compare("Numeric.Sign", np.sign, np.array([np.nan, np.inf, -0.0], np.float32))
compare("Numeric.ClampMin", lambda x, rhs: x, np.array([-128, 127], np.int8), rhs=-1000)
compare("Numeric.ClampMax", lambda x, rhs: x, np.array([np.nan, 1.0]), rhs=2.0)
for _tensor in (normal(3, 4, 5), integers(3, 4, 5, dtype=np.int32), normal(3, 0, 2)):
    for _axes in ((0, 2), (1,), (), (2, 0, 1)):
        compare(
            "Numeric.SumDims", lambda x, axes: x.sum(axis=axes, keepdims=True), _tensor, axes=_axes
        )
for _number_dtype in (np.float32, np.float64, np.float16, np.int32, np.uint8):
    compare("Numeric.Pad", lambda x, padding, mode: np.pad(x, padding, constant_values=3),
            integers(2, 3, dtype=np.int8).astype(_number_dtype), padding=((1, 0), (2, 3)),
            mode=("Constant", Scalar.of(3)))  # fmt: skip
for _mode, _numpy_mode in (("Reflect", "reflect"), ("Edge", "edge")):
    compare("Numeric.Pad", lambda x, padding, mode, name=_numpy_mode: np.pad(x, padding, mode=name),
            normal(4, 1, 5), padding=((3, 1), (0, 0), (0, 4)), mode=(_mode,))  # fmt: skip
compare("Float.Hypot", np.hypot, normal(3, 4), normal(1, 4))


# -- Truth ----------------------------------------------------------------------------------------

for _tensor in (
    normal(3, 4),
    integers(3, 4),
    integers(3, 4) > 0,
    np.zeros((3, 4)),
    np.full((1, 2), np.nan),
):
    compare("Base.All", lambda x: np.array([all(bool(each) for each in x.flat)]), _tensor)
    compare("Base.Any", lambda x: np.array([any(bool(each) for each in x.flat)]), _tensor)
    compare("Base.AllDim", lambda x, axis, accumulator_len: (x == 0).sum(1, keepdims=True) == 0,
            _tensor, axis=1, accumulator_len=1)  # fmt: skip
    compare("Base.AnyDim", lambda x, axis, accumulator_len: (x != 0).sum(0, keepdims=True) > 0,
            _tensor, axis=0, accumulator_len=1)  # fmt: skip
compare("Base.All", lambda x: np.array([True]), normal(0, 3))
compare("Base.Any", lambda x: np.array([False]), normal(0, 3))
for _tensor in (integers(3, 4), integers(3, 4).astype(np.float32), integers(3, 4) > 0):
    compare("Base.NotEqual", lambda x, y: ~(x == y), _tensor, _tensor[:1])
    compare("Base.NotEqualElem", lambda x, rhs: ~(x == rhs), _tensor, rhs=1)
compare("Base.NotEqual", lambda x, y: np.array([True]), np.array([np.nan]), np.array([np.nan]))
compare("Bool.Xor", lambda x, y: (x | y) & ~(x & y), normal(3, 4) > 0, normal(1, 4) > 0)

# -- Layers ---------------------------------------------------------------------------------------


def layer_norm(x: Array, gamma: Array, beta: Array | None, epsilon: float) -> Array:
    rows = [
        (row - math.fsum(row) / len(row))
        / math.sqrt(math.fsum((row - math.fsum(row) / len(row)) ** 2) / len(row) + epsilon)
        for row in x.reshape(-1, x.shape[-1])
    ]
    return np.array(rows).reshape(x.shape) * gamma + (0 if beta is None else beta)


def batch_norm(
    x: Array, gamma: Array, beta: Array, mean: Array, variance: Array, epsilon: float
) -> Array:
    out = np.empty_like(x)
    for channel in range(x.shape[1]):
        normalized = (x[:, channel] - mean[channel]) / math.sqrt(variance[channel] + epsilon)
        out[:, channel] = normalized * gamma[channel] + beta[channel]
    return out


for _dtype, _bound in ((np.float32, 1e-5), (np.float64, 1e-12), (np.float16, 4e-3)):
    _weights = (normal(6, dtype=_dtype), normal(6, dtype=_dtype))
    compare(
        "Module.LayerNorm",
        layer_norm,
        normal(2, 3, 6, dtype=_dtype),
        *_weights,
        epsilon=1e-5,
        tolerance=_bound,
    )
    _statistics = (normal(6, dtype=_dtype), np.abs(normal(6, dtype=_dtype)))
    for _shape in ((4, 6), (2, 6, 3), (2, 6, 2, 3)):
        compare("Module.BatchNorm", batch_norm, normal(*_shape, dtype=_dtype), *_weights,
                *_statistics, epsilon=1e-3, tolerance=_bound)  # fmt: skip


def unfold(x: Array, kernel_size: Any, stride: Any, padding: Any, dilation: Any) -> Array:
    x = np.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    counts = [
        (size - d * (k - 1) - 1) // s + 1
        for size, k, s, d in zip(x.shape[2:], kernel_size, stride, dilation, strict=True)
    ]
    columns = []
    for row, column in itertools.product(*map(range, counts)):
        window = [
            x[:, channel, row * stride[0] + i * dilation[0], column * stride[1] + j * dilation[1]]
            for channel in range(x.shape[1])
            for i in range(kernel_size[0])
            for j in range(kernel_size[1])
        ]
        columns.append(np.stack(window, axis=1))
    return np.stack(columns, axis=2)


_WINDOWS: Final[list[dict[str, Any]]] = [
    {"kernel_size": (2, 3), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)},
    {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 2), "dilation": (1, 2)},
]
for _options in _WINDOWS:
    compare("Module.Unfold4d", unfold, normal(2, 3, 6, 5), **_options)


def adaptive_windows(size: int, count: int) -> list[slice]:
    return [slice(n * size // count, -(-(n + 1) * size // count)) for n in range(count)]


def adaptive_mean(x: Array, output_size: tuple[int, ...]) -> Array:
    axes = [adaptive_windows(*pair) for pair in zip(x.shape[2:], output_size, strict=True)]
    means = [x[(..., *window)].mean(axis=(2, 3, 4)) for window in itertools.product(*axes)]
    return np.stack(means, axis=2).reshape(*x.shape[:2], *output_size)


def adaptive_mean_gradient(x: Array, grad: Array) -> Array:
    out = np.zeros_like(x)
    axes = [adaptive_windows(*pair) for pair in zip(x.shape[2:], grad.shape[2:], strict=True)]
    for place in itertools.product(*[range(count) for count in grad.shape[2:]]):
        window = tuple(axis[number] for axis, number in zip(axes, place, strict=True))
        part = out[(..., *window)]
        part += (grad[(..., *place)] / math.prod(part.shape[2:]))[..., None, None, None]
    return out


compare("Module.AdaptiveAvgPool3d", adaptive_mean, normal(2, 3, 5, 4, 7), output_size=(2, 3, 7))
compare("Module.AdaptiveAvgPool3d", adaptive_mean, normal(1, 1, 2, 3, 3), output_size=(3, 3, 1))
compare(
    "Module.AdaptiveAvgPool3dBackward",
    adaptive_mean_gradient,
    normal(2, 3, 5, 4, 7),
    normal(2, 3, 2, 3, 7),
)


def transposed_weight_gradient(x: Array, weight: Array, grad: Array, **options: Any) -> Array:
    """Sum over each image, input element and tap: the tap puts the element at one output."""
    groups, rank = options["groups"], x.ndim - 2
    filters = weight.shape[1]
    out = np.zeros_like(weight)
    for place in itertools.product(*[range(size) for size in x.shape[2:]]):
        for tap in itertools.product(*[range(size) for size in weight.shape[2:]]):
            target = tuple(
                place[axis] * options["stride"][axis]
                + tap[axis] * options["dilation"][axis]
                - options["padding"][axis]
                for axis in range(rank)
            )
            if any(not 0 <= at < size for at, size in zip(target, grad.shape[2:], strict=True)):
                continue
            for channel in range(x.shape[1]):
                group = channel * groups // x.shape[1]
                part = grad[(slice(None), slice(group * filters, (group + 1) * filters), *target)]
                out[(channel, slice(None), *tap)] += (
                    x[(slice(None), channel, *place)][:, None] * part
                ).sum(0)
    return out


for _rank, _stride, _padding, _extra, _dilation, _groups in (
    (1, 2, 1, 1, 1, 1),
    (2, 2, 0, 1, 2, 2),
    (2, 1, 1, 0, 1, 1),
    (3, 2, 1, 1, 1, 1),
    (1, 1, 0, 2, 1, 1),
):
    _sizes, _kernel = (4, 3, 2)[:_rank], (3, 2, 2)[:_rank]
    _outputs = [
        (size - 1) * _stride + _dilation * (taps - 1) + 1 + _extra - 2 * _padding
        for size, taps in zip(_sizes, _kernel, strict=True)
    ]
    compare(
        f"Module.ConvTranspose{_rank}dWeightBackward",
        transposed_weight_gradient,
        normal(2, 4, *_sizes),
        normal(4, 3, *_kernel),
        normal(2, 3 * _groups, *_outputs),
        stride=(_stride,) * _rank,
        padding=(_padding,) * _rank,
        padding_out=(_extra,) * _rank,
        dilation=(_dilation,) * _rank,
        groups=_groups,
        tolerance=1e-5,
    )
for _rank in (1, 2, 3):
    compare(
        f"Module.ConvTranspose{_rank}dBiasBackward",
        lambda x, bias, grad: np.array([grad[:, channel].sum() for channel in range(len(bias))]),
        normal(2, 4, *(3,) * _rank),
        normal(5),
        normal(2, 5, *(4,) * _rank),
    )

# -- The comparison -------------------------------------------------------------------------------

CASES: Final = [
    pytest.param(name, case, id=f"{name}-{place}")
    for name, cases in COMPARISONS.items()
    for place, case in enumerate(cases)
]


def doubled(array: Array) -> Array:
    return array if array.dtype.kind in "iub" else array.astype(np.float64)


@pytest.mark.parametrize("name, case", CASES)
def test_the_kernel_agrees_with_its_definition(name: str, case: Comparison) -> None:
    found = compute(name, *case.tensors, **case.parameters)
    with np.errstate(all="ignore"):
        expected = case.reference(*map(doubled, case.tensors), **case.parameters)

    assert found.shape == expected.shape
    bound = case.tolerance
    np.testing.assert_allclose(doubled(found), doubled(expected), rtol=bound, atol=bound)


# Those with indices are compared below.
SORTED: Final = {"Sort", "SortWithIndices", "ArgSort", "TopKWithIndices"}


def test_every_row_of_burn_0_22_is_compared() -> None:
    rows = {str(row) for row in TABLE.values() if row.lifetime == SINCE_BURN_0_22}

    assert rows == set(COMPARISONS) | {f"Numeric.{name}" for name in SORTED}


# -- Sorting --------------------------------------------------------------------------------------


def order_of(row: list[Any], descending: bool) -> list[int]:
    """Return the positions that sort a row: NaN as the largest; of equal elements the first."""

    def rank(position: int) -> tuple[Any, ...]:
        value = row[position]
        is_nan = value != value
        key = (is_nan, 0 if is_nan else value)
        return (not key[0], -key[1], position) if descending else (*key, position)

    return sorted(range(len(row)), key=rank)


ROWS: Final = {
    "floats": np.array([[2.0, np.nan, -1.0, 2.0, np.inf], [0.0, -0.0, -np.inf, np.nan, np.nan]]),
    "integers": np.array([[3, 1, 3, -128, 127], [0, 0, 0, 1, 0]], np.int8),
    "unsigned": np.array([[3, 1, 3, 2**64 - 1, 0]], np.uint64),
    "bfloat16": np.array([[2.0, np.nan, -1.0, 2.0, 0.5]]).astype(BFLOAT16),
    "empty": np.zeros((3, 0), np.float32),
}


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("descending", [False, True])
def test_sorting_is_stable_and_counts_nan_as_largest(kind: str, descending: bool) -> None:
    tensor = ROWS[kind]
    rows = tensor.astype(np.float64).tolist() if tensor.dtype.kind not in "iu" else tensor.tolist()
    order = np.array([order_of(row, descending) for row in rows], np.int64).reshape(tensor.shape)
    expected = np.take_along_axis(tensor, order, axis=1)

    plain: dict[str, Any] = {"dim": 1, "descending": descending}
    values = compute("Numeric.Sort", tensor, **plain)
    indices = compute("Numeric.ArgSort", tensor, out=TensorSpec(tensor.shape, I32), **plain)
    both = compute("Numeric.SortWithIndices", tensor, **plain)

    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(both[1], order)
    for found in (values, both[0]):
        np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))


def test_sorting_along_the_first_axis_sorts_columns() -> None:
    tensor = normal(6, 3)

    found = compute("Numeric.Sort", tensor, dim=0, descending=True)

    np.testing.assert_array_equal(found, -np.sort(-tensor, axis=0))


@pytest.mark.parametrize("count", [0, 2, 5])
def test_the_largest_elements_come_with_their_indices(count: int) -> None:
    tensor = ROWS["floats"]
    shape = (2, count)
    out = (TensorSpec(shape, I64), TensorSpec(shape, I64))

    values, indices = compute("Numeric.TopKWithIndices", tensor, dim=1, k=count, out=out)

    order = np.array([order_of(row, descending=True)[:count] for row in tensor.tolist()], np.int64)
    np.testing.assert_array_equal(indices, order.reshape(shape))
    np.testing.assert_array_equal(values, np.take_along_axis(tensor, indices, axis=1))


@pytest.mark.parametrize("outputs, size", [(3, 5), (5, 3), (4, 4), (7, 2)])
def test_the_exact_nearest_input_is_the_one_under_the_center_of_an_output(
    outputs: int, size: int
) -> None:
    x = normal(1, 2, size, 1)
    centers = [(place + 0.5) * size / outputs for place in range(outputs)]

    found = compute("Module.Interpolate", x, output_size=(outputs, 1), mode="NearestExact",
                    align_corners=False)  # fmt: skip

    np.testing.assert_array_equal(found, x[:, :, [math.floor(center) for center in centers]])
