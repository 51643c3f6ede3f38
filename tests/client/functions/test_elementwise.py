"""Elementwise functions match NumPy or the formulas that define them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

import burn_remote as br
from burn_remote import functional as F
from support.values import same

ANYWHERE = np.array(
    [-np.inf, -700.0, -2.5, -1.0, -0.5, -0.0, 0.0, 1e-9, 0.5, 1.5, 30.0, np.inf, np.nan]
)
POSITIVE = np.array([0.0, 1e-9, 0.5, 1.0, 2.0, 1000.0, np.inf, np.nan])
WITHIN_ONE = np.array([-1.0, -0.5, 0.0, 1e-9, 0.5, 1.0, np.nan])
FINITE = np.array([-20.0, -2.5, -0.5, 0.0, 1e-9, 0.5, 2.5, 20.0])

ERF = np.vectorize(math.erf, otypes=[float])

CASES: list[tuple[Callable[[br.Tensor], br.Tensor], Callable[[Any], Any], np.ndarray]] = [
    (br.abs, np.abs, ANYWHERE), (br.exp, np.exp, ANYWHERE), (br.exp2, np.exp2, FINITE),
    (br.expm1, np.expm1, ANYWHERE), (br.log, np.log, POSITIVE), (br.log1p, np.log1p, POSITIVE),
    (br.log2, np.log2, POSITIVE), (br.log10, np.log10, POSITIVE), (br.sqrt, np.sqrt, POSITIVE),
    (br.square, np.square, ANYWHERE), (br.sign, np.sign, ANYWHERE),
    (br.rsqrt, lambda a: 1 / np.sqrt(a), POSITIVE), (br.reciprocal, np.reciprocal, ANYWHERE),
    (br.erf, ERF, FINITE), (br.sin, np.sin, FINITE), (br.cos, np.cos, FINITE),
    (br.tan, np.tan, FINITE), (br.sinh, np.sinh, FINITE), (br.cosh, np.cosh, FINITE),
    (br.tanh, np.tanh, ANYWHERE), (br.asin, np.arcsin, WITHIN_ONE),
    (br.acos, np.arccos, WITHIN_ONE),
    (br.atan, np.arctan, ANYWHERE), (br.asinh, np.arcsinh, FINITE),
    (br.acosh, np.arccosh, POSITIVE + 1), (br.atanh, np.arctanh, WITHIN_ONE * 0.9),
    (br.round, np.round, ANYWHERE), (br.floor, np.floor, ANYWHERE), (br.ceil, np.ceil, ANYWHERE),
    (br.trunc, np.trunc, ANYWHERE), (br.isnan, np.isnan, ANYWHERE), (br.isinf, np.isinf, ANYWHERE),
    (br.isfinite, np.isfinite, ANYWHERE), (br.signbit, np.signbit, ANYWHERE[:-1]),
    (br.negative, np.negative, ANYWHERE), (br.logical_not, np.logical_not, ANYWHERE),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "function, expected, values", CASES, ids=[case[0].__name__ for case in CASES]
)
def test_floating_point_functions_match_numpy(
    device: br.Device,
    function: Callable[[br.Tensor], br.Tensor],
    expected: Callable[[Any], Any],
    values: np.ndarray,
) -> None:
    same(function(br.tensor(values, device=device)), expected(values), 1e-12)
    for shape in ((), (0, 3)):
        piece = np.full(shape, values[3])
        same(function(br.tensor(piece, device=device)), expected(piece), 1e-12)


@pytest.mark.parametrize("dtype", [br.float64, br.float32, br.float16, br.bfloat16], ids=str)
def test_the_signs_of_both_zeros_are_positive_zeros(device: br.Device, dtype: br.DType) -> None:
    x = br.tensor([-0.0, 0.0], dtype=dtype, device=device)

    for found in (br.sign(x), br.compile(br.sign)(x)):
        assert found.dtype == dtype
        assert not np.signbit(found.numpy().astype(np.float64)).any()


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint8])
def test_functions_of_integers_match_numpy(device: br.Device, dtype: Any) -> None:
    a = np.array([0, 1, 5, -3 if dtype != np.uint8 else 3]).astype(dtype)
    x = br.tensor(a, device=device)
    same(br.sign(x), np.sign(a))
    same(abs(x), np.abs(a))
    same(x.clip(1, 3), np.clip(a, 1, 3))
    same(x.clip(max=2), np.clip(a, None, 2))
    same(br.maximum(x, 2), np.maximum(a, 2))
    same(br.minimum(x, br.tensor(a[::-1], device=device)), np.minimum(a, a[::-1]))


@given(
    st.tuples(
        *[arrays(np.float32, (2, 3), elements=st.sampled_from([0.0, -1.5, 2.0, np.nan, np.inf]))]
        * 2
    )
)
def test_maximum_and_minimum_propagate_nan(
    device: br.Device, both: tuple[np.ndarray, np.ndarray]
) -> None:
    x, y = (br.tensor(a, device=device) for a in both)
    same(br.maximum(x, y), np.maximum(*both))
    same(br.minimum(x, y), np.minimum(*both))
    same(br.maximum(x, y[0]), np.maximum(both[0], both[1][0]))
    same(br.maximum(x, 1), np.maximum(both[0], np.float32(1)))
    same(x.clip(-1, 1), np.clip(both[0], -1, 1))


@given(arrays(np.bool_, array_shapes(max_dims=3, max_side=3)))
def test_where_matches_numpy(device: br.Device, mask: np.ndarray) -> None:
    a = np.arange(mask.size, dtype=np.float32).reshape(mask.shape)
    m, x = br.tensor(mask, device=device), br.tensor(a, device=device)
    same(br.where(m, x, -x), np.where(mask, a, -a))
    same(br.where(m, x, 7), np.where(mask, a, np.float32(7)))
    same(br.where(m, 7, x), np.where(mask, np.float32(7), a))
    same(br.where(m, 1, 0), np.where(mask, 1, 0))
    same(br.where(m, x[..., :1], x), np.where(mask, a[..., :1], a))
    same(x.mask_fill(m, 3), np.where(mask, np.float32(3), a))


def sigmoid(a: np.ndarray) -> Any:
    return 1 / (1 + np.exp(-a))


def softplus(a: np.ndarray) -> Any:
    return np.logaddexp(a, 0)


SOFT = np.array([-800.0, -40.0, -3.0, -0.5, 0.0, 0.2, 3.0, 39.0, 41.0, 800.0])

ACTIVATIONS: list[tuple[Callable[[br.Tensor], br.Tensor], Callable[[Any], Any]]] = [
    (F.relu, lambda a: np.maximum(a, 0)), (F.relu6, lambda a: np.clip(a, 0, 6)),
    (F.sigmoid, sigmoid), (F.logsigmoid, lambda a: -softplus(-a)), (F.softplus, softplus),
    (F.silu, lambda a: a * sigmoid(a)), (F.mish, lambda a: a * np.tanh(softplus(a))),
    (F.gelu, lambda a: a * (1 + ERF(a / math.sqrt(2))) / 2),
    (F.elu, lambda a: np.where(a > 0, a, np.expm1(a))),
    (F.celu, lambda a: np.where(a > 0, a, np.expm1(a))),
    (F.selu, lambda a: 1.0507009873554805 * np.where(a > 0, a, 1.6732632423543772 * np.expm1(a))),
    (F.leaky_relu, lambda a: np.where(a < 0, 0.01 * a, a)),
    (F.hardsigmoid, lambda a: np.clip(a / 6 + 0.5, 0, 1)),
    (F.hardswish, lambda a: a * np.clip(a / 6 + 0.5, 0, 1)),
    (F.hardtanh, lambda a: np.clip(a, -1, 1)), (F.softsign, lambda a: a / (1 + np.abs(a))),
    (F.hardshrink, lambda a: np.where(np.abs(a) > 0.5, a, 0)),
    (F.softshrink, lambda a: np.sign(a) * np.maximum(np.abs(a) - 0.5, 0)),
    (F.tanhshrink, lambda a: a - np.tanh(a)),
    (lambda x: F.threshold(x, 0.3, 9), lambda a: np.where(a > 0.3, a, 9)),
    (
        lambda x: F.gelu(x, approximate="tanh"),
        lambda a: a / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3))),
    ),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("function, expected", ACTIVATIONS)
def test_activations_match_their_formulas(
    device: br.Device,
    function: Callable[[br.Tensor], br.Tensor],
    expected: Callable[[Any], Any],
) -> None:
    same(function(br.tensor(SOFT, device=device)), expected(SOFT), 1e-11)
    single = SOFT.astype(np.float32)
    same(function(br.tensor(single, device=device)), expected(SOFT).astype(np.float32), 2e-6)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax_matches_its_definition(device: br.Device, axis: int) -> None:
    a = np.array([[1.0, 2.0, -1000.0], [1000.0, 1000.0, 999.0]])
    x = br.tensor(a, device=device)
    powers = np.exp(a - a.max(axis, keepdims=True))
    expected = powers / powers.sum(axis, keepdims=True)
    same(x.softmax(axis=axis), expected, 1e-14)
    same(F.softmin(-x, dim=axis), expected, 1e-14)
    logarithm = a - a.max(axis, keepdims=True) - np.log(powers.sum(axis, keepdims=True))
    same(F.log_softmax(x, dim=axis), logarithm, 1e-14)


def test_activations_with_parameters_match_their_definitions(device: br.Device) -> None:
    a = np.linspace(-1, 1, 24).reshape(2, 3, 4)
    w = np.array([0.1, 0.2, 0.3])
    x = br.tensor(a, device=device)
    same(F.prelu(x, br.tensor(w, device=device)), np.where(a < 0, a * w[:, None], a))
    same(F.glu(x), a[..., :2] * sigmoid(a[..., 2:]), 1e-14)
    with pytest.raises(br.ShapeMismatch, match=r"axis 1 of .* has no halves: its size 3 is odd"):
        F.glu(x, dim=1)
    with pytest.raises(br.UsageError, match="approximate"):
        F.gelu(x, approximate="sine")


@pytest.mark.parametrize("dtype", [br.float16, br.bfloat16])
def test_low_precision_stays_finite(device: br.Device, dtype: br.DType) -> None:
    x = br.tensor(SOFT[1:-1], device=device).astype(dtype)
    for function in (F.sigmoid, F.softplus, F.silu, F.mish, F.elu, F.gelu, F.logsigmoid):
        y = function(x)
        assert y.dtype is dtype
        assert np.isfinite(y.numpy().astype(np.float32)).all()


@pytest.mark.parametrize("name", ["log2", "log10"])
def test_the_logarithm_of_complex_zero_is_infinite(device: br.Device, name: str) -> None:
    numbers = np.array([0, complex(-0.0, 0), 1 + 1j, 8], np.complex64)
    with np.errstate(divide="ignore"):
        expected = getattr(np, name)(numbers)

    found = getattr(br, name)(br.tensor(numbers, device=device)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_the_signs_of_infinite_complex_numbers_match_numpy(dtype: Any) -> None:
    parts = [0.0, -2.0, math.inf, -math.inf, math.nan]
    a = np.array([complex(first, second) for first in parts for second in parts], dtype)
    with np.errstate(all="ignore"):
        expected = np.sign(a)
    same(br.sign(br.tensor(a, device="local")), expected)
    largest = np.finfo(dtype).max
    large = br.tensor(np.array([complex(largest, -largest)], dtype), device="local")
    np.testing.assert_allclose(br.sign(large).numpy(), (1 - 1j) / math.sqrt(2), rtol=1e-6)
