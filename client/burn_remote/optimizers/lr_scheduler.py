"""Schedules of learning rates in the form of ``torch.optim.lr_scheduler``.

A scheduler sets ``lr`` of each group of an optimizer's parameters: once when it is made, and then
with each call of its ``step``. Rates are functions of the number of these calls and of the group's
first rate.

As in PyTorch, several schedulers may step one after the other: if the program or another scheduler
has changed ``lr``, most schedulers multiply it by the quotient of their rates. ``LambdaLR``,
``OneCycleLR`` and ``SequentialLR`` overwrite it.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, final

from burn_remote.diagnostics.advice import missing_from
from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.optimizers import schedules
from burn_remote.optimizers.optimizer_class import Optimizer
from burn_remote_protocol.errors import ArgumentMismatch, UsageError, shown

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "OneCycleLR",
    "SequentialLR",
    "StepLR",
]

if not TYPE_CHECKING:  # hidden from type checkers, which must report missing names
    __getattr__ = missing_from(__name__)


class LRScheduler(ABC):
    """The base class of schedulers."""

    # Whether a rate is proportional to the first one, so that schedulers can be chained.
    is_factor = True
    # Whether the next rate continues from one that something else has set.
    continues = True
    # Factors change the distance of the rate from this one.
    floor = 0.0

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer) or not optimizer.param_groups:
            raise ArgumentMismatch(
                f"a scheduler takes an optimizer with parameters, not {shown(optimizer)}; with "
                "optimizer.update, pass a function of burn_remote.optim.schedules as lr="
            )
        self.optimizer = optimizer
        self.base_lrs: list[float] = []
        for group in optimizer.param_groups:
            if callable(group["lr"]):
                raise UsageError("the optimizer has a schedule as its lr already; give it a number")
            self.base_lrs.append(group.setdefault("initial_lr", group["lr"]))
        self.last_epoch = last_epoch + 1
        # The rate of each group by the formula, before the next call of ``step``.
        self._rates = [*self.base_lrs]
        self._apply(anew=self.last_epoch > 0)

    @abstractmethod
    def rate(self, first: float, epoch: int) -> float:
        """Return the rate after ``epoch`` calls of ``step``, if the first one was ``first``."""

    def __reduce__(self) -> NoReturn:
        # ``copy`` calls this too.
        raise ArgumentMismatch(
            "a scheduler can be neither pickled nor copied, because its optimizer cannot; make "
            f"another {type(self).__name__}, and pass it the state: "
            "new.load_state_dict(scheduler.state_dict())"
        )

    def step(self) -> None:
        """Set the next rates. Call it after ``optimizer.step()``."""
        self.last_epoch += 1
        self._apply()

    def get_last_lr(self) -> list[float]:
        """Return the rate of each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the state, for ``load_state_dict``."""
        return {
            "last_epoch": self.last_epoch,
            "base_lrs": [*self.base_lrs],
            "lrs": self.get_last_lr(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from the state of another scheduler, and set its rates."""
        self.last_epoch = state_dict["last_epoch"]
        self.base_lrs = [*state_dict["base_lrs"]]
        self._apply(anew=True)
        # The rates of all schedulers of the optimizer together.
        for group, rate in zip(
            self.optimizer.param_groups, state_dict.get("lrs", ()), strict=False
        ):
            group["lr"] = rate

    def _apply(self, *, anew: bool = False) -> None:
        """Set the rates; ``anew`` overwrites those that something else has set."""
        groups = self.optimizer.param_groups
        for place, (group, first) in enumerate(zip(groups, self.base_lrs, strict=True)):
            rate = self.rate(first, self.last_epoch)
            before, present = self._rates[place], group["lr"]
            if anew or not self.continues or before == present:
                group["lr"] = rate
            elif before == self.floor:
                group["lr"] = present + rate - before
            else:
                factor = (rate - self.floor) / (before - self.floor)
                group["lr"] = self.floor + (present - self.floor) * factor
            self._rates[place] = rate


@final
class LambdaLR(LRScheduler):
    """Multiply the first rate by ``lr_lambda(epoch)``."""

    continues = False

    @explained
    def __init__(
        self, optimizer: Optimizer, lr_lambda: Callable[[int], float], last_epoch: int = -1
    ) -> None:
        self.lr_lambda = lr_lambda
        super().__init__(optimizer, last_epoch)

    def rate(self, first: float, epoch: int) -> float:
        """Return ``first * lr_lambda(epoch)``."""
        return first * self.lr_lambda(epoch)


@final
class ConstantLR(LRScheduler):
    """Multiply the first rate by ``factor`` for ``total_iters`` calls of ``step``."""

    @explained
    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1 / 3,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        self.factor = factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def rate(self, first: float, epoch: int) -> float:
        """Return ``first * factor``, and then ``first``."""
        return first * self.factor if epoch < self.total_iters else first


@final
class LinearLR(LRScheduler):
    """Change the rate evenly between two factors of the first one: a warm-up by default."""

    @explained
    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        self._schedule = schedules.linear(1.0, total_iters, start_factor, end_factor)
        super().__init__(optimizer, last_epoch)

    def rate(self, first: float, epoch: int) -> float:
        """Return the rate by ``schedules.linear``."""
        return first * self._schedule(epoch)


@final
class StepLR(LRScheduler):
    """Multiply the rate by ``gamma`` after every ``step_size`` calls of ``step``."""

    @explained
    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self._schedule = schedules.step(1.0, step_size, gamma)
        super().__init__(optimizer, last_epoch)

    def rate(self, first: float, epoch: int) -> float:
        """Return the rate by ``schedules.step``."""
        return first * self._schedule(epoch)


@final
class MultiStepLR(LRScheduler):
    """Multiply the rate by ``gamma`` after each number of calls in ``milestones``."""

    @explained
    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Sequence[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        self._schedule = schedules.multi_step(1.0, milestones, gamma)
        super().__init__(optimizer, last_epoch)

    def rate(self, first: float, epoch: int) -> float:
        """Return the rate by ``schedules.multi_step``."""
        return first * self._schedule(epoch)


@final
class ExponentialLR(LRScheduler):
    """Multiply the rate by ``gamma`` with each call of ``step``."""

    @explained
    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self._schedule = schedules.exponential(1.0, gamma)
        super().__init__(optimizer, last_epoch)

    def rate(self, first: float, epoch: int) -> float:
        """Return the rate by ``schedules.exponential``."""
        return first * self._schedule(epoch)


@final
class CosineAnnealingLR(LRScheduler):
    """Let the rate follow a cosine, which falls to ``eta_min`` in ``T_max`` calls of ``step``."""

    @explained
    def __init__(
        self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        self.T_max = T_max
        self.eta_min = eta_min
        self.is_factor = eta_min == 0
        self.floor = eta_min
        super().__init__(optimizer, last_epoch)

    def rate(self, first: float, epoch: int) -> float:
        """Return the rate by equation 5 of Loshchilov and Hutter (2017), which is periodic."""
        share = schedules.half_cosine(epoch / self.T_max)
        return self.eta_min + (first - self.eta_min) * share


@final
class OneCycleLR(LRScheduler):
    """Let the rate rise and fall once, and the momentum in the opposite direction.

    Arguments and defaults are PyTorch's; see ``schedules.one_cycle``. With ``cycle_momentum``,
    ``momentum`` or the first of ``betas`` falls to ``base_momentum`` and rises again. ``step``
    raises ``UsageError`` if it is called more often than the cycle has steps.
    """

    is_factor = False
    continues = False

    @explained
    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float,
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float = 0.85,
        max_momentum: float = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise UsageError("a cycle needs total_steps, or epochs and steps_per_epoch")
            total_steps = epochs * steps_per_epoch
        self.total_steps = total_steps
        self._rate = schedules.one_cycle(
            max_lr, total_steps, pct_start, anneal_strategy, div_factor, final_div_factor,
            three_phase,
        )  # fmt: skip
        high, low = max_momentum, base_momentum
        values = (high, low, high, high) if three_phase else (high, low, high)
        phases = schedules.cycle_phases(total_steps, pct_start, three_phase)
        blend = schedules.annealing(anneal_strategy)
        self._momentum: schedules.Schedule = lambda epoch: schedules.in_cycle(
            epoch, phases, values, blend
        )
        self._name = None
        if cycle_momentum:
            self._name = "betas" if "betas" in optimizer.defaults else "momentum"
            if self._name not in optimizer.defaults:
                raise UsageError(
                    f"{type(optimizer).__name__} has no momentum; pass cycle_momentum=False"
                )
        super().__init__(optimizer, last_epoch)

    def rate(self, first: float, epoch: int) -> float:
        """Return the rate by ``schedules.one_cycle``, which does not depend on the first one."""
        return self._rate(epoch)

    def _apply(self, *, anew: bool = False) -> None:
        super()._apply(anew=anew)
        if self._name is None:
            return
        momentum = self._momentum(self.last_epoch)
        for group in self.optimizer.param_groups:
            known = group[self._name]
            group[self._name] = (momentum, *known[1:]) if self._name == "betas" else momentum


@final
class SequentialLR(LRScheduler):
    """Use one scheduler after the other; each number of calls in ``milestones`` starts the next."""

    is_factor = False
    continues = False

    @explained
    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:
        _check_same(optimizer, schedulers)
        self._schedulers = schedulers
        self._milestones = [*milestones]
        super().__init__(optimizer, last_epoch)

    def rate(self, first: float, epoch: int) -> float:
        """Return the rate of the current scheduler, which counts calls since it became current."""
        parts = [functools.partial(one.rate, first) for one in self._schedulers]
        return schedules.sequential(parts, self._milestones)(epoch)


@final
class ChainedScheduler(LRScheduler):
    """Multiply the factors of several schedulers.

    Raises ``UsageError`` for schedulers whose rates are not proportional to the first rate:
    ``OneCycleLR``, ``SequentialLR``, and ``CosineAnnealingLR`` with ``eta_min``.
    """

    @explained
    def __init__(
        self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None
    ) -> None:
        if not schedulers:
            raise UsageError("there are no schedulers to be chained")
        optimizer = schedulers[0].optimizer if optimizer is None else optimizer
        _check_same(optimizer, schedulers)
        for one in schedulers:
            if not one.is_factor:
                raise UsageError(
                    f"the rates of {type(one).__name__} are not multiples of the first rate, so it "
                    "cannot be chained; use SequentialLR, or LambdaLR with a function of your own"
                )
        self._schedulers = [*schedulers]
        self.continues = all(one.continues for one in schedulers)
        super().__init__(optimizer)
        # The schedulers have set their own rates.
        self._apply(anew=True)

    def rate(self, first: float, epoch: int) -> float:
        """Return the product."""
        return schedules.chained(first, [_factor(one) for one in self._schedulers])(epoch)


def _factor(scheduler: LRScheduler) -> schedules.Schedule:
    return lambda epoch: scheduler.rate(1.0, epoch)


def _check_same(optimizer: Optimizer, schedulers: Sequence[LRScheduler]) -> None:
    for one in schedulers:
        if one.optimizer is not optimizer:
            raise UsageError(f"{type(one).__name__} belongs to another optimizer")
