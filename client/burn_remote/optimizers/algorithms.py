"""The optimizers, with the arguments of ``torch.optim``."""

from __future__ import annotations

from typing import Any, final

from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.optimizers.formulas import (
    AdagradFormula,
    AdamFormula,
    RMSpropFormula,
    SGDFormula,
)
from burn_remote.optimizers.optimizer_class import Optimizer
from burn_remote.optimizers.schedules import Schedule

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "RMSprop"]


@final
class SGD(Optimizer):
    """Stochastic gradient descent, with momentum, Nesterov's momentum and weight decay.

    Formulas and defaults are those of ``torch.optim.SGD``. ``params`` are containers of tracked
    tensors, or PyTorch's groups; without ``params``, the optimizer has only ``init`` and
    ``update``. Each gradient after the first enters the momentum with the factor
    ``1 - dampening``. With ``maximize``, steps increase the loss. A step takes 2 operations for
    each parameter; 4 with momentum, 6 with Nesterov's.
    """

    _formula = SGDFormula()

    @explained
    def __init__(
        self,
        params: Any = None,
        lr: float | Schedule = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
            maximize=maximize,
        )


class Adam(Optimizer):
    """Adam of Kingma and Ba (2015); its weight decay is added to the gradient.

    Results and defaults are those of ``torch.optim.Adam``, up to rounding. ``betas`` are the decay
    rates of the two moments. With ``amsgrad``, the second moment never falls (Reddi et al., 2018).
    The other arguments are those of ``SGD``. A step takes 11 operations for each parameter.
    """

    _formula = AdamFormula()

    @explained
    def __init__(
        self,
        params: Any = None,
        lr: float | Schedule = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        decoupled_weight_decay: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            amsgrad=amsgrad,
            maximize=maximize,
            decoupled_weight_decay=decoupled_weight_decay,
        )


@final
class AdamW(Adam):
    """Adam with the decoupled weight decay of Loshchilov and Hutter (2019).

    Results and defaults are those of ``torch.optim.AdamW``, up to rounding: each step multiplies
    the parameters by ``1 - lr * weight_decay``. A step takes 12 operations for each parameter.
    """

    @explained
    def __init__(
        self,
        params: Any = None,
        lr: float | Schedule = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            maximize=maximize,
            decoupled_weight_decay=True,
        )


@final
class RMSprop(Optimizer):
    """RMSprop, with the formulas and defaults of ``torch.optim.RMSprop``.

    ``alpha`` is the decay rate of the mean of squares. With ``centered``, the mean of the gradients
    is subtracted. The other arguments are those of ``SGD``. A step takes 9 operations for each
    parameter.
    """

    _formula = RMSpropFormula()

    @explained
    def __init__(
        self,
        params: Any = None,
        lr: float | Schedule = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            alpha=alpha,
            eps=eps,
            weight_decay=weight_decay,
            momentum=momentum,
            centered=centered,
            maximize=maximize,
        )


@final
class Adagrad(Optimizer):
    """Adagrad of Duchi et al. (2011), with the formulas and defaults of ``torch.optim.Adagrad``.

    The learning rate of step t is ``lr / (1 + (t - 1) * lr_decay)``. The other arguments are those
    of ``SGD``. A step takes 7 operations for each parameter.
    """

    _formula = AdagradFormula()

    @explained
    def __init__(
        self,
        params: Any = None,
        lr: float | Schedule = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            lr_decay=lr_decay,
            weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value,
            eps=eps,
            maximize=maximize,
        )
