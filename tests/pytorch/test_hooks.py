"""Errors of hooks leave backward passes on burn devices."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

from support.torch_comparison import drawn

torch = pytest.importorskip("torch", reason="PyTorch is in the dependency group oracle")
brt = importlib.import_module("burn_remote.torch")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def device() -> Any:
    return brt.local()


def failing(*_: Any) -> Any:
    raise ValueError("of the hook")


def interrupted(*_: Any) -> Any:
    raise KeyboardInterrupt


def hooked_module(x: Any) -> Any:
    layer = torch.nn.Linear(3, 3).to(x.device)
    layer.register_full_backward_hook(failing)
    return layer(x)


def hooked_node(x: Any) -> Any:
    result = x.sin()
    result.grad_fn.register_hook(failing)
    return result


def hooked_leaf(x: Any, hook: Callable[..., Any] = failing) -> Any:
    x.register_hook(hook)
    return x.sin()


def hooked_accumulation(x: Any) -> Any:
    x.register_post_accumulate_grad_hook(failing)
    return x.sin()


def hooked_saved_tensors(x: Any) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda one: one, failing):
        return x.sin()


def hooked_backward_inside_a_hook(x: Any) -> Any:
    def hook(grad: Any) -> None:
        with torch.enable_grad():
            hooked_leaf(x.detach().requires_grad_()).sum().backward()

    result = x.sin()
    result.register_hook(hook)
    return result


@pytest.mark.parametrize(
    "make",
    [
        hooked_accumulation,
        hooked_backward_inside_a_hook,
        hooked_leaf,
        hooked_module,
        hooked_node,
        hooked_saved_tensors,
    ],
)
def test_an_error_of_a_hook_leaves_the_backward_pass(
    device: Any, make: Callable[[Any], Any]
) -> None:
    x = drawn(device, 2, 3).requires_grad_()
    with pytest.raises(ValueError, match="of the hook") as caught:
        make(x).sum().backward()
    assert caught.traceback[-1].name == "failing"
    y = drawn(device, 2, 3).requires_grad_()
    (y * 3).sum().backward()
    assert y.grad.tolist() == [[3.0] * 3] * 2


def test_an_interrupted_hook_interrupts_the_program(device: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        hooked_leaf(drawn(device, 3).requires_grad_(), interrupted).sum().backward()
