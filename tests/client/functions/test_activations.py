"""Activations are accurate for large numbers, infinities and NaN, in every precision.

The references are the formulas of the papers for a single Python float, written so that they
neither overflow nor cancel. For infinities, they give the result of IEEE arithmetic: ``0 * inf`` is
NaN, as in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

import burn_remote as br
from burn_remote import functional as F
from burn_remote_server.backends.array.core.array_dtypes import array_dtype

Scalar = Callable[[float], float]

FAR = [
    -math.inf, -60000.0, -1e4, -745.0, -100.0, -88.5, -30.0, -17.5, -11.5, -5.0, -1.0, -0.25,
    -1e-3, -1e-6, -0.0, 0.0, 1e-6, 1e-3, 0.25, 1.0, 5.0, 11.5, 17.5, 30.0, 88.5, 100.0, 745.0,
    1e4, 60000.0, math.inf, math.nan,
]  # fmt: skip


def sigmoid(x: float) -> float:
    return math.exp(x) / (1 + math.exp(x)) if x < 0 else 1 / (1 + math.exp(-x))


def softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x))) if x == x else x


def normal_share(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def curve(x: float, alpha: float) -> float:
    """Return ELU's part below zero."""
    return alpha * math.expm1(min(x, 0.0)) if x <= 0 else x


def kept(x: float, low: float, high: float) -> float:
    return x if x != x else min(max(x, low), high)


SELU = (1.6732632423543772, 1.0507009873554805)

ACTIVATIONS: list[tuple[Callable[[br.Tensor], br.Tensor], Scalar]] = [
    (F.sigmoid, sigmoid),
    (F.logsigmoid, lambda x: -softplus(-x)),
    (F.softplus, softplus),
    (F.silu, lambda x: x * sigmoid(x)),
    (F.mish, lambda x: x * math.tanh(softplus(x))),
    (F.gelu, lambda x: x * normal_share(x)),
    (F.relu, lambda x: x if x != x else max(x, 0.0)),
    (F.relu6, lambda x: kept(x, 0, 6)),
    (F.leaky_relu, lambda x: x if x >= 0 else 0.01 * x),
    (F.elu, lambda x: curve(x, 1.0)),
    (lambda x: F.celu(x, 2.0), lambda x: 2 * math.expm1(x / 2) if x <= 0 else x),
    (F.selu, lambda x: SELU[1] * curve(x, SELU[0])),
    (F.hardsigmoid, lambda x: kept(x / 6 + 0.5, 0, 1)),
    (F.hardswish, lambda x: x * kept(x / 6 + 0.5, 0, 1)),
    (F.hardtanh, lambda x: kept(x, -1, 1)),
    (F.softsign, lambda x: x / (1 + abs(x))),
    (F.softshrink, lambda x: x - kept(x, -0.5, 0.5)),
    (F.hardshrink, lambda x: 0.0 if abs(x) <= 0.5 else x),
    (F.tanhshrink, lambda x: x - math.tanh(x)),
    (
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))) / 2,
    ),
]

# The error of a few roundings, each at most half a unit in the last place of an intermediate
# result. Intermediate results are never larger than the input or the result, or about 1 where 1 is
# added.
ROUNDINGS = 8


@pytest.mark.parametrize("dtype", [br.float64, br.float32, br.bfloat16, br.float16], ids=str)
@pytest.mark.parametrize(
    ("function", "formula"),
    ACTIVATIONS,
    ids=[f"{place}-{case[0].__name__}" for place, case in enumerate(ACTIVATIONS)],
)
def test_activations_of_large_numbers_and_nan(
    device: br.Device,
    function: Callable[[br.Tensor], br.Tensor],
    formula: Scalar,
    dtype: br.DType,
) -> None:
    held = array_dtype(dtype)
    given = np.array(FAR, held)
    found = function(br.tensor(given, device=device)).numpy().astype(np.float64)

    numbers = given.astype(np.float64)
    expected = np.array([formula(number) for number in numbers.tolist()])
    limits = ml_dtypes.finfo(held)  # type: ignore[no-untyped-call]
    with np.errstate(all="ignore"):
        rounded = expected.astype(held).astype(np.float64)
        room = np.minimum(np.abs(numbers), 1) + np.abs(expected)
        wrong = np.abs(found - rounded) > ROUNDINGS * float(limits.eps) * room + 2 * float(
            limits.smallest_subnormal
        )
    infinite = ~np.isfinite(rounded)
    np.testing.assert_array_equal(found[infinite], rounded[infinite])
    assert not wrong[~infinite].any(), [
        *zip(numbers[~infinite][wrong[~infinite]], found[~infinite][wrong[~infinite]],
             rounded[~infinite][wrong[~infinite]], strict=True)
    ]  # fmt: skip
    assert np.isfinite(found[~infinite]).all()


@pytest.mark.parametrize("dtype", [br.float32, br.bfloat16, br.float16], ids=str)
@pytest.mark.parametrize("offset", [0.0, 1e4, -1e4])
def test_softmax_is_invariant_to_an_offset(
    device: br.Device, dtype: br.DType, offset: float
) -> None:
    held = array_dtype(dtype)
    given = (np.array([[-32.0, 0.0, 16.0, 16.0], [64.0, -64.0, 0.0, 8.0]]) + offset).astype(held)
    x = br.tensor(given, device=device)
    exact = given.astype(np.float64)
    exact = exact - exact.max(1, keepdims=True)
    logarithms = exact - np.log(np.exp(exact).sum(1, keepdims=True))
    eps = float(np.finfo(np.float32).eps) if dtype is br.float32 else 2.0**-7
    found = F.softmax(x).numpy().astype(np.float64)
    np.testing.assert_allclose(found, np.exp(logarithms), rtol=4 * eps, atol=eps)
    found = F.log_softmax(x).numpy().astype(np.float64)
    np.testing.assert_allclose(found, logarithms, rtol=4 * eps, atol=4 * eps)
