"""The update of one parameter, for each optimizer.

A formula has two parts: one computes numbers, once for all parameters that are updated together;
the other computes tensors. Numbers that change from step to step (the count of steps, bias
corrections, scheduled rates) are arguments of a compiled function, so that no step needs another
signature or graph.

The state of an optimizer has *slots*, which are tensors for each parameter, and *counters*, which
are numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from burn_remote.functions.creation import full_like, zeros_like
from burn_remote.functions.selection import maximum
from burn_remote.functions.tensor import Tensor

__all__ = [
    "STEP",
    "AdagradFormula",
    "AdamFormula",
    "Counters",
    "Formula",
    "Options",
    "RMSpropFormula",
    "SGDFormula",
]

Options = Mapping[str, Any]
Counters = dict[str, Any]

# The counter that every formula has: the count of updates.
STEP: Final = "step"

# The counter of Adam: the factor from its first moment to the content of the slot.
SCALE: Final = "exp_avg_scale"


class Formula(Protocol):
    """How one optimizer updates parameters."""

    def slots(self, options: Options) -> tuple[str, ...]:
        """Return the names of the tensors that are kept for each parameter."""
        ...

    def initial(self, parameter: Tensor, options: Options) -> Tensor:
        """Return the first content of each slot."""
        ...

    def counters(self, options: Options) -> Counters:
        """Return the counters before the first step."""
        ...

    def numbers(self, options: Options, counters: Counters) -> tuple[Any, Counters]:
        """Return the numbers of one step, and the counters after it."""
        ...

    def updated(
        self, parameter: Tensor, grad: Tensor, slots: Sequence[Tensor], numbers: Any
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the new parameter and the new contents of its slots."""
        ...

    def scale(self, slot: str, counters: Counters) -> float:
        """Return the factor from PyTorch's tensor of this name to the content of the slot."""
        ...


class _Unscaled:
    """Slots as PyTorch has them, and no counter but the count of steps."""

    def initial(self, parameter: Tensor, options: Options) -> Tensor:
        """Return zeros."""
        return zeros_like(parameter)

    def counters(self, options: Options) -> Counters:
        """Return the count of steps."""
        return {STEP: 0}

    def scale(self, slot: str, counters: Counters) -> float:
        """Return 1."""
        return 1.0


class _SGDNumbers(NamedTuple):
    rate: Any
    momentum: Any
    kept: Any  # the share of the gradient that enters the buffer; ``None`` for all of it
    decay: Any  # ``None`` without weight decay
    has_momentum: bool
    nesterov: bool


class SGDFormula(_Unscaled):
    """Stochastic gradient descent, as ``torch.optim.SGD`` defines it.

    2 operations; 4 with momentum, 6 with Nesterov's; 2 more with weight decay.
    """

    def slots(self, options: Options) -> tuple[str, ...]:
        """Return the buffer of the momentum, if there is momentum."""
        return ("momentum_buffer",) if options["momentum"] else ()

    def numbers(self, options: Options, counters: Counters) -> tuple[_SGDNumbers, Counters]:
        """Return the rates of one step."""
        step = counters[STEP]
        # The first gradient enters the buffer undampened.
        dampens = bool(options["dampening"]) and step > 0
        numbers = _SGDNumbers(
            options["lr"],
            options["momentum"],
            1 - options["dampening"] if dampens else None,
            options["weight_decay"] if options["weight_decay"] else None,
            bool(options["momentum"]),
            options["nesterov"],
        )
        return numbers, {STEP: step + 1}

    def updated(
        self, parameter: Tensor, grad: Tensor, slots: Sequence[Tensor], numbers: _SGDNumbers
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the new parameter and the new buffer."""
        if numbers.decay is not None:
            grad = grad + parameter * numbers.decay
        if not numbers.has_momentum:
            return parameter - grad * numbers.rate, ()
        entering = grad if numbers.kept is None else grad * numbers.kept
        buffer = slots[0] * numbers.momentum + entering
        direction = grad + buffer * numbers.momentum if numbers.nesterov else buffer
        return parameter - direction * numbers.rate, (buffer,)


class _AdamNumbers(NamedTuple):
    share: Any  # the factor of the gradient
    first: Any  # the factor of the first moment's slot
    second: Any  # the factor of the second moment
    rate: Any
    floor: Any  # epsilon, with its bias correction
    decay: Any  # added to the gradient; ``None`` for nothing
    shrink: Any  # the factor of the parameter; ``None`` for 1


class AdamFormula:
    """Adam of Kingma and Ba (2015), with AdamW's weight decay of Loshchilov and Hutter (2019).

    Equal to ``torch.optim.Adam`` up to rounding, but constant factors are combined: 11 operations,
    and 1 or 2 more with weight decay. With ``s = sqrt(1 - beta2)``, one product ``g' = s * g``
    serves both moments. The second is ``v = beta2 * v + g' * g'``. The slot of the first contains
    ``m' = m * s / (1 - beta1)``, which is updated by ``m' = beta1 * m' + g'``. The bias corrections
    are multiplied into the rate and into epsilon.
    """

    def slots(self, options: Options) -> tuple[str, ...]:
        """Return the moments."""
        moments = ("exp_avg", "exp_avg_sq")
        return (*moments, "max_exp_avg_sq") if options["amsgrad"] else moments

    def initial(self, parameter: Tensor, options: Options) -> Tensor:
        """Return zeros."""
        return zeros_like(parameter)

    def counters(self, options: Options) -> Counters:
        """Return the count of steps, and the scale of the first moment."""
        first, second = options["betas"]
        return {STEP: 0, SCALE: (1 - second) ** 0.5 / (1 - first)}

    def numbers(self, options: Options, counters: Counters) -> tuple[_AdamNumbers, Counters]:
        """Return the rates of one step, with its bias corrections."""
        beta1, beta2 = options["betas"]
        step = counters[STEP] + 1
        share = (1 - beta2) ** 0.5
        scale = share / (1 - beta1)
        root = (1 - beta2**step) ** 0.5
        rate, decay = options["lr"], options["weight_decay"]
        is_decoupled = options["decoupled_weight_decay"]
        has_decay = bool(decay)
        numbers = _AdamNumbers(
            share,
            # If ``betas`` changed since the last step, the slot is rescaled. Otherwise the factor
            # is a constant of the graph.
            beta1 if counters[SCALE] == scale else beta1 * (scale / counters[SCALE]),
            beta2,
            rate * root / ((1 - beta1**step) * scale),
            options["eps"] * root,
            decay if has_decay and not is_decoupled else None,
            1 - rate * decay if has_decay and is_decoupled else None,
        )
        return numbers, {STEP: step, SCALE: scale}

    def updated(
        self, parameter: Tensor, grad: Tensor, slots: Sequence[Tensor], numbers: _AdamNumbers
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the new parameter and moments."""
        if numbers.decay is not None:
            grad = grad + parameter * numbers.decay
        if numbers.shrink is not None:
            parameter = parameter * numbers.shrink
        entering = grad * numbers.share
        first = slots[0] * numbers.first + entering
        second = slots[1] * numbers.second + entering * entering
        moments: tuple[Tensor, ...] = (first, second)
        if len(slots) > 2:
            moments = (first, second, maximum(slots[2], second))
        step = first / (moments[-1].sqrt() + numbers.floor)
        return parameter - step * numbers.rate, moments

    def scale(self, slot: str, counters: Counters) -> float:
        """Return the scale of the first moment; the others have none."""
        return float(counters[SCALE]) if slot == "exp_avg" else 1.0


class _RMSpropNumbers(NamedTuple):
    rate: Any
    alpha: Any
    share: Any  # its square is ``1 - alpha``
    rest: Any  # 1 - alpha
    eps: Any
    momentum: Any
    decay: Any  # ``None`` without weight decay
    has_momentum: bool
    centered: bool


class RMSpropFormula(_Unscaled):
    """RMSprop, as ``torch.optim.RMSprop`` defines it.

    9 operations; 2 more with momentum, 5 when centered, 2 with weight decay.
    """

    def slots(self, options: Options) -> tuple[str, ...]:
        """Return the averages, and the buffer of the momentum."""
        names = ["square_avg"]
        if options["momentum"]:
            names.append("momentum_buffer")
        if options["centered"]:
            names.append("grad_avg")
        return tuple(names)

    def numbers(self, options: Options, counters: Counters) -> tuple[_RMSpropNumbers, Counters]:
        """Return the rates of one step."""
        rest = 1 - options["alpha"]
        numbers = _RMSpropNumbers(
            options["lr"],
            options["alpha"],
            rest**0.5,
            rest,
            options["eps"],
            options["momentum"],
            options["weight_decay"] if options["weight_decay"] else None,
            bool(options["momentum"]),
            options["centered"],
        )
        return numbers, {STEP: counters[STEP] + 1}

    def updated(
        self, parameter: Tensor, grad: Tensor, slots: Sequence[Tensor], numbers: _RMSpropNumbers
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the new parameter, averages and buffer."""
        if numbers.decay is not None:
            grad = grad + parameter * numbers.decay
        entering = grad * numbers.share
        squares = slots[0] * numbers.alpha + entering * entering
        new = [squares]
        variance = squares
        average = None
        if numbers.centered:
            average = slots[-1] * numbers.alpha + grad * numbers.rest
            variance = squares - average * average
        direction = grad / (variance.sqrt() + numbers.eps)
        if numbers.has_momentum:
            direction = slots[1] * numbers.momentum + direction
            new.append(direction)
        if average is not None:
            new.append(average)
        return parameter - direction * numbers.rate, tuple(new)


class _AdagradNumbers(NamedTuple):
    rate: Any
    eps: Any
    decay: Any  # ``None`` without weight decay


class AdagradFormula(_Unscaled):
    """Adagrad of Duchi et al. (2011), as ``torch.optim.Adagrad`` defines it.

    7 operations, 2 more with weight decay.
    """

    def slots(self, options: Options) -> tuple[str, ...]:
        """Return the sum of squares."""
        return ("sum",)

    def initial(self, parameter: Tensor, options: Options) -> Tensor:
        """Return the initial sum."""
        return full_like(parameter, float(options["initial_accumulator_value"]))

    def numbers(self, options: Options, counters: Counters) -> tuple[_AdagradNumbers, Counters]:
        """Return the rates of one step."""
        step = counters[STEP]
        numbers = _AdagradNumbers(
            options["lr"] / (1 + step * options["lr_decay"]),
            options["eps"],
            options["weight_decay"] if options["weight_decay"] else None,
        )
        return numbers, {STEP: step + 1}

    def updated(
        self, parameter: Tensor, grad: Tensor, slots: Sequence[Tensor], numbers: _AdagradNumbers
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the new parameter and sum."""
        if numbers.decay is not None:
            grad = grad + parameter * numbers.decay
        total = slots[0] + grad * grad
        step = grad / (total.sqrt() + numbers.eps)
        return parameter - step * numbers.rate, (total,)
