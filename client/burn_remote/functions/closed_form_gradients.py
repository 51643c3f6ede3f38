"""Decorators for functions of one tensor whose gradient is simpler than those of their operations.

The operations inside such a function are not recorded. That saves memory and operations, and avoids
NaN where one of them has an infinite slope.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from burn_remote.autodiff.custom_vjp import custom_vjp
from burn_remote.functions.complex_numbers import adjoint

if TYPE_CHECKING:
    from burn_remote.functions.tensor import Tensor

__all__ = ["gradient_from_argument", "gradient_from_result"]

Function = TypeVar("Function", bound=Callable[..., Any])
# Takes the saved tensor, the gradient of the result, and the function's keyword arguments.
Backward = Callable[..., Any]


def gradient_from_result(backward: Backward) -> Callable[[Function], Function]:
    """Decorate a function of one tensor: ``backward(result, grad, **options)`` is its gradient."""
    return _with_gradient(backward, lambda x, result: result)


def gradient_from_argument(backward: Backward) -> Callable[[Function], Function]:
    """Decorate a function of one tensor: ``backward(x, grad, **options)`` is its gradient."""
    return _with_gradient(backward, lambda x, result: x)


def _with_gradient(
    backward: Backward, saved: Callable[[Any, Any], Any]
) -> Callable[[Function], Function]:
    """Return a decorator; ``saved(x, result)`` is the tensor that ``backward`` takes."""

    def decorate(function: Function) -> Function:
        def forward(x: Tensor, **options: Any) -> tuple[Any, Any]:
            result = function(x, **options)
            return result, (saved(x, result), options)

        return custom_vjp(forward, apply)(function)

    def apply(residuals: Any, grad: Any) -> Any:
        tensor, options = residuals
        # The formulas are those of real numbers. For a function of complex numbers with a complex
        # derivative, the gradient is the product with its conjugate: docs/gradients.md.
        return adjoint(backward(tensor, adjoint(grad), **options))

    return decorate
