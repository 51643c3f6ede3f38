"""Public functions of floating-point tensors have the gradients of finite differences.

Those that have none are listed here, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest

import burn_remote as br
from support import calls
from support.calls import calling_on, public_call, public_functions

Array = np.ndarray[Any, Any]

STEP: Final = 1e-6
BOUND: Final = 1e-5

# Floating-point results that do not depend on the elements of the arguments.
CONSTANT: Final = frozenset(
    {
        *("burn_remote.empty_like", "burn_remote.full_like", "burn_remote.ones_like"),
        *("burn_remote.zeros_like", "Tensor.detach", "functional.running_statistics"),
        "burn_remote.imag",  # of real numbers: zeros
    }
)
# Functions that are compared with finite differences elsewhere, and why.
ELSEWHERE: Final = {
    "burn_remote.custom": "needs a server with such an operation; see test_edges",
    "burn_remote.dequantize": "casts a float64 argument to float32; see gradient_cases",
    "Tensor.dequantize": "the same",
    "burn_remote.fake_quantize": "has the gradient of the identity by design; see test_edges",
    "burn_remote.nextafter": "refuses a gradient",
    "linalg.cholesky": "reads one triangle of symmetric matrices; see gradient_cases",
    "linalg.eig": "its results are complex; see gradient_cases",
    "linalg.eigvals": "the same",
    "linalg.eigh": "reads one triangle of symmetric matrices; see gradient_cases",
    "linalg.eigvalsh": "the same",
    "functional.dropout": "draws other elements in each call; see test_edges",
    "functional.ctc_loss": "its gradient holds for log-probabilities; see gradient_cases",
}
# Functions that are about gradients themselves, or about files.
WITHOUT_OPERATIONS: Final = frozenset(
    {
        *("Tensor.backward", "Tensor.register_hook", "Tensor.requires_grad_"),
        "Tensor.retain_grad",
        *("burn_remote.jvp", "burn_remote.vjp", "burn_remote.load_safetensors"),
        *("burn_remote.load", "burn_remote.save"),
        *("burn_remote.safetensors_metadata", "burn_remote.save_safetensors"),
    }
)

NAMES: Final = [
    name
    for name in public_functions()
    if name.split(".")[0] in ("burn_remote", "functional", "linalg", "Tensor")
    and name not in calls.WITHOUT_A_DEVICE | WITHOUT_OPERATIONS | {*ELSEWHERE}
]


class Leaves:
    """Makes the floating-point arguments of calls: tracked, in float64, with known elements."""

    def __init__(self, device: br.Device) -> None:
        self._device = device
        self.changed: dict[int, Array] = {}
        self.tensors: list[br.Tensor] = []

    def make(self, *shape: int) -> br.Tensor:
        place = len(self.tensors)
        array = self.changed.get(place)
        if array is None:
            array = np.random.default_rng(place).uniform(0.2, 0.8, size=shape)
        self.tensors.append(br.tensor(array, device=self._device).requires_grad_())
        return self.tensors[-1]


@pytest.fixture
def leaves(device: br.Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[Leaves]:
    made = Leaves(device)
    monkeypatch.setattr(calls, "f", made.make)
    with calling_on(device):
        yield made


def floats_in(result: Any) -> list[br.Tensor]:
    if isinstance(result, br.Tensor):
        return [result] if result.dtype.is_floating else []
    if isinstance(result, tuple | list):
        return [one for each in result for one in floats_in(each)]
    return []


def weights_of(results: list[br.Tensor]) -> list[br.Tensor]:
    random = np.random.default_rng(5)
    return [
        br.tensor(random.normal(size=one.shape), device=one.device, dtype=one.dtype)
        for one in results
    ]


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_agrees_with_finite_differences(name: str, leaves: Leaves) -> None:
    call = public_call(name)
    leaves.tensors = []
    results = floats_in(call())
    inputs = leaves.tensors
    if not results or not inputs:
        return
    tracked = [one for one in results if one.requires_grad]
    if name in CONSTANT or not tracked:
        assert not tracked
        assert name in CONSTANT, f"{name} lost the track of its argument"
        return
    weights = weights_of(tracked)
    found = br.autograd.grad(tracked, inputs, weights, allow_unused=True)

    def total(place: int, array: Array) -> float:
        leaves.changed, leaves.tensors = {place: array}, []
        again = [one for one in floats_in(call()) if one.requires_grad]
        pairs = zip(again, weights, strict=True)
        return sum(float((one.detach() * weight).sum().item()) for one, weight in pairs)

    for place, (x, gradient) in enumerate(zip(inputs, found, strict=True)):
        original = x.detach().numpy()
        expected = np.zeros(x.shape)
        for index in np.ndindex(x.shape):
            sides = []
            for sign in (1, -1):
                moved = original.copy()
                moved[index] += sign * STEP
                sides.append(total(place, moved))
            expected[index] = (sides[0] - sides[1]) / (2 * STEP)
        seen = np.zeros(x.shape) if gradient is None else gradient.numpy()
        np.testing.assert_allclose(seen, expected, rtol=BOUND, atol=BOUND, err_msg=f"input {place}")
