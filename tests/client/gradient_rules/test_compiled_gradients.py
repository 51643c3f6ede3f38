"""Every gradient rule gives the same bits in a compiled function as outside of it."""

from __future__ import annotations

import numpy as np
import pytest

import burn_remote as br
from support import gradient_cases
from support.gradient_cases import CASES, Case
from support.kernels import Array


class Constants:
    """The fixed tensors of a case, which a compiled function takes as arguments."""

    def __init__(self) -> None:
        self.tensors: list[br.Tensor] = []
        self._given: list[br.Tensor] | None = None

    def give(self, tensors: list[br.Tensor]) -> None:
        """Give these tensors to the next calls of ``like``, in this order."""
        self._given = [*tensors]

    def like(self, x: br.Tensor, array: Array) -> br.Tensor:
        """Take the place of the function that uploads fixed arrays."""
        if self._given is not None:
            return self._given.pop(0)  # a compiled function must not leave arguments behind
        self.tensors.append(br.tensor(array, device=x.device))
        return self.tensors[-1]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_compiled_gradient_has_the_bits_of_the_eager_one(
    case: Case, device: br.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = Constants()
    monkeypatch.setattr(gradient_cases, "_like", constants.like)
    inputs = [br.tensor(array, device=device, dtype=br.float64) for array in case.inputs]
    shape = case.function(*inputs).shape
    weights = br.tensor(np.random.default_rng(7).normal(size=shape), device=device)
    fixed, constants.tensors = constants.tensors, []

    def gradients(
        xs: list[br.Tensor], fixed: list[br.Tensor], weights: br.Tensor
    ) -> tuple[br.Tensor, ...]:
        constants.give(fixed)
        loss = br.grad(
            lambda *xs: (case.function(*xs) * weights).sum(), argnums=tuple(range(len(xs)))
        )
        found: tuple[br.Tensor, ...] = loss(*xs)
        return found

    expected = gradients(inputs, fixed, weights)
    compiled = br.compile(gradients)
    compiled(inputs, fixed, weights)
    followed = compiled(inputs, fixed, weights)
    for one, other in zip(followed, expected, strict=True):
        assert one.numpy().tobytes() == other.numpy().tobytes()
