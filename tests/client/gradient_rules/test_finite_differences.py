"""Every gradient rule agrees with finite differences in float64, in first and second order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote.autodiff.rule_table import RULES, Never
from burn_remote_protocol.operations.table import TABLE
from support.differences import numeric_gradients
from support.gradient_cases import CASES, Case

Array = np.ndarray[Any, Any]

STEP = 1e-6
SECOND_BOUND = 1e-5
# Second derivatives are compared along this many random directions.
DIRECTIONS = 3


def tensors(arrays: Sequence[Array], device: br.Device) -> list[br.Tensor]:
    return [br.tensor(array, device=device, dtype=br.float64) for array in arrays]


def assert_close(found: Any, expected: Any, bound: float) -> None:
    error = np.abs(found - expected).max(initial=0) / (1 + np.abs(expected).max(initial=0))
    assert error <= bound, f"relative error {error:.1e}\n{found}\n{expected}"


def elements(gradient: br.Tensor | None, shape: tuple[int, ...]) -> Array:
    return np.zeros(shape) if gradient is None else gradient.numpy()


def weighted(case: Case, device: br.Device) -> Callable[..., br.Tensor]:
    """Return the sum of the case's results with random weights, as a function of its inputs."""
    shape = case.function(*tensors(case.inputs, device)).shape
    weights = br.tensor(np.random.default_rng(7).normal(size=shape), device=device)
    return lambda *inputs: (case.function(*inputs) * weights).sum()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_first_gradient_agrees_with_finite_differences(case: Case, device: br.Device) -> None:
    function = weighted(case, device)
    leaves = [x.requires_grad_() for x in tensors(case.inputs, device)]
    found = br.autograd.grad(function(*leaves), leaves, allow_unused=True)
    arrays = [array.astype(np.float64) for array in case.inputs]
    expected = numeric_gradients(function, device, *arrays)
    for gradient, wanted in zip(found, expected, strict=True):
        seen = elements(gradient, wanted.shape)
        assert seen.shape == wanted.shape
        assert_close(seen, wanted, case.bound)


def slope(function: Any, inputs: Sequence[Array], device: br.Device) -> float:
    """Return the sum of all first derivatives with random weights."""
    random = np.random.default_rng(8)
    leaves = [x.requires_grad_() for x in tensors(inputs, device)]
    found = br.autograd.grad(function(*leaves), leaves, allow_unused=True)
    weights = [np.asarray(random.normal(size=one.shape)) for one in inputs]
    pairs = zip(found, weights, strict=True)
    return sum(float((elements(one, weight.shape) * weight).sum()) for one, weight in pairs)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_second_gradient_agrees_or_is_refused(case: Case, device: br.Device) -> None:
    function = weighted(case, device)
    leaves = [x.requires_grad_() for x in tensors(case.inputs, device)]
    first = br.autograd.grad(function(*leaves), leaves, create_graph=True, allow_unused=True)
    random = np.random.default_rng(8)
    weights = [np.asarray(random.normal(size=array.shape)) for array in case.inputs]
    pairs = [
        (one, weight)
        for one, weight in zip(first, tensors(weights, device), strict=True)
        if one is not None and one.requires_grad
    ]
    second: Sequence[Any] = [None] * len(leaves)
    if case.second_order_refusal is not None:
        with pytest.raises(br.UsageError, match=case.second_order_refusal):
            br.autograd.grad([one for one, _ in pairs], leaves, [way for _, way in pairs])
        return
    if pairs:
        second = br.autograd.grad(
            [one for one, _ in pairs], leaves, [way for _, way in pairs], allow_unused=True
        )
    found = [elements(one, x.shape) for one, x in zip(second, leaves, strict=True)]
    for _ in range(DIRECTIONS):
        ways = [np.asarray(random.normal(size=array.shape)) for array in case.inputs]
        sides = [
            [array + sign * STEP * way for array, way in zip(case.inputs, ways, strict=True)]
            for sign in (1, -1)
        ]
        above, below = [slope(function, side, device) for side in sides]
        seen = sum(float((one * way).sum()) for one, way in zip(found, ways, strict=True))
        assert_close(seen, (above - below) / (2 * STEP), max(SECOND_BOUND, case.bound))


def test_every_row_has_a_rule_or_a_reason() -> None:
    missing = [str(row) for row in TABLE.values() if row not in RULES]
    assert not missing
    for row in TABLE.values():
        entry = RULES[row]
        if isinstance(entry, Never):
            assert len(entry.reason) > 15, row


def test_every_row_with_a_rule_has_a_case() -> None:
    ruled = {str(row) for row in TABLE.values() if not isinstance(RULES[row], Never)}
    assert ruled == {str(case.row) for case in CASES}
