"""Joint rules that compute gradients of float16 and bfloat16 in float32 and round them once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from burn_remote.functions.casting import LOW_PRECISION, at_least_float32, converted_to

if TYPE_CHECKING:
    from burn_remote.autodiff.rule_table import PastCall

__all__ = ["jointly_rounded_once"]

Gradients = Mapping[str, Any]
Function = Callable[["PastCall"], Gradients]


def jointly_rounded_once(function: Function) -> Function:
    """Decorate the function of a joint rule, below ``joint``; its row has no lists of tensors.

    The function gets float32 in place of float16 and bfloat16, and each gradient that it returns is
    converted to the dtype of its input. ``spec`` still has the dtypes of the operation.
    """

    def rounded(call: PastCall) -> Gradients:
        dtypes = {grad.dtype for grad in call.grads if grad is not None}
        if dtypes.isdisjoint(LOW_PRECISION):
            return function(call)
        found = function(call.converted(at_least_float32))
        return {
            name: None if grad is None else converted_to(grad, call.spec(name).dtype)
            for name, grad in found.items()
        }

    return rounded
