"""Random programs with gradients have the results of the CPU; ``make fuzz-torch`` runs more."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in the dependency group oracle")
brt = importlib.import_module("burn_remote.torch")
pytestmark = pytest.mark.torch

# Programs of one test, and tests.
PROGRAMS, CHUNKS = 30, 5


@pytest.fixture(scope="module")
def device() -> Any:
    return brt.local()


@pytest.mark.parametrize("first", range(0, PROGRAMS * CHUNKS, PROGRAMS))
def test_random_programs_have_the_gradients_of_the_cpu(device: Any, first: int) -> None:
    from differential.torch_autograd import compare, generated

    steps = sum(compare(generated(seed), device) for seed in range(first, first + PROGRAMS))
    assert steps > 5 * PROGRAMS  # most steps of most programs are carried out


def test_a_wrong_gradient_is_found_and_shrunk(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from differential import torch_autograd

    monkeypatch.setitem(
        torch_autograd.UNARY, "sin", lambda x, a, b: x.sin() * (1 if x.device.type == "cpu" else 2)
    )
    sine = torch_autograd.Step("sin", (0, 0, 0, 0))
    view = torch_autograd.Step("view (view)", (1, 0, 0, 0))
    program = torch_autograd.Program(0, "float64", (((3,), True),), (view, sine, view))
    monkeypatch.setitem(
        torch_autograd.STEPS,
        "sin",
        lambda m, a, b, c, d: torch_autograd.UNARY["sin"](m.pick(a), b, c),
    )
    with pytest.raises(torch_autograd.Difference, match="not close") as caught:
        torch_autograd.compare(program, device)
    least, _ = torch_autograd.shrunk(program, device, caught.value)
    assert least.steps == (sine,)
