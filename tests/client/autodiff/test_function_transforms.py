"""Functions that differentiate functions, as in JAX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from support.differences import numeric_gradients

POINTS = np.array([1.0, 2.0, 3.0])
OTHERS = np.array([0.5, -1.0, 2.0])


def cubes(x: br.Tensor) -> br.Tensor:
    return (x * x * x).sum()


def test_value_and_grad_returns_both_untracked(device: br.Device) -> None:
    value, gradient = br.value_and_grad(cubes)(device.tensor(POINTS))
    assert value.item() == 36.0
    np.testing.assert_array_equal(gradient.numpy(), 3 * POINTS**2)
    assert not value.requires_grad
    assert not gradient.requires_grad


def test_argnums_chooses_the_arguments(device: br.Device) -> None:
    x, y = device.tensor(POINTS), device.tensor(OTHERS)

    def function(x: br.Tensor, y: br.Tensor, *, factor: float) -> Any:
        return (x * y * factor).sum()

    np.testing.assert_array_equal(br.grad(function, 1)(x, y, factor=2.0).numpy(), 2 * POINTS)
    first, last = br.grad(function, (0, -1))(x, y, factor=2.0)
    np.testing.assert_array_equal(first.numpy(), 2 * OTHERS)
    np.testing.assert_array_equal(last.numpy(), 2 * POINTS)
    with pytest.raises(br.ArgumentMismatch, match=r"argnums names position 2, .* the call has 2"):
        br.grad(function, 2)(x, y, factor=2.0)


@dataclass
class Layer:
    weight: br.Tensor
    bias: br.Tensor | None
    name: str


def test_gradients_have_the_containers_of_the_argument(device: br.Device) -> None:
    tree = {
        "layers": [Layer(device.tensor(POINTS), None, "a"), (device.tensor(OTHERS),)],
        "steps": device.tensor([1, 2]),
        "unused": device.tensor(POINTS),
    }

    def function(tree: Any) -> Any:
        layer, (other,) = tree["layers"]
        return (layer.weight * other).sum()

    found = br.grad(function)(tree)
    layer, (other,) = found["layers"]
    np.testing.assert_array_equal(layer.weight.numpy(), OTHERS)
    assert layer.bias is None
    np.testing.assert_array_equal(other.numpy(), POINTS)
    assert found["steps"] is None
    np.testing.assert_array_equal(found["unused"].numpy(), [0, 0, 0])


def test_arguments_of_floats_are_differentiated(device: br.Device) -> None:
    x = device.tensor(POINTS)

    def function(a: Any, x: br.Tensor) -> Any:
        return (a["scale"] * x * x).sum() + a["shift"] ** 3

    gradient = br.grad(function)({"scale": 2.0, "shift": np.float32(3.0)}, x)
    assert gradient["scale"].dtype is br.float64
    assert gradient["scale"].item() == (POINTS**2).sum()
    assert gradient["shift"].item() == 27.0
    by_jvp = br.jvp(lambda a, x: (a * x).sum(), (2.0, x), (0.5, x))[1]
    assert by_jvp.item() == 0.5 * POINTS.sum() + 2 * POINTS.sum()
    assert br.vjp(lambda a, x: a * x, 2.0, x)[1](x)[0].item() == (POINTS**2).sum()
    compiled = br.compile(br.grad(lambda a, x: (a**3 * x).sum()))
    for a in (1.0, 2.0, 3.0):
        assert compiled(a, x).item() == 3 * a**2 * POINTS.sum()


def test_a_float_alone_is_differentiated_on_the_default_device(
    device: br.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("burn_remote.function_transforms.default_device", lambda: device)
    assert br.grad(lambda x: x * x)(3.0).item() == 6.0
    assert br.grad(br.grad(lambda x: x**3))(2.0).item() == 12.0
    with pytest.raises(br.ArgumentMismatch, match=r"tensor or number: it is 3;"):
        br.grad(lambda x: x * x)(3)


def test_numbers_beside_tensors_are_not_differentiated(device: br.Device) -> None:
    tree = {"weight": device.tensor(POINTS), "rate": 0.5}
    gradient = br.grad(lambda tree: (tree["weight"] * tree["rate"]).sum())(tree)
    assert gradient["rate"] is None


def test_auxiliary_results_are_returned_untracked(device: br.Device) -> None:
    def function(x: br.Tensor) -> tuple[br.Tensor, dict[str, Any]]:
        return cubes(x), {"twice": x * 2.0, "name": "a"}

    (value, aux), gradient = br.value_and_grad(function, has_aux=True)(device.tensor(POINTS))
    assert value.item() == 36.0
    assert aux["name"] == "a"
    assert not aux["twice"].requires_grad
    again, aux = br.grad(function, has_aux=True)(device.tensor(POINTS))
    np.testing.assert_array_equal(again.numpy(), gradient.numpy())
    np.testing.assert_array_equal(aux["twice"].numpy(), 2 * POINTS)


def test_gradients_nest(device: br.Device) -> None:
    third: Callable[..., br.Tensor] = cubes
    for _ in range(2):
        inner = br.grad(third)
        third = lambda x, inner=inner: inner(x).sum()  # noqa: E731
    np.testing.assert_array_equal(br.grad(third)(device.tensor(POINTS)).numpy(), [6, 6, 6])


def test_an_inner_gradient_is_that_of_its_argument_only(device: br.Device) -> None:
    """``d/dx (x * d/dy (x * y))`` at ``y = x``: the inner function holds ``x`` constant."""

    def function(x: br.Tensor) -> Any:
        inner = br.grad(lambda y: (x * y).sum())(x)
        return (x * inner).sum()

    np.testing.assert_array_equal(br.grad(function)(device.tensor(POINTS)).numpy(), 2 * POINTS)


def test_gradients_around_tracked_tensors_are_tracked(device: br.Device) -> None:
    w = device.tensor(OTHERS).requires_grad_()
    gradient = br.grad(lambda x: (x * x * w).sum())(device.tensor(POINTS))
    gradient.sum().backward()
    assert w.grad is not None
    np.testing.assert_array_equal(w.grad.numpy(), 2 * POINTS)


def test_functions_are_differentiated_inside_no_grad(device: br.Device) -> None:
    w = device.tensor(OTHERS).requires_grad_()
    with br.no_grad():
        gradient = br.grad(lambda x: (x * w).sum())(device.tensor(POINTS))
    np.testing.assert_array_equal(gradient.numpy(), OTHERS)
    assert not gradient.requires_grad


def test_vjp_returns_a_function_that_may_be_called_again(device: br.Device) -> None:
    def function(x: br.Tensor, y: br.Tensor) -> dict[str, br.Tensor]:
        return {"product": x * y, "square": y * y}

    x, y = device.tensor(POINTS), device.tensor(OTHERS)
    value, multiply = br.vjp(function, x, y)
    np.testing.assert_array_equal(value["product"].numpy(), POINTS * OTHERS)
    for factor in (1.0, 2.0):
        seeds = {"product": device.tensor(POINTS * factor), "square": device.tensor(OTHERS)}
        of_x, of_y = multiply(seeds)
        np.testing.assert_array_equal(of_x.numpy(), factor * POINTS * OTHERS)
        np.testing.assert_array_equal(of_y.numpy(), factor * POINTS**2 + 2 * OTHERS**2)
    with pytest.raises(br.ShapeMismatch, match="the cotangent is"):
        multiply({"product": device.tensor(1.0), "square": y})
    with pytest.raises(br.ArgumentMismatch, match="square"):
        multiply({"product": y})
    _, _, aux = br.vjp(lambda x: (x * x, "more"), x, has_aux=True)
    assert aux == "more"


def test_jvp_multiplies_by_the_jacobian(device: br.Device) -> None:
    def function(x: br.Tensor, y: br.Tensor) -> tuple[br.Tensor, br.Tensor]:
        return br.exp(x) * y, y.sum()

    arrays = (POINTS, OTHERS)
    directions = (OTHERS, POINTS)
    primals, tangents = [[device.tensor(one) for one in pair] for pair in (arrays, directions)]
    value, found = br.jvp(function, primals, tangents)
    np.testing.assert_allclose(value[0].numpy(), np.exp(POINTS) * OTHERS)
    np.testing.assert_allclose(found[0].numpy(), np.exp(POINTS) * (OTHERS * OTHERS + POINTS))
    np.testing.assert_allclose(found[1].numpy(), POINTS.sum())
    assert not found[0].requires_grad


def test_jvp_of_a_constant_is_zero(device: br.Device) -> None:
    x = device.tensor(POINTS)
    _, found = br.jvp(lambda y: x * 2.0, [x], [x])
    np.testing.assert_array_equal(found.numpy(), [0, 0, 0])


@pytest.mark.parametrize("order", [1, 2])
def test_a_checkpoint_has_the_same_gradients(order: int, device: br.Device) -> None:
    calls = []

    @br.checkpoint
    def block(x: br.Tensor, y: br.Tensor) -> dict[str, Any]:
        calls.append(1)
        return {"a": br.exp(x) * y, "b": [x * y * y]}

    def loss(x: br.Tensor, y: br.Tensor) -> Any:
        made = block(x, y)
        return (made["a"] * made["b"][0]).sum()

    def slope(x: br.Tensor, y: br.Tensor) -> Any:
        gradient = br.grad(loss)(x, y)
        return (gradient * gradient).sum()

    function = loss if order == 1 else slope
    found = br.grad(function, (0, 1))(device.tensor(POINTS), device.tensor(OTHERS))
    if order == 1:
        assert len(calls) == 2
    expected = numeric_gradients(function, device, POINTS, OTHERS)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=1e-4, atol=1e-4)


def test_a_checkpoint_keeps_only_the_arguments(device: br.Device) -> None:
    def count(function: Callable[[br.Tensor], br.Tensor]) -> int:
        x = device.tensor(POINTS).requires_grad_()
        y = function(x)
        nodes, saved = [y.handle.source], set()  # type: ignore[attr-defined]
        while nodes:
            node = nodes.pop()
            for handle in getattr(node, "saved", None) or ():
                saved.add(handle.id)
            nodes += [one for one in getattr(node, "parents", ()) if one is not None]
        return len(saved)

    def chain(x: br.Tensor) -> br.Tensor:
        for _ in range(10):
            x = br.exp(x * 0.1)
        return x

    assert count(chain) == 10
    assert count(br.checkpoint(chain)) == 1


def test_a_checkpoint_refuses_what_a_second_call_would_not_repeat(device: br.Device) -> None:
    x, w = (device.tensor(POINTS).requires_grad_() for _ in range(2))
    with pytest.raises(br.UsageError, match="draws random numbers"):
        br.checkpoint(lambda x: x * br.random.uniform((3,), device=device))(x)
    with pytest.raises(br.UsageError, match="draws random numbers"):
        br.checkpoint(lambda x: br.functional.dropout(x, 0.5))(x)
    with pytest.raises(br.UsageError, match="a tracked tensor that is not one of its arguments"):
        br.checkpoint(lambda x: x * w)(x)
    br.random.uniform((3,), device=device)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: br.grad(x), br.ArgumentMismatch, r"autograd\.grad"),
        (lambda x: br.grad(lambda x: x * 2.0)(x), br.UsageError, "return a sum or a mean"),
        (lambda x: br.grad(lambda x: 3.0)(x), br.ArgumentMismatch, "not 3.0"),
        (lambda x: br.grad(lambda x: x.sum())(3), br.ArgumentMismatch, "it is 3"),
        (
            lambda x: br.grad(lambda x: x.sum())(x.astype(br.int64)),
            br.ArgumentMismatch,
            r"argument 0 has no gradient, .*int64\[3\]",
        ),
        (
            lambda x: br.value_and_grad(lambda x: x.sum(), has_aux=True)(x),
            br.ArgumentMismatch,
            "must return a pair",
        ),
        (lambda x: br.vjp(lambda x: x > 1.0, x), br.ArgumentMismatch, r"not bool\[3\]"),
    ],
)
def test_what_cannot_be_differentiated_is_refused(
    call: Callable[[br.Tensor], object], error: type[Exception], text: str, device: br.Device
) -> None:
    with pytest.raises(error, match=text):
        call(device.tensor(POINTS))


def test_the_second_function_of_vjp_can_be_differentiated(device: br.Device) -> None:
    x = device.tensor(POINTS)
    _, multiply = br.vjp(lambda x: x * x, x)
    gradient = br.grad(lambda c: multiply(c)[0].sum())(device.tensor(OTHERS))
    np.testing.assert_array_equal(gradient.numpy(), 2 * POINTS)


def test_jvp_can_be_differentiated_by_its_tangents(device: br.Device) -> None:
    x = device.tensor(POINTS)
    gradient = br.grad(lambda t: br.jvp(lambda x: x * x, (x,), (t,))[1].sum())(
        device.tensor(OTHERS)
    )
    np.testing.assert_array_equal(gradient.numpy(), 2 * POINTS)


def test_auxiliary_results_pass_gradients_of_outer_arguments(device: br.Device) -> None:
    x = device.tensor(POINTS)

    def by_value_and_grad(w: br.Tensor) -> Any:
        (_, aux), _ = br.value_and_grad(lambda x: ((x * x).sum(), w * 3), has_aux=True)(x)
        return aux.sum()

    def by_vjp(w: br.Tensor) -> Any:
        *_, aux = br.vjp(lambda x: ((x * x).sum(), w * 3), x, has_aux=True)
        return aux.sum()

    for function in (by_value_and_grad, by_vjp):
        gradient = br.grad(function)(device.tensor(OTHERS))
        np.testing.assert_array_equal(gradient.numpy(), [3.0, 3.0, 3.0])


def test_auxiliary_results_do_not_stay_tracked_for_the_arguments(device: br.Device) -> None:
    (_, aux), _ = br.value_and_grad(lambda x: ((x * x).sum(), x * 3), has_aux=True)(
        device.tensor(POINTS)
    )
    assert not aux.requires_grad


def test_equal_gradients_are_objects_of_their_own(device: br.Device) -> None:
    found = br.grad(lambda p: (p["a"] * p["b"].detach() + p["b"]).sum())(
        {"a": device.tensor(1.0), "b": device.tensor(1.0)}
    )
    found["a"].requires_grad_()
    assert not found["b"].requires_grad
    x, y = (device.tensor(POINTS).requires_grad_() for _ in range(2))
    gradient = device.tensor(OTHERS)
    (x + y).backward(gradient)
    assert x.grad is not None
    x.grad.requires_grad_()
    assert not y.grad.requires_grad
    assert not gradient.requires_grad
