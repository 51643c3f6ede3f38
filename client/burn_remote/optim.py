"""Optimizers, with the names and arguments of ``torch.optim``, and clipping of gradients.

Each optimizer has two forms over the same formulas: functions of nested containers, whose call may
be part of a compiled function, and PyTorch's ``step()``, which replaces the elements of tracked
parameters. See ``Optimizer``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burn_remote.diagnostics.advice import missing_from
from burn_remote.diagnostics.foreign_names import OPTIM
from burn_remote.optimizers import lr_scheduler, schedules
from burn_remote.optimizers.algorithms import SGD, Adagrad, Adam, AdamW, RMSprop
from burn_remote.optimizers.clipping import (
    clip_by_norm,
    clip_by_value,
    clip_grad_norm_,
    clip_grad_value_,
    global_norm,
)
from burn_remote.optimizers.optimizer_class import Optimizer
from burn_remote.optimizers.schedules import Schedule

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Optimizer",
    "RMSprop",
    "Schedule",
    "clip_by_norm",
    "clip_by_value",
    "clip_grad_norm_",
    "clip_grad_value_",
    "global_norm",
    "lr_scheduler",
    "schedules",
]

if not TYPE_CHECKING:  # hidden from type checkers, which must report missing names
    __getattr__ = missing_from(__name__, OPTIM)
