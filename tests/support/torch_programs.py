"""The registry of PyTorch programs that tests run on the CPU and on burn devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.torch_comparison import drawn

torch = pytest.importorskip("torch", reason="PyTorch is in the dependency group oracle")
nn: Any = torch.nn

__all__ = ["PROGRAMS", "leaf", "made", "perceptron", "program", "trained", "weights_of"]

# Name -> a program: from a device to results, all of whose numbers are drawn on the CPU.
PROGRAMS: dict[str, Callable[[Any], Any]] = {}


def program(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Add a function to ``PROGRAMS``."""
    name = function.__name__.replace("_", " ")
    assert name not in PROGRAMS
    PROGRAMS[name] = function
    return function


def leaf(device: Any, *shape: int, seed: int = 0) -> Any:
    """Return normal random numbers that require a gradient."""
    return drawn(device, *shape, seed=seed).requires_grad_()


def made(device: Any, build: Callable[[], Any]) -> Any:
    """Return a module with the same weights on every device."""
    torch.manual_seed(5)
    return build().to(device)


def perceptron() -> Any:
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3))


def weights_of(model: Any) -> list[Any]:
    """Return copies of a module's parameters."""
    return [p.detach().clone() for p in model.parameters()]


def trained(model: Any, device: Any, optimizer: Any, steps: int = 3, width: int = 6) -> Any:
    """Train a module for some steps; return copies of its parameters."""
    for step in range(steps):
        optimizer.zero_grad()
        model(drawn(device, 4, width, seed=step)).square().mean().backward()
        optimizer.step()
    return weights_of(model)
