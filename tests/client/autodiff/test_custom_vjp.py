"""Functions with gradients of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import burn_remote as br
from support.differences import numeric_gradients

POINTS = np.array([-1.5, -0.25, 0.5, 2.0])


def softplus_forward(x: br.Tensor) -> tuple[br.Tensor, Any]:
    y = br.exp(x)
    return br.log(y + 1.0), y


def softplus_backward(y: Any, grad: br.Tensor) -> br.Tensor:
    softplus_calls.append("backward")
    slope: br.Tensor = y / (y + 1.0)
    return grad * slope


softplus_calls: list[str] = []


@br.custom_vjp(softplus_forward, softplus_backward)
def softplus(x: br.Tensor) -> br.Tensor:
    softplus_calls.append("plain")
    return br.log(br.exp(x) + 1.0)


def scaled_forward(x: br.Tensor, factor: float, y: br.Tensor) -> tuple[Any, Any]:
    return (x * y * factor, x + y), (x, y, {"factor": factor})


def scaled_backward(residuals: Any, grads: Any) -> Any:
    x, y, options = residuals
    product, total = grads
    product = product * options["factor"]
    return product * y + total, None, product * x + total


@br.custom_vjp(scaled_forward, scaled_backward)
def scaled(x: br.Tensor, factor: float, y: br.Tensor) -> Any:
    return x * y * factor, x + y


def test_the_own_gradient_is_used_instead_of_that_of_the_operations(device: br.Device) -> None:
    softplus_calls.clear()
    x = device.tensor(POINTS).requires_grad_()
    softplus(x).sum().backward()
    assert softplus_calls == ["backward"]
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), 1 / (1 + np.exp(-POINTS)))


def test_without_tracked_arguments_only_the_function_is_called(device: br.Device) -> None:
    softplus_calls.clear()
    x = device.tensor(POINTS)
    softplus(x)
    with br.no_grad():
        softplus(x.requires_grad_())
    assert softplus_calls == ["plain", "plain"]


def test_gradients_of_gradients_pass_residuals_that_are_computed_again(device: br.Device) -> None:
    def slope(x: br.Tensor) -> br.Tensor:
        gradient: br.Tensor = br.grad(lambda x: softplus(x).sum())(x)
        return (gradient * gradient).sum()

    found = br.grad(slope)(device.tensor(POINTS))
    (expected,) = numeric_gradients(slope, device, POINTS)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("order", [1, 2])
def test_several_arguments_and_results_have_gradients(order: int, device: br.Device) -> None:
    def loss(x: br.Tensor, y: br.Tensor) -> Any:
        product, total = scaled(x, 3.0, y=y)
        return (product * product * total).sum()

    def slope(x: br.Tensor, y: br.Tensor) -> Any:
        gradient = br.grad(loss)(x, y)
        return (gradient * gradient).sum()

    function = loss if order == 1 else slope
    arrays = (POINTS, POINTS[::-1].copy())
    found = br.grad(function, (0, 1))(*map(device.tensor, arrays))
    expected = numeric_gradients(function, device, *arrays)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=1e-5)


def test_a_result_that_is_not_used_has_the_gradient_zero(device: br.Device) -> None:
    x = device.tensor(POINTS).requires_grad_()
    scaled(x, 3.0, device.tensor(POINTS))[1].sum().backward()
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), np.ones(4))


def test_a_tracked_tensor_that_is_no_argument_is_refused(device: br.Device) -> None:
    hidden = device.tensor(POINTS).requires_grad_()

    @br.custom_vjp(lambda x: (x * hidden, x), lambda x, grad: grad)
    def function(x: br.Tensor) -> br.Tensor:
        return x * hidden

    with pytest.raises(br.UsageError, match="tracked tensor that is not one of its arguments"):
        function(device.tensor(POINTS).requires_grad_())


def test_a_wrong_number_of_gradients_is_refused(device: br.Device) -> None:
    @br.custom_vjp(lambda x, y: (x * y, x), lambda x, grad: grad)
    def function(x: br.Tensor, y: br.Tensor) -> br.Tensor:
        return x * y

    x = device.tensor(POINTS).requires_grad_()
    with pytest.raises(br.ArgumentMismatch, match="for each of 2 arguments"):
        function(x, x).sum().backward()


def test_tensors_in_containers_are_arguments_of_the_gradient(device: br.Device) -> None:
    def forward(tree: Any, x: br.Tensor) -> Any:
        return x * tree["a"][0], (tree["a"][0], x)

    def backward(residuals: Any, grad: br.Tensor) -> Any:
        a, x = residuals
        return {"a": [(grad * x * 10.0).sum(), None]}, grad * a

    @br.custom_vjp(forward, backward)
    def product(tree: Any, x: br.Tensor) -> Any:
        return x * tree["a"][0]

    x = device.tensor([1.0, 2.0, 3.0]).requires_grad_()
    a, unused = device.tensor(2.0), device.tensor([4.0])
    product({"a": [a, unused]}, x).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [2.0, 2.0, 2.0])
    a.requires_grad_()
    product({"a": [a, unused]}, x.detach()).sum().backward()
    assert a.grad.item() == 60.0  # ten times the derivative, by the given function
    product({"a": [a, unused]}, x).sum().backward()
    assert a.grad.item() == 120.0


def test_a_gradient_in_other_containers_raises(device: br.Device) -> None:
    @br.custom_vjp(lambda pair: (pair[0] * 2, ()), lambda _, grad: ({"a": grad},))
    def double(pair: Any) -> Any:
        return pair[0] * 2

    x = device.tensor(1.0).requires_grad_()
    with pytest.raises(br.ArgumentMismatch, match="containers differ"):
        double([x]).backward()


def test_second_derivatives_of_residuals_that_were_drawn_at_random_raise(
    device: br.Device,
) -> None:
    def forward(x: br.Tensor) -> Any:
        mask = br.random.uniform(x.shape, device=device)
        return (x * mask).sum(), mask

    masked: Any = br.custom_vjp(forward, lambda mask, grad: grad * mask)(lambda x: forward(x)[0])
    x = device.tensor(np.ones(8, np.float32)).requires_grad_()
    loss = masked(x)
    (first,) = br.autograd.grad(loss, x, retain_graph=True)
    assert first is not None
    assert first.sum().item() == pytest.approx(loss.item())
    with pytest.raises(br.UsageError, match="draws random numbers"):
        br.autograd.grad(loss, x, create_graph=True)


def test_checkpoint_refuses_compiled_functions_that_draw_random_numbers(
    device: br.Device,
) -> None:
    @br.compile
    def noisy(x: br.Tensor) -> Any:
        return x * br.random.uniform(x.shape, device=device)

    x = device.tensor(np.ones(8, np.float32))
    noisy(x)  # records the graph
    with pytest.raises(br.UsageError, match="draws random numbers"):
        br.checkpoint(lambda x: noisy(x))(x.requires_grad_())


def test_checkpoint_refuses_a_captured_variable_that_was_assigned_since(
    device: br.Device,
) -> None:
    x = device.tensor([1.0, 2.0]).requires_grad_()
    total = device.tensor(0.0)
    for factor in (device.tensor([1.0, 1.0]), device.tensor([2.0, 2.0])):
        total = total + br.checkpoint(lambda x: x * factor)(x).sum()  # noqa: B023
    with pytest.raises(br.UsageError, match="'factor', which was assigned since"):
        total.backward()


@pytest.mark.parametrize("decorator", [br.checkpoint, br.no_grad, br.enable_grad])
def test_decorators_refuse_anything_but_a_function(decorator: Any, device: br.Device) -> None:
    with pytest.raises(br.ArgumentMismatch, match=r"takes a function, not .*Tensor$"):
        decorator(device.tensor([1.0]))


def test_checkpoint_accepts_captured_variables_that_stay(device: br.Device) -> None:
    x, factor, count = device.tensor([1.0, 2.0]).requires_grad_(), device.tensor([3.0, 4.0]), 2.5
    result = br.checkpoint(lambda x: x * factor * count)(x).sum()
    count = 5.0 / 2
    result.backward()
    np.testing.assert_array_equal(x.grad.numpy(), [7.5, 10.0])
