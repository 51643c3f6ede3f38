"""Compositions of several operations round float16 and bfloat16 once, and so do their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pytest

import burn_remote as br
from burn_remote import functional as F
from burn_remote.functions.casting import ROUNDED_ONCE
from burn_remote_protocol.operations.families import activations, elementwise_rows
from support.calls import composed
from support.runners import RecordingDevice

Function = Callable[..., Any]

LOW: Final = ["float16", "bfloat16"]

rng = np.random.default_rng(7)
# Not close to zero, where tanhshrink cancels, and not so low that gelu does.
X = np.concatenate([np.linspace(-2.5, -0.2, 150), np.linspace(0.2, 9, 150)])
Y = rng.permuted(X)
ROWS, OTHERS, THIRD = (rng.normal(size=(10, 7)) * 2 for _ in range(3))
SHARES = rng.uniform(0.05, 0.95, (10, 7))
LOGARITHMS = -rng.exponential(size=(10, 7))
POSITIVE = np.exp(rng.normal(size=(10, 7)))
WEIGHTS = rng.uniform(0.5, 2, 7)
SIGNS = np.where(ROWS > 0, 1.0, -1.0)


def labelled(function: Function, **options: Any) -> Function:
    def call(x: br.Tensor, *others: br.Tensor) -> br.Tensor:
        # A compiled function cannot upload labels.
        labels = br.arange(10, device=x.device) * 3 % 7
        loss: br.Tensor = function(x, labels, *others, **options)
        return loss

    return call


def ctc(x: br.Tensor) -> br.Tensor:
    targets = br.arange(4, device=x.device).reshape(2, 2) % 3 + 1
    times, sizes = (br.full((2,), size, dtype=br.int64, device=x.device) for size in (5, 2))
    return F.ctc_loss(x, targets, times, sizes)


def bicubic(x: br.Tensor, points: br.Tensor) -> br.Tensor:
    return F.grid_sample(x.reshape(1, 1, 10, 7), points.reshape(1, 5, 7, 2), "bicubic", "border")


def with_options(function: Function, **options: Any) -> Function:
    return lambda *tensors: function(*tensors, **options)


# The name of the function that is decorated, and calls of it.
CASES: Final[list[tuple[str, Function, Sequence[np.ndarray]]]] = [
    ("trunc_divide", br.trunc_divide, [X, Y]),
    ("rsqrt", br.rsqrt, [POSITIVE]),
    ("expm1", composed(elementwise_rows.EXPM1), [X]),
    ("log2", composed(elementwise_rows.LOG2), [POSITIVE]),
    ("log10", composed(elementwise_rows.LOG10), [POSITIVE]),
    ("vecdot", br.vecdot, [ROWS, SHARES]),
    ("elu", F.elu, [X]),
    ("elu", with_options(F.elu, alpha=0.7), [X]),
    ("selu", F.selu, [X]),
    ("celu", with_options(F.celu, alpha=1.3), [X]),
    ("sigmoid", composed(activations.SIGMOID), [X]),
    ("logsigmoid", composed(activations.LOG_SIGMOID), [X]),
    ("softplus", F.softplus, [X]),
    ("softplus", with_options(F.softplus, beta=2.3), [X]),
    ("silu", F.silu, [X]),
    ("mish", F.mish, [X]),
    ("_gelu_of_tanh", with_options(F.gelu, approximate="tanh"), [X]),
    ("_gelu", composed(activations.GELU), [X]),
    ("glu", F.glu, [ROWS[:, :6]]),
    ("hardsigmoid", F.hardsigmoid, [X]),
    ("_hard_sigmoid", lambda x: composed(activations.HARD_SIGMOID)(x, 0.2, 0.5), [X]),
    ("hardswish", F.hardswish, [X]),
    ("softsign", F.softsign, [X]),
    ("tanhshrink", F.tanhshrink, [X]),
    ("_softmax", lambda x: composed(activations.SOFTMAX)(x, place=1), [ROWS]),
    ("_softmin", lambda x: composed(activations.SOFTMIN)(x, place=1), [ROWS]),
    ("_log_softmax", lambda x: composed(activations.LOG_SOFTMAX)(x, place=1), [ROWS]),
    ("_bicubic_sample", bicubic, [ROWS, SHARES]),
    ("_nanstd", with_options(br.nanstd, axis=1), [ROWS]),
    ("_mse_loss", with_options(F.mse_loss, reduction="none"), [ROWS, OTHERS]),
    ("_mse_loss", F.mse_loss, [ROWS, OTHERS]),
    ("_l1_loss", with_options(F.l1_loss, reduction="sum"), [ROWS, OTHERS]),
    ("_huber_loss", with_options(F.huber_loss, reduction="none", delta=0.3), [ROWS, OTHERS]),
    ("_smooth_l1_loss", with_options(F.smooth_l1_loss, reduction="none"), [ROWS, OTHERS]),
    (
        "_binary_cross_entropy",
        lambda x, y, w: F.binary_cross_entropy(x, y, "none", weight=w),
        [SHARES, POSITIVE / 30, WEIGHTS],
    ),
    (
        "_binary_cross_entropy_with_logits",
        with_options(F.binary_cross_entropy_with_logits, reduction="none"),
        [ROWS, SHARES],
    ),
    (
        "_binary_cross_entropy_with_logits",
        lambda x, y, w: F.binary_cross_entropy_with_logits(x, y, pos_weight=w),
        [ROWS, SHARES, WEIGHTS],
    ),
    ("_kl_div", with_options(F.kl_div, reduction="none"), [LOGARITHMS, SHARES]),
    ("_kl_div", with_options(F.kl_div, log_target=True), [LOGARITHMS, LOGARITHMS[::-1]]),
    ("_nll_loss", labelled(F.nll_loss, ignore_index=3), [LOGARITHMS, WEIGHTS]),
    ("_cross_entropy", labelled(F.cross_entropy, reduction="none"), [ROWS]),
    ("_cross_entropy", labelled(F.cross_entropy, label_smoothing=0.1), [ROWS, WEIGHTS]),
    ("_cross_entropy", F.cross_entropy, [ROWS, SHARES]),
    ("_ctc_loss", ctc, [LOGARITHMS.reshape(5, 2, 7) - 1]),
    ("_poisson_nll_loss", with_options(F.poisson_nll_loss, full=True), [ROWS, POSITIVE * 3]),
    (
        "_gaussian_nll_loss",
        with_options(F.gaussian_nll_loss, reduction="none"),
        [ROWS, OTHERS, POSITIVE],
    ),
    ("pairwise_distance", F.pairwise_distance, [ROWS, OTHERS]),
    ("cosine_embedding_loss", F.cosine_embedding_loss, [ROWS, OTHERS, SIGNS[:, 0]]),
    ("hinge_embedding_loss", F.hinge_embedding_loss, [ROWS, SIGNS]),
    ("margin_ranking_loss", with_options(F.margin_ranking_loss, margin=0.3), [ROWS, OTHERS, SIGNS]),
    ("triplet_margin_loss", F.triplet_margin_loss, [ROWS, OTHERS, THIRD]),
    ("_soft_margin_loss", with_options(F.soft_margin_loss, reduction="none"), [ROWS, SIGNS]),
    ("matrix_power", lambda x: br.linalg.matrix_power(x, 3), [ROWS[:7]]),
    ("polyval", br.polyval, [np.array([0.3, -1.2, 0.7]), X]),
]

each_case = pytest.mark.parametrize(
    ("function", "arrays"),
    [pytest.param(function, arrays, id=name) for name, function, arrays in CASES],
)
each_low_dtype = pytest.mark.parametrize("dtype", LOW)


def given(arrays: Sequence[np.ndarray], dtype: str, device: br.Device) -> list[br.Tensor]:
    return [br.tensor(array, device=device).astype(dtype) for array in arrays]


def bits(x: br.Tensor) -> Any:
    return x.numpy().view(np.uint16)


def steps(x: br.Tensor) -> Any:
    """Return the place of each number among those of its dtype."""
    places = bits(x).astype(np.int64)
    return np.where(places < 0x8000, places, 0x8000 - places)


def test_each_function_that_is_rounded_once_has_a_case() -> None:
    rules = "burn_remote.gradient_rules."
    functions = {one.__name__ for one in ROUNDED_ONCE if not one.__module__.startswith(rules)}
    assert {name for name, _, _ in CASES} == functions


@each_low_dtype
@each_case
def test_results_are_those_of_float64_rounded_once(
    device: br.Device, function: Function, arrays: Sequence[np.ndarray], dtype: str
) -> None:
    low = given(arrays, dtype, device)
    found = function(*low)
    assert str(found.dtype) == dtype
    exact = function(*[x.astype(br.float64) for x in low]).astype(dtype)
    distance = np.abs(steps(found) - steps(exact))
    # float32 rounds a number halfway between two of these in either direction.
    assert distance.max() <= 1
    assert (distance > 0).mean() <= 0.02


@each_low_dtype
@each_case
def test_compiled_results_have_the_same_bits(
    device: br.Device, function: Function, arrays: Sequence[np.ndarray], dtype: str
) -> None:
    low = given(arrays, dtype, device)
    np.testing.assert_array_equal(bits(br.compile(function)(*low)), bits(function(*low)))


def pulled(function: Function, tensors: Sequence[br.Tensor]) -> tuple[br.Tensor, ...]:
    """Return the gradients of the sum of the results times different numbers."""
    result, pull = br.vjp(function, *tensors)
    factors = br.sin(br.arange(result.size, device=result.device).astype(br.float32) + 1)
    # Seven bits are exact in all dtypes.
    factors = br.round(factors.reshape(result.shape) * 64) / 64
    gradients = pull(factors.astype(result.dtype))
    return gradients if isinstance(gradients, tuple) else (gradients,)


@each_low_dtype
@each_case
def test_gradients_are_computed_in_float32_and_rounded_once(
    device: br.Device, function: Function, arrays: Sequence[np.ndarray], dtype: str
) -> None:
    low = given(arrays, dtype, device)
    found = pulled(function, low)
    expected = pulled(function, [x.astype(br.float32) for x in low])
    compiled = br.compile(lambda *tensors: pulled(function, tensors))(*low)
    for one, other, third in zip(found, expected, compiled, strict=True):
        np.testing.assert_array_equal(bits(one), bits(other.astype(dtype)))
        np.testing.assert_array_equal(bits(third), bits(one))


def of_cholesky(grad: Any, x: Any, y: Any) -> Any:
    """Return Murray's equation 9 (arXiv:1602.07527), made symmetric."""
    half = np.tril(y.T @ np.tril(grad))
    half[np.diag_indices(7)] /= 2
    found = np.linalg.solve(y.T, half) @ np.linalg.inv(y)
    return (found + found.T) / 2


MATRIX: Final = ROWS[:7] + 5 * np.eye(7)
DEFINITE: Final = MATRIX @ MATRIX.T

# Functions of one row, arguments, and the gradient, given the rounded result.
RULES: Final[list[tuple[Function, np.ndarray, Callable[[Any, Any, Any], Any]]]] = [
    (br.acos, SHARES, lambda grad, x, y: -grad / np.sqrt(1 - x * x)),
    (br.acosh, POSITIVE + 1.1, lambda grad, x, y: grad / np.sqrt(x * x - 1)),
    (br.asin, SHARES, lambda grad, x, y: grad / np.sqrt(1 - x * x)),
    (br.asinh, ROWS, lambda grad, x, y: grad / np.sqrt(1 + x * x)),
    (br.atan, ROWS, lambda grad, x, y: grad / (1 + x * x)),
    (br.atanh, SHARES, lambda grad, x, y: grad / (1 - x * x)),
    (br.cos, ROWS, lambda grad, x, y: -grad * np.sin(x)),
    (br.cosh, ROWS, lambda grad, x, y: grad * np.sinh(x)),
    (br.erf, ROWS, lambda grad, x, y: grad * np.exp(-x * x) * 2 / np.sqrt(np.pi)),
    (br.expm1, ROWS, lambda grad, x, y: grad * (y + 1)),
    (br.log10, POSITIVE, lambda grad, x, y: grad / (x * np.log(10))),
    (br.log1p, POSITIVE, lambda grad, x, y: grad / (1 + x)),
    (br.log2, POSITIVE, lambda grad, x, y: grad / (x * np.log(2))),
    (br.reciprocal, POSITIVE, lambda grad, x, y: -grad * y * y),
    (br.sin, ROWS, lambda grad, x, y: grad * np.cos(x)),
    (br.sinh, ROWS, lambda grad, x, y: grad * np.cosh(x)),
    (br.tan, SHARES, lambda grad, x, y: grad * (1 + y * y)),
    (br.tanh, SHARES, lambda grad, x, y: grad * (1 - y * y)),
    (lambda x: br.atan2(x, 2.0), ROWS, lambda grad, x, y: grad * 2 / (x * x + 4)),
    (lambda x: br.atan2(2.0, x), ROWS, lambda grad, x, y: -grad * 2 / (x * x + 4)),
    (lambda x: br.full_like(x, 3) / x, ROWS, lambda grad, x, y: -grad * y / x),
    (lambda x: br.hypot(x, 2.0), ROWS, lambda grad, x, y: grad * x / y),
    (lambda x: br.logaddexp(x, 0.5), ROWS, lambda grad, x, y: grad * np.exp(x - y)),
    (F.softmax, ROWS, lambda grad, x, y: y * (grad - (grad * y).sum(1, keepdims=True))),
    (F.softmin, ROWS, lambda grad, x, y: y * ((grad * y).sum(1, keepdims=True) - grad)),
    (F.log_softmax, ROWS, lambda grad, x, y: grad - np.exp(y) * grad.sum(1, keepdims=True)),
    (br.linalg.inv, MATRIX, lambda grad, x, y: -y.T @ grad @ y.T),
    (br.linalg.cholesky, DEFINITE, of_cholesky),
]


@each_low_dtype
@pytest.mark.parametrize(("function", "array", "gradient"), RULES)
def test_gradients_of_rows_are_rounded_once(
    device: br.Device, function: Function, array: np.ndarray, gradient: Any, dtype: str
) -> None:
    (x,) = given([array], dtype, device)
    (factors,) = given([np.round(OTHERS[: len(array)] * 64) / 64], dtype, device)
    result, pull = br.vjp(function, x)
    (found,) = pull(factors)
    exact = gradient(*[each.astype(br.float64).numpy() for each in (factors, x, result)])
    expected = br.tensor(exact, device=device).astype(dtype)
    distance = np.abs(steps(found) - steps(expected))
    assert distance.max() <= 1
    assert (distance > 0).mean() <= 0.02


QUERIES, KEYS, VALUES = (rng.normal(size=(1, 2, 6, 8)) for _ in range(3))
BIAS = rng.normal(size=(1, 2, 6, 6))

# Functions of one row whose gradients take several steps.
ROWS_OF_INPUTS: Final[dict[str, tuple[Function, Sequence[np.ndarray]]]] = {
    "x ** 3": (lambda x: x**3, [X]),
    "x ** -2": (lambda x: x**-2, [X]),
    "x ** 1.7": (lambda x: x**1.7, [POSITIVE]),
    "integer powers": (lambda x: x ** br.full((7,), 3, dtype=br.int32, device=x.device), [ROWS]),
    "%": (br.remainder, [ROWS, POSITIVE]),
    "prod": (br.prod, [ROWS[:2]]),
    "prod along an axis": (with_options(br.prod, axis=1), [ROWS]),
    "cumulative_prod": (with_options(br.cumulative_prod, axis=1), [ROWS]),
    "attention": (F.scaled_dot_product_attention, [QUERIES, KEYS, VALUES, BIAS]),
    "causal attention": (
        with_options(F.scaled_dot_product_attention, is_causal=True),
        [QUERIES, KEYS, VALUES],
    ),
    "det": (br.linalg.det, [MATRIX]),
    "slogdet": (lambda x: br.linalg.slogdet(x).logabsdet, [MATRIX]),
    "eigvalsh": (br.linalg.eigvalsh, [DEFINITE]),
    "svdvals": (br.linalg.svdvals, [MATRIX]),
}


@each_low_dtype
@pytest.mark.parametrize(("function", "arrays"), [*ROWS_OF_INPUTS.values()], ids=[*ROWS_OF_INPUTS])
def test_gradients_of_rows_of_several_steps_are_rounded_once(
    device: br.Device, function: Function, arrays: Sequence[np.ndarray], dtype: str
) -> None:
    low = given(arrays, dtype, device)
    found = pulled(function, low)
    expected = pulled(function, [x.astype(br.float32) for x in low])
    for one, other in zip(found, expected, strict=True):
        if function in (br.remainder, br.linalg.det):
            # These gradients use the rounded result.
            assert np.abs(steps(one) - steps(other.astype(dtype))).max() <= 1
        else:
            np.testing.assert_array_equal(bits(one), bits(other.astype(dtype)))


def test_products_of_large_float16_have_finite_gradients(device: br.Device) -> None:
    array = np.array([300.0, 300.0, 1e-3, 1e-3])
    x = br.tensor(array, dtype=br.float16, device=device)
    for function in (br.prod, lambda x: br.prod(x, axis=0)):
        found = br.grad(function)(x).numpy().astype(float)
        np.testing.assert_allclose(found, 0.09 / array, rtol=2e-3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@each_case
def test_wide_tensors_are_not_converted(
    function: Function, arrays: Sequence[np.ndarray], dtype: str
) -> None:
    recorded = RecordingDevice()
    tensors = given(arrays, dtype, recorded)
    before = len(recorded.runner.names)
    function(*tensors)
    assert not [name for name in recorded.runner.names[before:] if name.endswith("Cast")]


@pytest.mark.parametrize(
    ("other", "expected"),
    [("float16", "float16"), ("bfloat16", "float32"), ("float32", "float32"),
     ("float64", "float64"), ("int64", "float16")],
)  # fmt: skip
def test_the_common_dtype_is_that_of_each_operation(
    device: br.Device, other: str, expected: str
) -> None:
    x, y = br.ones((3,), dtype="float16", device=device), br.ones((3,), dtype=other, device=device)
    assert str(F.mse_loss(x, y).dtype) == str((x - y).dtype) == expected
    assert str(F.mse_loss(input=y, target=x).dtype) == expected


def test_an_array_beside_float16_has_its_own_dtype(device: br.Device) -> None:
    x = br.ones((3,), dtype="float16", device=device)
    assert br.trunc_divide(x, np.ones(3, np.float64)).dtype == br.float64
    assert br.trunc_divide(x, np.ones(3, np.float16)).dtype == br.float16


def test_errors_name_the_dtype_of_the_given_tensors(device: br.Device) -> None:
    x, y = (br.ones((size,), dtype="float16", device=device) for size in (2, 3))
    with pytest.raises(br.ShapeMismatch, match="float16"), pytest.warns(UserWarning):
        F.mse_loss(x, y)


def test_squares_of_large_float16_do_not_overflow(device: br.Device) -> None:
    x = br.full((4,), 300.0, dtype="float16", device=device)
    y = br.zeros((4,), dtype="float16", device=device)
    assert F.smooth_l1_loss(x, y, beta=1000.0).item() == 45.0
    assert br.vecdot(x, br.full((4,), 300.0, dtype="float16", device=device) * SIGN).item() == 0


SIGN: Final = np.array([1, -1, 1, -1], np.float16)
