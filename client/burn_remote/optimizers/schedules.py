"""Schedules: functions from the number of steps done so far to a learning rate.

Pass one to an optimizer, ``br.optim.Adam(lr=br.optim.schedules.cosine(1e-3, 10_000))``, or compute
``schedule(step)`` and pass it as ``lr=`` to ``update``. ``burn_remote.optim.lr_scheduler`` has the
same formulas in PyTorch's form. Steps are counted from 0.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from burn_remote.diagnostics.advice import missing_from
from burn_remote_protocol.errors import UsageError

__all__ = [
    "Schedule",
    "chained",
    "constant",
    "cosine",
    "exponential",
    "linear",
    "multi_step",
    "one_cycle",
    "sequential",
    "step",
    "warm_up",
]

if not TYPE_CHECKING:  # hidden from type checkers, which must report missing names
    __getattr__ = missing_from(__name__)

Schedule = Callable[[int], float]


def constant(lr: float) -> Schedule:
    """Return a schedule that is always ``lr``."""
    return lambda count: lr


def step(lr: float, step_size: int, gamma: float = 0.1) -> Schedule:
    """Multiply the rate by ``gamma`` after every ``step_size`` steps."""
    _check_count("step_size", step_size)
    return lambda count: lr * gamma ** (count // step_size)


def multi_step(lr: float, milestones: Sequence[int], gamma: float = 0.1) -> Schedule:
    """Multiply the rate by ``gamma`` after each of the numbers of steps in ``milestones``."""
    ordered = sorted(milestones)
    return lambda count: lr * gamma ** bisect.bisect_right(ordered, count)


def exponential(lr: float, gamma: float) -> Schedule:
    """Multiply the rate by ``gamma`` after each step."""
    return lambda count: lr * gamma**count


def linear(lr: float, steps: int, start: float = 1.0, end: float = 1.0) -> Schedule:
    """Change the rate evenly from ``lr * start`` to ``lr * end`` in ``steps`` steps."""
    _check_count("steps", steps)
    return lambda count: lr * (start + (end - start) * min(count, steps) / steps)


def cosine(lr: float, steps: int, end: float = 0.0) -> Schedule:
    """Let the rate fall from ``lr`` to ``end`` along half a cosine in ``steps`` steps.

    Loshchilov and Hutter (2017), equation 5, without restarts. After these steps, the rate stays at
    ``end``.
    """
    _check_count("steps", steps)
    return lambda count: end + (lr - end) * half_cosine(min(count, steps) / steps)


def warm_up(schedule: float | Schedule, steps: int, start: float = 0.0) -> Schedule:
    """Multiply another schedule by a factor that grows from ``start`` to 1 in ``steps`` steps.

    The factor is ``start + (1 - start) * count / steps``. The other schedule counts these steps
    too; use ``sequential`` to let it begin after them.
    """
    _check_count("steps", steps)
    after = schedule if callable(schedule) else constant(schedule)
    return lambda count: after(count) * (start + (1 - start) * min(count, steps) / steps)


def one_cycle(
    max_lr: float,
    total_steps: int,
    pct_start: float = 0.3,
    anneal_strategy: str = "cos",
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
    three_phase: bool = False,
) -> Schedule:
    """Let the rate rise to ``max_lr`` and fall far below its first value (Smith and Topin, 2018).

    It begins at ``max_lr / div_factor``, reaches ``max_lr`` after the share ``pct_start`` of
    ``total_steps``, and ends at the first value divided by ``final_div_factor``. With
    ``three_phase``, it takes as long to fall back to the first value as it took to rise, and falls
    to the last value in the remaining steps. ``anneal_strategy`` is ``"cos"`` or ``"linear"``. The
    schedule raises ``UsageError`` beyond ``total_steps``.
    """
    first = max_lr / div_factor
    last = first / final_div_factor
    values = (first, max_lr, first, last) if three_phase else (first, max_lr, last)
    phases = cycle_phases(total_steps, pct_start, three_phase)
    blend = annealing(anneal_strategy)
    return lambda count: in_cycle(count, phases, values, blend)


def sequential(schedules: Sequence[float | Schedule], milestones: Sequence[int]) -> Schedule:
    """Use one schedule after the other; each number of steps in ``milestones`` starts the next.

    Each counts its steps from 0. There is one milestone less than schedules.
    """
    if len(milestones) != len(schedules) - 1 or [*milestones] != sorted(milestones):
        raise UsageError(
            f"{len(schedules)} schedules need {len(schedules) - 1} milestones in rising order, not "
            f"{[*milestones]}"
        )
    parts = [one if callable(one) else constant(one) for one in schedules]
    starts = [0, *milestones]

    def rate(count: int) -> float:
        place = bisect.bisect_right(starts, count) - 1
        return parts[max(place, 0)](count - starts[max(place, 0)])

    return rate


def chained(lr: float, factors: Sequence[Schedule]) -> Schedule:
    """Multiply ``lr`` by schedules that were made for the rate 1."""
    return lambda count: lr * math.prod([factor(count) for factor in factors])


def half_cosine(share: float) -> float:
    """Return a value that falls from 1 to 0 along half a cosine while ``share`` rises to 1."""
    return (1 + math.cos(math.pi * share)) / 2


def annealing(strategy: str) -> Callable[[float, float, float], float]:
    """Return a function that interpolates between two values, given a share from 0 to 1."""
    if strategy == "cos":
        return lambda first, last, share: last + (first - last) * half_cosine(share)
    if strategy == "linear":
        return lambda first, last, share: first + (last - first) * share
    raise UsageError(f"anneal_strategy must be 'cos' or 'linear', not {strategy!r}")


def cycle_phases(total_steps: int, pct_start: float, three_phase: bool) -> tuple[float, ...]:
    """Return the steps at which the phases of one cycle end, as PyTorch counts them."""
    _check_count("total_steps", total_steps)
    if not 0 <= pct_start <= 1:
        raise UsageError(f"pct_start must be from 0 to 1, not {pct_start}")
    rise = pct_start * total_steps - 1
    if three_phase:
        return rise, 2 * pct_start * total_steps - 2, total_steps - 1
    return rise, total_steps - 1


def in_cycle(
    count: int,
    phases: Sequence[float],
    values: Sequence[float],
    blend: Callable[[float, float, float], float],
) -> float:
    """Return the value in one cycle after ``count`` steps."""
    # One more than the steps: PyTorch's programs call ``scheduler.step()`` after the last one too.
    if count > phases[-1] + 1:
        raise UsageError(f"one cycle has {phases[-1] + 1:g} steps, and this is step {count + 1}")
    count = min(count, int(phases[-1]))
    start = 0.0
    for place, end in enumerate(phases):
        if count <= end or end is phases[-1]:
            share = (count - start) / (end - start) if end != start else 1.0
            return blend(values[place], values[place + 1], share)
        start = end
    raise AssertionError("the last phase contains the step")


def _check_count(name: str, count: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise UsageError(f"{name} must be an integer of at least 1, not {count!r}")
