"""Gradients of the rows that update indexed elements: assign, add, multiply, minimum, maximum.

An index may occur several times. Added values all get the gradient. Equal extremes share it evenly,
as in PyTorch's ``scatter_reduce``; in ``ScatterNd``, each gets the whole gradient, as in Burn. Of
several assigned values, only the one that is kept gets a gradient. Which one is kept is not
specified. The gradient finds it by repeating the assignment, so the device must keep the same one
again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

from burn_remote.autodiff.custom_vjp import custom_vjp
from burn_remote.autodiff.rule_table import joint
from burn_remote.dispatch.operators import Operator, counted, reshaped
from burn_remote.functions.arithmetic import divide, multiply
from burn_remote.functions.logic import equal, greater, logical_or, not_equal
from burn_remote.functions.selection import mask_fill, where
from burn_remote.gradient_rules.spreading import as_numbers, ones, zeros
from burn_remote_protocol.dtypes import I64
from burn_remote_protocol.errors import UsageError
from burn_remote_protocol.operations.families import base, floats
from burn_remote_protocol.tensors import TensorSpec

if TYPE_CHECKING:
    from burn_remote.autodiff.rule_table import PastCall
    from burn_remote.functions.tensor import Tensor
    from burn_remote_protocol.operations.row import Row

IS_NAN: Final = Operator(floats.IS_NAN)

Gradients = dict[str, "Tensor | None"]


class _Update:
    """A row that updates indexed elements, the row that reads them, and the names of its fields."""

    def __init__(
        self, row: Row, reader: Row, tensor: str, value: str, update: str, *, is_shared: bool
    ) -> None:
        self._row = Operator(row)
        self._reader = Operator(reader)
        self._tensor, self._value = tensor, value
        self._is_shared = is_shared
        uses_all = (tensor, "indices", value, "out")
        joint(row, ("indices",), when=(update, "Assign"))(self._of_assigned)
        joint(row, ("indices",), when=(update, "Add"))(self._of_added)
        joint(row, uses_all[:3], when=(update, "Mul"))(self._of_multiplied)
        joint(row, uses_all, when=(update, "Min"))(self._of_extreme)
        joint(row, uses_all, when=(update, "Max"))(self._of_extreme)

    def _put(self, call: PastCall, x: Tensor, values: Tensor, update: str) -> Tensor:
        """Return ``x`` with its indexed elements updated."""
        inputs: tuple[Tensor, ...] = (x, call["indices"], values)
        return self._row.apply(inputs, (*self._axis(call), update))

    def _pick(self, call: PastCall, x: Tensor) -> Tensor:
        """Return the indexed elements of ``x``."""
        inputs: tuple[Tensor, ...] = (x, call["indices"])
        return self._reader.apply(inputs, self._axis(call))

    @staticmethod
    def _axis(call: PastCall) -> tuple[int, ...]:
        return (call.parameters["dim"],) if "dim" in call.parameters else ()

    def _of_added(self, call: PastCall) -> Gradients:
        (grad,) = call.grads
        picked = self._pick(call, grad) if call.needs(self._value) else None
        return {self._tensor: grad, self._value: picked}

    def _of_assigned(self, call: PastCall) -> Gradients:
        (grad,) = call.grads
        found: Gradients = {}
        spec = call.spec(self._value)
        if call.needs(self._tensor):
            found[self._tensor] = self._put(call, grad, zeros(grad, spec), "Assign")
        if call.needs(self._value):
            # Number the values and assign the numbers. Those that remain identify the values that
            # were kept.
            numbers = counted(grad.__class__, grad.handle.client, spec.size)
            numbers = reshaped(numbers, spec.shape)
            places = zeros(grad, TensorSpec(call.spec(self._tensor).shape, I64))
            kept = self._pick(call, self._put(call, places, numbers, "Assign"))
            found[self._value] = mask_fill(self._pick(call, grad), not_equal(kept, numbers), 0)
        return found

    def _of_multiplied(self, call: PastCall) -> Gradients:
        (grad,) = call.grads
        x, values = call[self._tensor], call[self._value]
        found: Gradients = {}
        if call.needs(self._tensor):
            factors = self._put(call, ones(grad, x.handle.spec), values, "Mul")
            found[self._tensor] = multiply(grad, factors)
        if call.needs(self._value):
            others = self._other_factors(call, x.detach(), values.detach())
            others = _without_second_order(others, values)
            found[self._value] = multiply(self._pick(call, multiply(grad, x)), others)
        return found

    def _other_factors(self, call: PastCall, x: Tensor, values: Tensor) -> Tensor:
        """Return, for each value, the product of the other values with the same index."""
        is_zero = equal(values, 0)
        nonzero = mask_fill(values, is_zero, 1)
        spec = x.handle.spec
        zero_counts = self._put(call, zeros(x, spec), as_numbers(is_zero, x), "Add")
        zero_count = self._pick(call, zero_counts)
        product = self._pick(call, self._put(call, ones(x, spec), nonzero, "Mul"))
        of_zero = mask_fill(product, greater(zero_count, 1), 0)
        of_nonzero = mask_fill(divide(product, nonzero), greater(zero_count, 0), 0)
        return where(is_zero, of_zero, of_nonzero)

    def _of_extreme(self, call: PastCall) -> Gradients:
        (grad,) = call.grads
        out = call["out"].detach()
        x, values = call[self._tensor].detach(), call[self._value].detach()
        old = as_numbers(_is_kept(x, out), grad)
        new = as_numbers(_is_kept(values, self._pick(call, out)), grad)
        share = divide(grad, self._put(call, old, new, "Add")) if self._is_shared else grad
        return {
            self._tensor: multiply(share, old),
            self._value: multiply(self._pick(call, share), new),
        }


def _refuse(residuals: object, grad: Tensor) -> NoReturn:
    raise UsageError(
        "the second derivative of elements that were updated by multiplication is not implemented; "
        "read the elements, multiply them, and assign the products"
    )


@custom_vjp(lambda others, values: (others, ()), _refuse)
def _without_second_order(others: Tensor, values: Tensor) -> Tensor:
    """Return a derivative whose own derivatives by ``values`` are refused.

    Where one of several values with the same index is 0, the quotients in ``_other_factors`` are
    right, but their derivatives are not.
    """
    return others


def _is_kept(x: Tensor, extreme: Tensor) -> Tensor:
    return logical_or(equal(x, extreme), IS_NAN.unary(x))


_Update(base.SELECT_ASSIGN, base.SELECT, "tensor", "value", "update", is_shared=True)
_Update(base.SCATTER, base.GATHER, "tensor", "value", "update", is_shared=True)
_Update(base.SCATTER_ND, base.GATHER_ND, "data", "values", "reduction", is_shared=False)
