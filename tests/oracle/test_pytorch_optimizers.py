"""Optimizers, schedulers and clipping give PyTorch's results in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote.optim import lr_scheduler

torch = pytest.importorskip("torch", reason="PyTorch is in the dependency group oracle")
pytestmark = pytest.mark.oracle

STEPS = 12
SHAPES = ((3, 4), (4,), ())


@pytest.fixture(scope="module")
def device() -> Iterator[br.Device]:
    with br.LocalDevice() as local:
        yield local


def arrays(seed: int) -> list[Any]:
    random = np.random.default_rng(seed)
    # Of sizes from 1e-4 to 1e4, and with a gradient that is zero.
    scale = 10.0 ** (seed % 9 - 4)
    return [np.asarray(random.normal(size=shape) * scale * (seed != 5)) for shape in SHAPES]


class Both:
    """The same parameters here and in PyTorch."""

    def __init__(self, device: br.Device, name: str, options: dict[str, Any]) -> None:
        self.device = device
        self.ours = [br.tensor(one, device=device).requires_grad_() for one in arrays(100)]
        self.theirs = [torch.from_numpy(one.copy()).requires_grad_() for one in arrays(100)]
        self.our_optimizer = getattr(br.optim, name)(self.ours, **options)
        self.their_optimizer = getattr(torch.optim, name)(self.theirs, foreach=False, **options)

    def give(self, step: int) -> None:
        """Set the gradients; the last parameter has none in every third step."""
        for place, array in enumerate(arrays(step)):
            skipped = place == len(SHAPES) - 1 and step % 3 == 0
            one = None if skipped else br.tensor(array, device=self.device)
            self.ours[place].grad = one
            self.theirs[place].grad = None if skipped else torch.from_numpy(array.copy())

    def step(self, step: int) -> None:
        self.give(step)
        self.our_optimizer.step()
        self.their_optimizer.step()

    def check(self) -> None:
        for one, other in zip(self.ours, self.theirs, strict=True):
            np.testing.assert_allclose(one.numpy(), other.detach().numpy(), rtol=1e-12, atol=1e-14)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.3}),
    ("Adam", {}),
    ("Adam", {"lr": 0.1, "betas": (0.5, 0.7), "eps": 1e-3, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.1, "amsgrad": True}),
    ("Adam", {"lr": 0.1, "amsgrad": True, "maximize": True, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.1, "betas": (0.0, 0.0)}),
    ("AdamW", {}),
    ("AdamW", {"lr": 0.1, "weight_decay": 0.5, "amsgrad": True}),
    ("RMSprop", {}),
    ("RMSprop", {"lr": 0.1, "alpha": 0.5, "momentum": 0.9, "weight_decay": 0.1}),
    ("RMSprop", {"lr": 0.1, "centered": True, "maximize": True}),
    ("RMSprop", {"lr": 0.1, "centered": True, "momentum": 0.5}),
    ("Adagrad", {}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.5, "weight_decay": 0.1}),
    ("Adagrad", {"lr": 0.1, "initial_accumulator_value": 0.7, "eps": 0.1, "maximize": True}),
]


@pytest.mark.parametrize("name, options", CASES)
def test_parameters_are_those_of_pytorch(
    name: str, options: dict[str, Any], device: br.Device
) -> None:
    both = Both(device, name, options)
    for step in range(STEPS):
        both.step(step)
        both.check()


@pytest.mark.parametrize("name, options", CASES)
def test_training_continues_from_the_state_of_pytorch(
    name: str, options: dict[str, Any], device: br.Device
) -> None:
    first, second = Both(device, name, options), Both(device, name, options)
    for step in range(1, 5):
        first.step(step)
    second.their_optimizer.load_state_dict(first.their_optimizer.state_dict())
    second.our_optimizer.load_state_dict(first.their_optimizer.state_dict())
    for step in range(5, 9):
        second.step(step)
        second.check()


@pytest.mark.parametrize("name, options", CASES)
def test_pytorch_continues_from_our_state(
    name: str, options: dict[str, Any], device: br.Device
) -> None:
    first, second = Both(device, name, options), Both(device, name, options)
    for step in range(1, 5):
        first.step(step)
    state = first.our_optimizer.state_dict()
    theirs = second.their_optimizer.state_dict()
    theirs["state"] = {
        place: {
            key: torch.as_tensor(value) if key != "step" else torch.tensor(float(value))
            for key, value in entry.items()
        }
        for place, entry in state["state"].items()
    }
    second.their_optimizer.load_state_dict(theirs)
    second.our_optimizer.load_state_dict(state)
    for step in range(5, 9):
        second.step(step)
        second.check()


SCHEDULERS: dict[str, Any] = {
    "LambdaLR": lambda m, o: m.LambdaLR(o, lambda epoch: 0.9**epoch),
    "ConstantLR": lambda m, o: m.ConstantLR(o),
    "LinearLR": lambda m, o: m.LinearLR(o, start_factor=0.2, total_iters=7),
    "StepLR": lambda m, o: m.StepLR(o, 3),
    "MultiStepLR": lambda m, o: m.MultiStepLR(o, [2, 5], gamma=0.3),
    "ExponentialLR": lambda m, o: m.ExponentialLR(o, 0.8),
    "CosineAnnealingLR": lambda m, o: m.CosineAnnealingLR(o, 6, eta_min=0.01),
    "OneCycleLR": lambda m, o: m.OneCycleLR(o, 0.5, total_steps=STEPS),
    "OneCycleLR linear": lambda m, o: m.OneCycleLR(
        o, 0.5, epochs=3, steps_per_epoch=4, anneal_strategy="linear", three_phase=True
    ),
    "SequentialLR": lambda m, o: m.SequentialLR(
        o, [m.LinearLR(o, 0.1, total_iters=4), m.CosineAnnealingLR(o, 8)], milestones=[4]
    ),
    "ChainedScheduler": lambda m, o: m.ChainedScheduler(
        [m.ConstantLR(o, 0.1, total_iters=2), m.ExponentialLR(o, 0.9)]
    ),
}


# PyTorch's SequentialLR calls a scheduler's step with the number of the epoch, which it deprecates.
@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_set_the_rates_of_pytorch(name: str, kind: str, device: br.Device) -> None:
    both = Both(device, kind, {"lr": 0.1, "momentum": 0.9} if kind == "SGD" else {"lr": 0.1})
    ours = SCHEDULERS[name](lr_scheduler, both.our_optimizer)
    theirs = SCHEDULERS[name](torch.optim.lr_scheduler, both.their_optimizer)
    for step in range(1, STEPS):
        both.step(step)
        ours.step()
        theirs.step()
        assert ours.get_last_lr() == pytest.approx(theirs.get_last_lr(), rel=1e-12), step
    both.check()


CHAINS: list[tuple[str, ...]] = [
    ("ConstantLR", "StepLR"),
    ("LinearLR", "ExponentialLR", "MultiStepLR"),
    ("CosineAnnealingLR", "ConstantLR"),
    ("StepLR", "LambdaLR"),
    ("ExponentialLR",),
]


@pytest.mark.parametrize("names", CHAINS)
def test_schedulers_that_step_together_set_the_rates_of_pytorch(
    names: tuple[str, ...], device: br.Device
) -> None:
    both = Both(device, "SGD", {"lr": 0.1})
    ours = [SCHEDULERS[name](lr_scheduler, both.our_optimizer) for name in names]
    theirs = [SCHEDULERS[name](torch.optim.lr_scheduler, both.their_optimizer) for name in names]
    for step in range(1, STEPS):
        both.step(step)
        for scheduler in [*ours, *theirs]:
            scheduler.step()
        assert ours[0].get_last_lr() == pytest.approx(
            [group["lr"] for group in both.their_optimizer.param_groups], rel=1e-12
        ), step
        if step == STEPS // 2:
            for owner in (both.our_optimizer, both.their_optimizer):
                owner.param_groups[0]["lr"] = 0.7
    both.check()


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.5, float("inf")])
@pytest.mark.parametrize("bound", [0.01, 1e9])
def test_gradients_are_clipped_as_in_pytorch(
    bound: float, norm_type: float, device: br.Device
) -> None:
    both = Both(device, "SGD", {})
    both.give(7)
    ours = br.optim.clip_grad_norm_(both.ours, bound, norm_type)
    theirs = torch.nn.utils.clip_grad_norm_(both.theirs, bound, norm_type)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-12)
    br.optim.clip_grad_value_(both.ours, bound / 50)
    torch.nn.utils.clip_grad_value_(both.theirs, bound / 50)
    for one, other in zip(both.ours, both.theirs, strict=True):
        assert one.grad is not None
        np.testing.assert_allclose(one.grad.numpy(), other.grad.numpy(), rtol=1e-12)
