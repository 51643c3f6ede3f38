"""Gradients at ties, zeros, bounds, NaN, in empty tensors, and where there is none."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import burn_remote as br
from burn_remote import functional as F
from burn_remote.dispatch.operators import Operator
from burn_remote_protocol.operations.families import base
from support.runners import RecordingDevice

Function = Callable[[Any], Any]

NAN, INF = math.nan, math.inf
THIRD = 1 / 3

# A function of one tensor, its elements, and the gradient of the sum of its results. The values are
# those of PyTorch 2.15, or limits that are known exactly.
EDGES: Final[dict[str, tuple[Function, Any, Any]]] = {
    "relu at 0": (br.functional.relu, [-1.0, 0.0, 2.0], [0, 0, 1]),
    "relu6 at its bounds": (F.relu6, [0.0, 3.0, 6.0], [0, 1, 0]),
    "hardtanh at its bounds": (F.hardtanh, [-1.0, 0.5, 1.0], [0, 1, 0]),
    "hardswish at its bounds": (F.hardswish, [-3.0, 3.0], [0, 1]),
    "leaky_relu at 0": (F.leaky_relu, [0.0, -1.0, 1.0], [0.01, 0.01, 1]),
    "elu at 0": (lambda x: F.elu(x, 0.5), [0.0, 1000.0, -1000.0], [0.5, 1, 0]),
    "celu at 0": (lambda x: F.celu(x, 0.5), [0.0, 1000.0, -1000.0], [1, 1, 0]),
    "prelu at 0": (lambda x: F.prelu(x, br.full_like(x[:1], 0.5)), [0.0, -1.0, 1.0], [0.5, 0.5, 1]),
    "softshrink at its bounds": (F.softshrink, [-0.5, 0.5, 0.7], [0, 0, 1]),
    "softplus at its limit": (F.softplus, [40.0, 1000.0, -1000.0], [1, 1, 0]),
    "sigmoid of large numbers": (F.sigmoid, [0.0, 1000.0, -1000.0], [0.25, 0, 0]),
    "gelu of large numbers": (F.gelu, [0.0, 1e200, -1e200], [0.5, 1, 0]),
    "silu of large numbers": (F.silu, [0.0, 1000.0, -1000.0], [0.5, 1, 0]),
    "max_pool1d of padding only": (
        lambda x: F.max_pool1d(x.reshape(1, 1, 2), 2, 2, 1, dilation=3),
        [1.0, 2.0],
        [0, 0],
    ),
    "max_pool2d of padding in some windows": (
        lambda x: F.max_pool2d(x.reshape(1, 1, 1, 2), 2, 1, 2),
        [1.0, 2.0],
        [2, 4],
    ),
    "clip at its bounds": (lambda x: x.clip(0, 1), [0.0, 0.5, 1.0, 2.0], [0, 1, 0, 0]),
    "clip of infinities": (lambda x: x.clip(0, 1), [INF, -INF], [0, 0]),
    "abs at 0": (br.abs, [0.0, -0.0, -2.0], [0, 0, -1]),
    "sign": (br.sign, [0.0, 3.0], [0, 0]),
    "floor at a step": (br.floor, [1.0, 1.5], [0, 0]),
    "sqrt at 0": (br.sqrt, [0.0, 4.0], [INF, 0.25]),
    "log at 0": (br.log, [0.0, 2.0], [INF, 0.5]),
    "the square of 0": (lambda x: x**2, [0.0, 3.0], [0, 6]),
    "0 to the power 0": (lambda x: x**0, [0.0, 3.0], [0, 0]),
    "0 to the power 1": (lambda x: x**1.0, [0.0, 3.0], [1, 1]),
    "0 to the power 0.5": (lambda x: x**0.5, [0.0, 4.0], [INF, 0.25]),
    "exponents of base 0": (lambda x: br.zeros_like(x) ** x, [0.0, 1.0, 2.0], [0, 0, 0]),
    "remainder of a rounded quotient": (
        lambda x: br.ones_like(x) % x,
        # 1.0 % 0.1 is 1.0 - 9 * 0.1, although 1.0 / 0.1 rounds to 10.
        [0.1, 0.3],
        [-9, -3],
    ),
    "product with one zero": (br.prod, [2.0, 0.0, 3.0], [0, 6, 0]),
    "product with two zeros": (br.prod, [0.0, 0.0, 3.0], [0, 0, 0]),
    "cumulative product with zeros": (br.cumulative_prod, [2.0, 0.0, 3.0], [1, 8, 0]),
    "maximum with ties": (br.max, [1.0, 3.0, 3.0, 3.0], [0, THIRD, THIRD, THIRD]),
    "minimum of an axis with ties": (
        lambda x: x.min(axis=1),
        [[1.0, 1.0], [2.0, 1.0]],
        [[0.5, 0.5], [0, 1]],
    ),
    "maximum with its index, ties": (
        lambda x: x.max_with_indices(0)[0],
        [1.0, 3.0, 3.0],
        [0, 1, 0],
    ),
    "maximum of absolute values, ties": (br.max_abs, [-3.0, 3.0, 1.0], [-0.5, 0.5, 0]),
    "maximum of zeros": (br.max_abs, [0.0, 0.0], [0, 0]),
    "cumulative maximum, ties": (br.cummax, [1.0, 3.0, 3.0, 2.0], [1, 1, 2, 0]),
    "maximum of equal tensors": (lambda x: br.maximum(x, x * 1), [1.0, 2.0], [1, 1]),
    "standard deviation of equal numbers": (br.std, [2.0, 2.0, 2.0], [0, 0, 0]),
    # The mean of six numbers 0.1 is not 0.1.
    "standard deviation of numbers with a rounded mean": (br.std, [0.1] * 6, [0] * 6),
    "standard deviation of rows": (
        lambda x: x.std(axis=1),
        [[1.0, 3.0], [0.7, 0.7]],
        [[-0.5, 0.5], [0, 0]],
    ),
    "standard deviation of one number": (br.std, [2.0], [0]),
    "standard deviation of one number, corrected": (
        lambda x: br.std(x, correction=1),
        [2.0],
        [NAN],
    ),
    "variance of equal numbers": (br.var, [2.0, 2.0], [0, 0]),
    "norm of zeros": (br.vector_norm, [0.0, 0.0], [0, 0]),
    "common norm of zeros": (lambda x: br.optim.global_norm([x, x]), [0.0, 0.0], [0, 0]),
    "common 3-norm of zeros": (lambda x: br.optim.global_norm([x], 3), [0.0, 0.0], [0, 0]),
    "angle of the origin": (lambda x: br.atan2(x, x), [0.0, 2.0], [0, 0]),
    "angle of points on the axes": (
        lambda x: br.atan2(x, br.tensor([0.0, 0.0, 2.0, -2.0], dtype=x.dtype, device=x.device)),
        [0.0, 2.0, 0.0, 0.0],
        [0, 0, 0.5, -0.5],
    ),
    "angle of complex 0": (lambda x: br.angle(br.complex(x, x * 2)), [0.0, 1.0], [0, 0]),
    "length of 0": (lambda x: br.hypot(x, x * 2), [0.0], [0]),
    "3-norms of zeros": (
        lambda x: br.vector_norm(x, ord=3, axis=1),
        [[0.0, 0.0], [0.0, -2.0]],
        [[0, 0], [0, -1]],
    ),
    "1.5-norms of zeros": (
        lambda x: br.vector_norm(x, ord=1.5, axis=1),
        [[0.0, 0.0], [0.0, -2.0]],
        [[0, 0], [0, -1]],
    ),
    # The derivative by a number that is 0 is infinite on both sides, with opposite signs.
    "0.5-norms of zeros": (
        lambda x: br.vector_norm(x, ord=0.5, axis=1),
        [[0.0, 0.0], [0.0, -2.0], [4.0, 1.0]],
        [[0, 0], [0, -1], [1.5, 3]],
    ),
    "norms with a negative exponent": (
        lambda x: br.vector_norm(x, ord=-1, axis=1),
        [[0.0, 0.0], [0.0, -2.0], [1.0, 1.0]],
        [[0, 0], [0, 0], [0.25, 0.25]],
    ),
    "normalize of zeros by the 3-norm": (
        lambda x: F.normalize(x, p=3, dim=0),
        [0.0, 0.0],
        [1e12, 1e12],
    ),
    "3-distance of equal vectors": (
        lambda x: F.pairwise_distance(x, x.detach(), p=3, eps=0.0),
        [[1.0, 2.0]],
        [[0, 0]],
    ),
    "normalize of zeros": (lambda x: F.normalize(x, dim=0), [0.0, 0.0], [1e12, 1e12]),
    "layer norm of equal numbers": (lambda x: F.layer_norm(x, 3), [[1.0, 1, 1]], [[0, 0, 0]]),
    "softmax of large numbers": (
        lambda x: F.softmax(x)[0, 0],
        [[1000.0, 1000.0, -1000.0]],
        [[0.25, -0.25, 0]],
    ),
    "log_softmax of large numbers": (
        lambda x: F.log_softmax(x)[0, 2],
        [[1000.0, 0.0, -1000.0]],
        [[-1, 0, 1]],
    ),
    "softmax with a hidden class": (
        lambda x: F.softmax(x)[0, 0],
        [[0.0, 0.0, -INF]],
        [[0.25, -0.25, 0]],
    ),
    "cross-entropy of large numbers": (
        lambda x: F.cross_entropy(x, br.tensor([0], device=x.device)),
        [[-1000.0, 1000.0]],
        [[-1, 1]],
    ),
    "cross-entropy of probabilities 0 and 1": (
        lambda x: F.binary_cross_entropy(x, x.detach()),
        [0.0, 1.0],
        [0, 0],
    ),
    "Huber loss of equal numbers": (lambda x: F.huber_loss(x, x.detach()), [1.0], [0]),
    "where with NaN on the other side": (
        lambda x: br.where(x > 0, x, x.detach() * NAN),
        [1.0, 2.0],
        [1, 1],
    ),
    "where with a number and NaN masked": (
        lambda x: (x * NAN).mask_fill(x > 0, 1.0),
        [1.0, 2.0],
        [NAN, NAN],
    ),
    "where with a safe argument": (
        lambda x: br.where(x > 0, br.log(br.where(x > 0, x, 1.0)), 0.0),
        [0.0, 2.0],
        [0, 0.5],
    ),
    "a repeated input": (lambda x: x * x + x, [3.0], [7]),
    "a tensor joined with itself": (lambda x: br.concat([x, x * 2, x]), [1.0, 2.0], [4, 4]),
    "a repeated index": (lambda x: x[[0, 0, 2]], [1.0, 2.0, 3.0], [2, 0, 1]),
    "a negative step": (lambda x: x[::-2] * br.tensor([1.0, 2, 3], device=x.device, dtype=x.dtype),
                        [0.0, 0, 0, 0, 0], [3, 0, 2, 0, 1]),
    "an empty slice": (lambda x: x[2:2], [1.0, 2.0, 3.0], [0, 0, 0]),
    "an empty tensor": (lambda x: br.mean(x, axis=0), np.zeros((0, 2)), np.zeros((0, 2))),
    "an empty matrix product": (lambda x: x @ x.T, np.zeros((2, 0)), np.zeros((2, 0))),
    "rank 0": (lambda x: x * x, 3.0, 6.0),
    "rank 0 broadcast": (lambda x: x * br.ones((2, 3), device=x.device, dtype=x.dtype), 3.0, 6.0),
}  # fmt: skip


@pytest.mark.parametrize("name", EDGES)
def test_the_gradient_at_the_edge_is_known(name: str, device: br.Device) -> None:
    function, elements, expected = EDGES[name]
    x = br.tensor(np.array(elements, np.float64), device=device).requires_grad_()
    (found,) = br.autograd.grad(function(x).sum(), x)
    assert found is not None
    np.testing.assert_allclose(
        found.numpy(), np.array(expected, np.float64), rtol=1e-12, atol=1e-300, strict=True
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda x: br.optim.global_norm([x]),
        lambda x: br.atan2(x, x).sum(),
        br.std,
        br.vector_norm,
        br.var,
        lambda x: br.vector_norm(x, ord=3),
        lambda x: br.vector_norm(x, ord=1.5),
        lambda x: br.vector_norm(x, ord=0.5),
    ],
    ids=["common norm", "angle", "std", "norm", "var", "3-norm", "1.5-norm", "0.5-norm"],
)
def test_second_gradients_of_a_zero_norm_are_finite(function: Function, device: br.Device) -> None:
    x = br.tensor(np.zeros(3), device=device).requires_grad_()
    (first,) = br.autograd.grad(function(x), x, create_graph=True)
    assert first is not None
    (second,) = br.autograd.grad((first * first).sum(), x)
    assert second is not None
    np.testing.assert_array_equal(second.numpy(), np.zeros(3))


@pytest.mark.parametrize("dtype", [br.float16, br.bfloat16, br.float32], ids=str)
def test_the_gradient_of_the_angle_of_a_distant_point_does_not_overflow(
    dtype: br.DType, device: br.Device
) -> None:
    y, x = (br.full((2,), 512.0, dtype=dtype, device=device).requires_grad_() for _ in range(2))
    found = br.autograd.grad(br.atan2(y, x).sum(), [y, x])
    expected = np.full(2, 1 / 1024)
    np.testing.assert_array_equal(found[0].numpy(), expected)  # type: ignore[union-attr]
    np.testing.assert_array_equal(found[1].numpy(), -expected)  # type: ignore[union-attr]


@pytest.mark.parametrize("update", ["Assign", "Min", "Max"])
@pytest.mark.parametrize("row", [base.SELECT_ASSIGN, base.SCATTER], ids=str)
def test_values_that_were_not_kept_have_no_gradient(
    row: Any, update: str, device: br.Device
) -> None:
    x = br.tensor([1.0, 1.0, 1.0], device=device)
    values = br.tensor([5.0, -6.0, 7.0], device=device).requires_grad_()
    indices = br.tensor([2, 2, 2], device=device)
    out = Operator(row).apply((x, indices, values), (0, update))
    (found,) = br.autograd.grad(out.sum(), values)
    assert found is not None
    kept = out.detach().numpy()[2]
    np.testing.assert_array_equal(found.numpy(), values.detach().numpy() == kept)


def test_equal_extremes_share_the_gradient_in_scatter(device: br.Device) -> None:
    x = br.tensor([4.0, 1.0], device=device).requires_grad_()
    values = br.tensor([4.0, 4.0], device=device).requires_grad_()
    out = x.scatter(0, br.tensor([0, 0], device=device), values, update="max")
    found = br.autograd.grad(out.sum(), [x, values])
    np.testing.assert_allclose(found[0].numpy(), [1 / 3, 1])  # type: ignore[union-attr]
    np.testing.assert_allclose(found[1].numpy(), [1 / 3, 1 / 3])  # type: ignore[union-attr]


def test_equal_extremes_each_have_the_gradient_in_scatter_nd_as_in_burn(device: br.Device) -> None:
    x = br.tensor([4.0, 1.0], device=device).requires_grad_()
    values = br.tensor([4.0], device=device).requires_grad_()
    out = x.scatter_nd(br.tensor([[0]], device=device), values, update="max")
    found = br.autograd.grad(out.sum(), [x, values])
    np.testing.assert_allclose(found[0].numpy(), [1, 1])  # type: ignore[union-attr]
    np.testing.assert_allclose(found[1].numpy(), [1])  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", [br.float16, br.bfloat16, br.float32])
def test_a_gradient_has_the_dtype_of_its_tensor(dtype: br.DType, device: br.Device) -> None:
    x = br.tensor([1.0, 2.0], device=device, dtype=dtype).requires_grad_()
    (found,) = br.autograd.grad((x.astype(br.float64) ** 2).sum(), x)
    assert found is not None
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.astype(br.float32).numpy(), [2, 4])


@pytest.mark.parametrize("name", ["std", "var", "softmax", "layer_norm", "gelu", "vector_norm"])
@pytest.mark.parametrize("dtype", [br.float16, br.bfloat16])
def test_functions_of_low_precision_have_gradients_of_it(
    name: str, dtype: br.DType, device: br.Device
) -> None:
    functions: dict[str, Function] = {
        "std": lambda x: br.std(x),
        "var": lambda x: br.var(x, axis=1),
        "softmax": lambda x: F.softmax(x)[0],
        "layer_norm": lambda x: F.layer_norm(x, 3)[:, 0],
        "gelu": F.gelu,
        "vector_norm": lambda x: br.vector_norm(x, axis=1),
    }
    array = np.array([[0.5, 1.0, -2.0], [4.0, 0.25, 1.0]])
    found = []
    for each in (dtype, br.float64):
        x = br.tensor(array, device=device).astype(each).requires_grad_()
        (gradient,) = br.autograd.grad(functions[name](x).astype(br.float64).sum(), x)
        assert gradient is not None and gradient.dtype == each
        found.append(gradient.astype(br.float64).numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=0.02, atol=0.02)


def test_more_equal_elements_than_float16_can_count_share_the_gradient(device: br.Device) -> None:
    x = br.zeros((100_000,), dtype=br.float16, device=device).requires_grad_()
    (found,) = br.autograd.grad(x.max(), x)
    assert found is not None
    np.testing.assert_array_equal(found.numpy(), np.full(100_000, 1e-5, np.float16))


def test_integers_end_a_gradient(device: br.Device) -> None:
    x = br.tensor([1.5, 2.5], device=device).requires_grad_()
    assert not x.astype(br.int32).requires_grad
    assert not (x > 2).requires_grad
    assert not x.argmax().requires_grad
    assert not br.random.normal((2,), device=device).requires_grad


def test_a_quantized_weight_refuses_a_gradient_and_says_what_to_write(device: br.Device) -> None:
    x = br.tensor(np.ones((2, 32), np.float32), device=device).requires_grad_()
    loss = x.quantize(br.quant_scheme(block=32)).dequantize().sum()
    with pytest.raises(br.UsageError, match=r"Dequantize.*straight-through.*fake_quantize"):
        loss.backward()


def test_a_straight_through_gradient_passes_a_quantized_weight(device: br.Device) -> None:
    x = br.tensor(np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32), device=device)
    x.requires_grad_()
    scheme = br.quant_scheme("Q4S", block=32)
    rounded = x.detach().quantize(scheme).dequantize()
    for function in (br.fake_quantize, br.compile(br.fake_quantize)):
        through = function(x, scheme)
        np.testing.assert_array_equal(through.detach().numpy(), rounded.numpy())
        (found,) = br.autograd.grad((through * through).sum(), x)
        assert found is not None
        np.testing.assert_array_equal(found.numpy(), 2 * rounded.numpy())


@pytest.mark.parametrize("dtype", [br.float16, br.bfloat16, br.float64])
def test_fake_quantization_keeps_the_dtype(device: br.Device, dtype: br.DType) -> None:
    x = br.tensor(np.linspace(-1, 1, 8), device=device, dtype=dtype)
    rounded = br.fake_quantize(x)
    assert rounded.dtype == dtype
    expected = x.quantize().dequantize().astype(dtype)
    np.testing.assert_array_equal(rounded.numpy(), expected.numpy())


def test_fake_quantization_refuses_what_quantization_refuses(device: br.Device) -> None:
    with pytest.raises(br.DTypeMismatch, match="only floating-point"):
        br.fake_quantize(br.ones((4,), dtype=br.int64, device=device))


def test_a_custom_operation_refuses_a_gradient() -> None:
    x = br.tensor([1.0, 2.0], device=RecordingDevice()).requires_grad_()
    out = br.custom("double", x, outputs=br.TensorSpec((2,), br.float32))
    with pytest.raises(br.UsageError, match=r"Custom.*custom_vjp"):
        br.autograd.grad(out.sum(), x)


def test_dropout_passes_gradients_where_it_keeps_elements(device: br.Device) -> None:
    x = br.tensor(np.ones(1000), device=device).requires_grad_()
    out = F.dropout(x, 0.25)
    (found,) = br.autograd.grad(out.sum(), x)
    assert found is not None
    np.testing.assert_array_equal(found.numpy(), out.detach().numpy())
    assert 0 < np.count_nonzero(found.numpy()) < 1000


def cofactors(a: Any) -> Any:
    """Return the signed determinants of the matrices without one row and one column."""
    size = len(a)
    return np.array(
        [
            [
                (-1) ** (i + j) * np.linalg.det(np.delete(np.delete(a, i, 0), j, 1))
                for j in range(size)
            ]
            for i in range(size)
        ]
    )


DRAWN: Final = np.random.default_rng(0).normal(size=(4, 3, 3))
MATRICES: Final[dict[str, Any]] = {
    "regular": DRAWN[0],
    "of rank 2": np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1.0, 0.0, 1.0]]),
    "of rank 1": np.outer([1.0, 2.0, 3.0], [1.0, 1.0, 2.0]),
    "of zeros": np.zeros((3, 3)),
    "the number zero": np.zeros((1, 1)),
    "almost singular": np.arange(1.0, 10.0).reshape(3, 3),
    "of large and small numbers": np.array([[1e10, 1.0], [1.0, 1e-5]]),
    "complex": DRAWN[1] + 1j * DRAWN[2],
    "complex and of rank 2": np.stack([[1, 2j, 3], [1j, -2, 3j], [1, 0, 1 + 1j]]),
}


@pytest.mark.parametrize("name", MATRICES)
def test_the_gradient_of_a_determinant_is_its_cofactors(device: br.Device, name: str) -> None:
    a = MATRICES[name]
    x = br.tensor(a, device=device)
    gradient = br.grad(lambda x: br.real(br.linalg.det(x)).sum())
    for found in (gradient(x), gradient(br.stack([x, x + 1]))[0]):
        np.testing.assert_allclose(found.numpy(), np.conj(cofactors(a)), rtol=1e-8, atol=1e-12)


def test_second_derivatives_of_determinants_need_regular_matrices(device: br.Device) -> None:
    def of(x: br.Tensor) -> Any:
        return br.grad(br.linalg.det)(x)[0, 0]

    equal_values = br.eye(3, dtype=br.float64, device=device)
    found = br.grad(of)(equal_values).numpy()
    np.testing.assert_allclose(found, np.diag([0.0, 1.0, 1.0]), atol=1e-12)
    singular = br.grad(of)(br.zeros((3, 3), dtype=br.float64, device=device))
    with pytest.raises(br.OperationFailed, match="singular"):
        singular.numpy()
