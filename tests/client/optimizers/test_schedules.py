"""Schedules give the rates of their formulas, and PyTorch's schedulers the same ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import burn_remote as br
from burn_remote.optim import lr_scheduler, schedules
from support.runners import RecordingDevice


def listed(schedule: schedules.Schedule, count: int) -> list[float]:
    return [schedule(step) for step in range(count)]


def test_each_schedule_has_the_rates_of_its_definition() -> None:
    near = pytest.approx
    assert listed(schedules.constant(0.1), 3) == [0.1, 0.1, 0.1]
    assert listed(schedules.step(1.0, 2, 0.5), 5) == [1, 1, 0.5, 0.5, 0.25]
    assert listed(schedules.multi_step(1.0, [3, 1], 0.5), 5) == [1, 0.5, 0.5, 0.25, 0.25]
    assert listed(schedules.exponential(1.0, 0.5), 3) == [1, 0.5, 0.25]
    assert listed(schedules.linear(2.0, 2, 0.5, 1.0), 4) == near([1, 1.5, 2, 2])
    assert listed(schedules.cosine(1.0, 2, 0.5), 4) == near([1, 0.75, 0.5, 0.5])
    assert listed(schedules.warm_up(1.0, 4), 6) == near([0, 0.25, 0.5, 0.75, 1, 1])
    assert listed(schedules.warm_up(schedules.step(1.0, 2), 2, 0.5), 4) == near(
        [0.5, 0.75, 0.1, 0.1]
    )
    both = schedules.sequential([1.0, schedules.exponential(1.0, 0.5)], [2])
    assert listed(both, 5) == [1, 1, 1, 0.5, 0.25]
    product = schedules.chained(2.0, [schedules.step(1.0, 1, 0.5), schedules.constant(3.0)])
    assert listed(product, 3) == [6, 3, 1.5]


def test_one_cycle_rises_to_the_maximum_and_falls_far_below_the_first_rate() -> None:
    rates = listed(schedules.one_cycle(1.0, 10, pct_start=0.3), 10)
    assert rates[0] == pytest.approx(1 / 25)
    assert rates[2] == pytest.approx(1.0)
    assert rates[-1] == pytest.approx(1 / 25 / 1e4)
    linear = listed(schedules.one_cycle(1.0, 10, 0.4, "linear", 10.0, 10.0, three_phase=True), 10)
    assert linear[3] == pytest.approx(1.0)
    assert linear[6] == pytest.approx(0.1)
    assert linear[9] == pytest.approx(0.01)
    with pytest.raises(br.UsageError, match="has 10 steps, and this is step 12"):
        schedules.one_cycle(1.0, 10)(11)


def optimizer(kind: Any = br.optim.SGD, **options: Any) -> Any:
    device = RecordingDevice()
    groups = [
        {"params": [br.ones(2, device=device).requires_grad_()]},
        {"params": [br.ones(3, device=device)], "lr": 0.5},
    ]
    return kind(groups, lr=1.0, **options)


# A scheduler, and the schedule of the first rate that it follows.
PAIRS: dict[str, tuple[Callable[[Any], Any], Callable[[float], schedules.Schedule]]] = {
    "lambda": (
        lambda one: lr_scheduler.LambdaLR(one, lambda epoch: 1 / (1 + epoch)),
        lambda first: lambda epoch: first / (1 + epoch),
    ),
    "constant": (
        lambda one: lr_scheduler.ConstantLR(one, 0.5, total_iters=2),
        lambda first: lambda epoch: first * (0.5 if epoch < 2 else 1),
    ),
    "linear": (
        lambda one: lr_scheduler.LinearLR(one, 0.5, total_iters=4),
        lambda first: schedules.linear(first, 4, 0.5),
    ),
    "step": (
        lambda one: lr_scheduler.StepLR(one, 2, gamma=0.5),
        lambda first: schedules.step(first, 2, 0.5),
    ),
    "multi_step": (
        lambda one: lr_scheduler.MultiStepLR(one, [1, 3]),
        lambda first: schedules.multi_step(first, [1, 3]),
    ),
    "exponential": (
        lambda one: lr_scheduler.ExponentialLR(one, 0.9),
        lambda first: schedules.exponential(first, 0.9),
    ),
    "cosine": (
        lambda one: lr_scheduler.CosineAnnealingLR(one, 6, eta_min=0.1),
        lambda first: schedules.cosine(first, 6, 0.1),
    ),
    "sequential": (
        lambda one: lr_scheduler.SequentialLR(
            one,
            [lr_scheduler.LinearLR(one, 0.1, total_iters=2), lr_scheduler.ExponentialLR(one, 0.5)],
            [2],
        ),
        lambda first: schedules.sequential(
            [schedules.linear(first, 2, 0.1), schedules.exponential(first, 0.5)], [2]
        ),
    ),
    "chained": (
        lambda one: lr_scheduler.ChainedScheduler(
            [lr_scheduler.ConstantLR(one, 0.5, 2), lr_scheduler.ExponentialLR(one, 0.5)]
        ),
        lambda first: lambda epoch: first * (0.5 if epoch < 2 else 1) * 0.5**epoch,
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_scheduler_sets_the_rate_of_each_group(name: str) -> None:
    make, schedule = PAIRS[name]
    owner = optimizer()
    scheduler = make(owner)
    for step in range(6):
        expected = [schedule(first)(step) for first in (1.0, 0.5)]
        assert [group["lr"] for group in owner.param_groups] == pytest.approx(expected)
        assert scheduler.get_last_lr() == pytest.approx(expected)
        scheduler.step()


def test_a_scheduler_continues_from_its_state() -> None:
    first = lr_scheduler.StepLR(optimizer(), 2, gamma=0.5)
    for _ in range(3):
        first.step()
    second = lr_scheduler.StepLR(optimizer(), 2, gamma=0.5)
    second.load_state_dict(first.state_dict())
    assert second.get_last_lr() == first.get_last_lr() == [0.5, 0.25]
    assert lr_scheduler.StepLR(optimizer(), 2, 0.5, last_epoch=2).get_last_lr() == [0.5, 0.25]


def test_schedulers_that_step_one_after_the_other_multiply_their_factors() -> None:
    owner = optimizer()
    constant = lr_scheduler.ConstantLR(owner, 0.5, total_iters=2)
    halving = lr_scheduler.StepLR(owner, 3, gamma=0.5)
    found = []
    for _ in range(5):
        found.append(owner.param_groups[0]["lr"])
        constant.step()
        halving.step()
    assert found == pytest.approx([0.5, 0.5, 1.0, 0.5, 0.5])


def test_a_scheduler_continues_from_a_rate_that_the_program_has_set() -> None:
    owner = optimizer()
    halving = lr_scheduler.StepLR(owner, 2, gamma=0.5)
    cosine = lr_scheduler.CosineAnnealingLR(owner, 2, eta_min=0.25)
    owner.param_groups[0]["lr"] = 4.25
    halving.step()
    assert halving.get_last_lr()[0] == pytest.approx(4.25)
    cosine.step()
    assert cosine.get_last_lr()[0] == pytest.approx(2.25)
    halving.step()
    assert halving.get_last_lr()[0] == pytest.approx(1.125)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("optimizer_first", [True, False])
def test_several_schedulers_continue_from_their_states(order: int, optimizer_first: bool) -> None:
    def made(owner: br.optim.Optimizer) -> list[lr_scheduler.LRScheduler]:
        return [lr_scheduler.LinearLR(owner, 0.5), lr_scheduler.ExponentialLR(owner, 0.9)]

    def step(schedulers: list[lr_scheduler.LRScheduler]) -> list[float]:
        for one in schedulers:
            one.step()
        return schedulers[0].get_last_lr()

    first, second = optimizer(), optimizer()
    ours, theirs = made(first), made(second)
    step(ours)
    if optimizer_first:
        second.load_state_dict(first.state_dict())
    for one, other in [*zip(ours, theirs, strict=True)][::order]:
        other.load_state_dict(one.state_dict())
    assert theirs[0].get_last_lr() == pytest.approx(ours[0].get_last_lr())
    assert step(theirs) == pytest.approx(step(ours))


def test_one_cycle_moves_the_momentum_in_the_opposite_direction() -> None:
    owner = optimizer(momentum=0.9)
    scheduler = lr_scheduler.OneCycleLR(owner, 1.0, epochs=2, steps_per_epoch=5)
    momenta = []
    for _ in range(10):
        momenta.append(owner.param_groups[0]["momentum"])
        scheduler.step()
    assert momenta[0] == momenta[-1] == pytest.approx(0.95)
    assert min(momenta) == pytest.approx(0.85)
    adam = optimizer(br.optim.Adam)
    lr_scheduler.OneCycleLR(adam, 1.0, 10)
    assert adam.param_groups[1]["betas"] == (0.95, 0.999)


def test_schedulers_that_cannot_work_are_refused() -> None:
    owner = optimizer()
    cycle = lr_scheduler.OneCycleLR(owner, 1.0, 10, cycle_momentum=False)
    with pytest.raises(br.UsageError, match="OneCycleLR are not multiples of the first rate"):
        lr_scheduler.ChainedScheduler([cycle])
    with pytest.raises(br.UsageError, match="CosineAnnealingLR are not multiples"):
        lr_scheduler.ChainedScheduler([lr_scheduler.CosineAnnealingLR(owner, 3, eta_min=0.1)])
    with pytest.raises(br.UsageError, match="2 schedules need 1 milestones in rising order, not"):
        schedules.sequential([0.1, 0.2], [])
    with pytest.raises(br.UsageError, match="ExponentialLR belongs to another optimizer"):
        lr_scheduler.SequentialLR(owner, [lr_scheduler.ExponentialLR(optimizer(), 0.5)], [])
    with pytest.raises(br.UsageError, match="Adagrad has no momentum; pass cycle_momentum=False"):
        lr_scheduler.OneCycleLR(optimizer(br.optim.Adagrad), 1.0, 10)
    with pytest.raises(br.UsageError, match="a cycle needs total_steps, or"):
        lr_scheduler.OneCycleLR(owner, 1.0)
    with pytest.raises(br.ArgumentMismatch, match="a scheduler takes an optimizer with parameters"):
        lr_scheduler.StepLR(br.optim.SGD(), 2)
    with pytest.raises(br.UsageError, match="has a schedule as its lr already"):
        params = [br.ones(2, device=RecordingDevice()).requires_grad_()]
        lr_scheduler.StepLR(br.optim.SGD(params, lr=schedules.constant(1.0)), 2)
    for wrong in (0, -1, 1.5, True, math.inf):
        with pytest.raises(br.UsageError, match="steps must be an integer of at least 1"):
            schedules.cosine(1.0, wrong)  # type: ignore[arg-type]
