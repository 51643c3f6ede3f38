"""Ctrl-C in a PyTorch program on a burn device loses that call and nothing else."""

from __future__ import annotations

import dis
import gc
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from support.interrupts import InterruptAfterCall, Walk
from support.servers import RunningServer, server

torch = pytest.importorskip("torch", reason="PyTorch is in the dependency group oracle")
brt = importlib.import_module("burn_remote.torch")
device_registry = importlib.import_module("burn_remote.torch.device_registry")
engine_errors = importlib.import_module("burn_remote.torch.backward_hook_errors")
functional: Any = torch.nn.functional
pytestmark = pytest.mark.torch

# A call is remembered when it is first seen, recorded when it is seen again, and then repeated.
REPEATED = 5
FOLDER = str(Path(str(brt.__file__)).parent)


class CodesOfTheDevice(frozenset[CodeType]):
    """The code of all functions of PyTorch's device."""

    def __contains__(self, code: object) -> bool:
        return isinstance(code, CodeType) and code.co_filename.startswith(FOLDER)


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    with server() as started:
        yield started


@pytest.fixture(scope="module")
def device(running: RunningServer) -> Any:
    return brt.connect(running.address, dialect="native")


class Inputs:
    """Tensors on a device, which no program changes."""

    def __init__(self, device: Any) -> None:
        drawn = torch.Generator().manual_seed(0)
        self.device = device
        self.x = torch.randn(4, 3, generator=drawn).to(device)
        self.weight = torch.randn(3, 2, generator=drawn).to(device).requires_grad_()
        self.host = torch.arange(6.0).reshape(2, 3)


def forward(given: Inputs) -> Any:
    return functional.softmax(functional.relu(given.x @ given.weight + 1), dim=-1).detach()


def backward(given: Inputs) -> Any:
    given.weight.grad = None
    try:
        functional.gelu(given.x @ given.weight).square().sum().backward()
        return given.weight.grad
    finally:
        given.weight.grad = None


def rows(x: Any, weight: Any) -> Any:
    return torch.relu(x @ weight).sum(dim=-1)


compiled_rows: Any = torch.compile(rows, backend="burn_remote")


def compiled(given: Inputs) -> Any:
    if given.device.type == "cpu":
        return rows(given.x, given.weight).detach()
    with torch.no_grad():
        return compiled_rows(given.x, given.weight)


def in_place(given: Inputs) -> Any:
    y = given.x.clone()
    y.add_(1).mul_(given.x)
    y[0] = 5
    y[:, 1] -= y[:, 2]
    return y


def to_the_device(given: Inputs) -> Any:
    return given.host.to(given.device)


def from_the_device(given: Inputs) -> Any:
    return given.x.cpu()


def optimizer_step(given: Inputs) -> Any:
    parameter = torch.nn.Parameter(given.x.clone())
    optimizer = torch.optim.Adam([parameter], lr=0.1)
    parameter.grad = given.x * 2
    optimizer.step()
    return parameter.detach()


PROGRAMS: list[Callable[[Inputs], Any]] = [
    forward,
    backward,
    in_place,
    to_the_device,
    from_the_device,
    optimizer_step,
    compiled,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_ctrl_c_in_a_program_leaves_no_tensor_and_the_next_results_are_right(
    running: RunningServer, device: Any, program: Callable[[Inputs], Any]
) -> None:
    expected = program(Inputs(torch.device("cpu")))
    given = Inputs(device)
    for _ in range(REPEATED):
        program(given)

    def held() -> float:
        device_registry.wire_device(given.device).sync()
        return running.metric("burn_remote_tensors")

    gc.collect()
    gc.freeze()  # else each collection examines all objects of PyTorch
    try:
        before = held()
        walk = Walk()
        for place in walk:
            interrupt = InterruptAfterCall(place, CodesOfTheDevice())
            with interrupt.watching():
                program(given)
            if held() != before:
                gc.collect()  # a graph of PyTorch and its exception may be a cycle
            assert held() == before, interrupt.place
            found = program(given).cpu()
            assert torch.allclose(found, expected, atol=1e-5), interrupt.place
        assert walk.count > 5
    finally:
        gc.unfreeze()


def test_no_handler_of_a_signal_runs_in_a_guard_of_the_engine() -> None:
    guard = engine_errors.DeviceGuard()
    assert guard.type_() == torch._C._autograd.DeviceType.PrivateUse1
    opcodes = {one.opname for one in dis.get_instructions(engine_errors.DeviceGuard.type_)}
    assert not {name for name in opcodes if name.startswith("CALL") or "BACKWARD" in name}
    (start,) = [
        one
        for one in dis.get_instructions(engine_errors.DeviceGuard.type_)
        if one.opname == "RESUME"
    ]
    assert start.arg is not None
    assert start.arg >= 2
