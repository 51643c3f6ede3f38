"""Sums of compiled functions whose intermediate results have different memory layouts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import burn_remote as br

# Each makes a temporary tensor in Fortran order, which dies in an operation with one in C order.
# The order of the result decides the order of the additions.
FUNCTIONS: dict[str, Callable[[br.Tensor], br.Tensor]] = {
    "the second operand dies": lambda x: br.atan2(x, x.T + 0.1).sum(),
    "the first operand dies": lambda x: br.atan2(x.T + 0.1, x).sum(),
    "an operand in C order dies": lambda x: br.hypot(x.T, x + 0.1).sum(),
    "three axes": lambda x: ((br.stack([x, x]).mT * 0.7) + br.stack([x, -x])).sum(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("size", [3, 40, 300])
def test_a_compiled_sum_has_the_bits_of_single_operations(name: str, size: int) -> None:
    function = FUNCTIONS[name]
    compiled = br.compile(function)
    random = np.random.default_rng(0)
    for _ in range(8):
        x = br.tensor(random.normal(size=(size, size)), device="local")
        expected = float(function(x))
        assert [float(compiled(x)) for _ in range(2)] == [expected] * 2


INPUT_FUNCTIONS: dict[str, Callable[[br.Tensor, br.Tensor], br.Tensor]] = {
    "the first operand dies": lambda x, y: br.atan2(y * 0.7, x).sum(),
    "the second operand dies": lambda x, y: br.atan2(x, y * 0.7).sum(),
    "both come from inputs": lambda x, y: br.hypot(x + 0.1, y * 0.7).sum(),
    "later in a chain": lambda x, y: br.atan2((y * 0.7).exp() + 1, x).sum(),
    "beside a number": lambda x, y: (br.atan2(y * 0.7 + 0.1, 2.0 * y) * x).sum(),
}


@pytest.mark.parametrize("name", INPUT_FUNCTIONS)
@pytest.mark.parametrize("size", [3, 40])
def test_a_compiled_sum_has_the_bits_of_single_operations_for_inputs_in_any_order(
    name: str, size: int
) -> None:
    function = INPUT_FUNCTIONS[name]
    compiled = br.compile(function)
    random = np.random.default_rng(0)
    for _ in range(8):
        x, y = (br.tensor(random.normal(size=(size, size)), device="local") for _ in range(2))
        for inputs in ((x, y), (x, y.T), (x.T, y), (x.T, y.T), (x, y)):
            assert float(compiled(*inputs)) == float(function(*inputs))
