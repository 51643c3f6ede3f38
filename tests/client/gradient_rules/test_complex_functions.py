"""Gradients of functions of complex numbers, compared with finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import burn_remote as br

FUNCTIONS: Final[dict[str, Callable[[Any], Any]]] = {
    **{
        name: getattr(br, name)
        for name in (
            "abs", "acos", "acosh", "angle", "asin", "asinh", "atan", "atanh", "conj", "cos",
            "cosh", "exp", "exp2", "expm1", "imag", "log", "log10", "log1p", "log2", "negative",
            "real", "reciprocal", "sign", "sin", "sinh", "sqrt", "square", "tan", "tanh",
        )
    },
    "pow": lambda z: z ** (1 + 2j),
    "pow of a number": lambda z: 2.0**z,
    "pow of itself": lambda z: z**z,
    "quotient": lambda z: (1 + 1j) / z,
}  # fmt: skip

# One number per quadrant, inside and outside the unit circle.
ELEMENTS: Final = np.array(
    [0.4 + 0.3j, -0.6 + 0.2j, -0.3 - 0.5j, 0.7 - 0.4j, 1.4 + 0.9j, -1.7 + 1.2j, -1.1 - 1.6j, 2 - 1j]
)
WEIGHTS: Final = np.exp(1j * np.arange(len(ELEMENTS)))
STEP: Final = 1e-6


def _gradient(function: Callable[[Any], Any], elements: Any, weights: Any, device: Any) -> Any:
    """Return the leaf and the gradient of the real part of the weighted sum of results."""
    z = br.tensor(elements, device=device, requires_grad=True)
    loss = br.real(function(z) * br.tensor(weights, device=device)).sum()
    (gradient,) = br.autograd.grad(loss, [z], create_graph=True)
    return z, gradient


def _differences(function: Callable[[Any], Any]) -> Any:
    """Return the gradient of a real function of each element alone, by central differences."""
    along = (function(ELEMENTS + STEP) - function(ELEMENTS - STEP)) / (2 * STEP)
    across = (function(ELEMENTS + STEP * 1j) - function(ELEMENTS - STEP * 1j)) / (2 * STEP)
    return along + 1j * across


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_complex_functions_agree_with_finite_differences(
    name: str, device: br.Device
) -> None:
    function = FUNCTIONS[name]

    def parts(elements: Any) -> Any:
        return (function(br.tensor(elements, device=device)).numpy() * WEIGHTS).real

    _, gradient = _gradient(function, ELEMENTS, WEIGHTS, device)
    np.testing.assert_allclose(gradient.numpy(), _differences(parts), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_second_gradients_of_complex_functions_agree_with_finite_differences(
    name: str, device: br.Device
) -> None:
    function = FUNCTIONS[name]
    direction = np.exp(2j * np.arange(len(ELEMENTS)))

    def parts(elements: Any) -> Any:
        return (_gradient(function, elements, WEIGHTS, device)[1].detach().numpy() * direction).real

    z, gradient = _gradient(function, ELEMENTS, WEIGHTS, device)
    if not gradient.requires_grad:  # the function is linear
        np.testing.assert_allclose(_differences(parts), 0, atol=1e-8)
        return
    (second,) = br.autograd.grad(br.real(gradient * br.tensor(direction, device=device)).sum(), [z])
    assert second is not None
    np.testing.assert_allclose(second.numpy(), _differences(parts), rtol=1e-5, atol=1e-7)
