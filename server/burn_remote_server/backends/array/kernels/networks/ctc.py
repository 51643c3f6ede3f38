"""The loss of connectionist temporal classification (CTC), and its gradient.

The loss is the negative log-probability of a label sequence under per-step probabilities (Graves et
al., ICML 2006). With blanks between labels, ``l' = blank, l1, blank, l2 … blank``, the forward
variable ``alpha[t, s]`` sums the probabilities of all prefixes that end in ``l'[s]`` at step ``t``;
the backward variable ``beta[t, s]`` sums those of all suffixes that start there (equations 6 to
11). Both are logarithms in float64: in float32 their differences would lose too many digits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.kernels.networks.checks import (
    check_integers,
    check_range,
    check_rank,
    check_shape,
    refuse,
)
from burn_remote_server.backends.array.kernels.networks.module_kernels import (
    Array,
    Kernel,
    ModuleKernels,
)

__all__ = ["Ctc"]


class _Emissions:
    """The log-probability of each state's label at each step, ``[batch, states]``, in float64.

    A table of all steps would be ``states / classes`` times as large as the input, so blocks of
    steps are computed when they are needed, forward or backward.
    """

    def __init__(
        self, xp: Any, log_probs: Array, labels: Array, counted: Array, workspace_bytes: int
    ) -> None:
        self._xp = xp
        self._log_probs = log_probs
        self._labels = labels
        self._counted = counted
        # Four arrays per block: indices, gathered elements, their float64 copy, and the result.
        self._steps_at_once = max(1, workspace_bytes // max(1, 32 * labels.size))
        self._first = self._last = 0
        self._block: Array = None

    def __getitem__(self, step: int) -> Array:
        if not self._first <= step < self._last:
            xp = self._xp
            self._block = None
            self._first = step - step % self._steps_at_once
            self._last = self._first + self._steps_at_once
            part = self._log_probs[self._first : self._last]
            labels = xp.broadcast_to(self._labels, (part.shape[0], *self._labels.shape))
            picked = xp.take_along_axis(part, labels, axis=2).astype(np.float64)
            self._block = xp.where(self._counted, picked, -np.inf)
        return self._block[step - self._first]


class _Problem(NamedTuple):
    """The data of a batch.

    ``labels`` are ``[batch, states]`` with blanks. ``emitted`` has the log-probability of each
    state's label at each step. ``skips`` says whether a state may follow the one before its blank.
    ``states`` and ``steps``, ``[batch, 1]``, are the numbers of states and steps of each sample.
    """

    labels: Array
    emitted: _Emissions
    skips: Array
    states: Array
    steps: Array


class Ctc(ModuleKernels):
    """CTC losses and their gradients.

    ``log_probs`` is ``[steps, batch, classes]``, ``targets`` ``[batch, length]``; lengths, losses
    and the losses' gradient are ``[batch]``.
    """

    def table(self) -> Mapping[str, Kernel]:
        """Return the kernels by the names of their IR variants."""
        return {"CtcLoss": self.ctc_loss, "CtcLossBackward": self.ctc_loss_backward}

    def ctc_loss(
        self,
        log_probs: Array,
        targets: Array,
        input_lengths: Array,
        target_lengths: Array,
        *,
        blank: int,
        out: TensorSpec,
    ) -> Array:
        """Return ``-log p(targets)`` per sample; infinity if the input is too short for them."""
        _check("CtcLoss", log_probs, targets, input_lengths, target_lengths, blank)
        problem = self._problem("CtcLoss", log_probs, targets, input_lengths, target_lengths, blank)
        alpha = self._first_states(problem)
        for step in range(1, log_probs.shape[0]):
            alpha = self._step(problem, alpha, step)
        return self._losses(problem, alpha).astype(log_probs.dtype)

    def ctc_loss_backward(
        self,
        log_probs: Array,
        targets: Array,
        input_lengths: Array,
        target_lengths: Array,
        grad_loss: Array,
        *,
        blank: int,
        out: TensorSpec,
    ) -> Array:
        """Return the gradient of ``log_probs``: ``(exp(log_probs) - posterior) * grad_loss``.

        This is the definition of Burn's and PyTorch's native kernels. It already includes the
        gradient of the preceding log-softmax, whose own backward function leaves it unchanged. It
        is zero for steps after a sample's end and for samples with an infinite loss.
        """
        operation = "CtcLossBackward"
        _check(operation, log_probs, targets, input_lengths, target_lengths, blank)
        steps, batch, classes = log_probs.shape
        check_shape(operation, "grad_loss", grad_loss, (batch,))
        xp = self.xp
        problem = self._problem(operation, log_probs, targets, input_lengths, target_lengths, blank)
        alphas = [self._first_states(problem)]
        for step in range(1, steps):
            alphas.append(self._step(problem, alphas[-1], step))
        losses = self._losses(problem, alphas[-1])
        known = losses != np.inf
        log_total = xp.where(known, -losses, 0.0)[:, None]
        result = xp.zeros((steps, batch, classes), np.float64)
        cells = (xp.arange(batch, dtype=np.int64)[:, None] * classes + problem.labels).reshape(-1)
        beta = None
        for step in reversed(range(steps)):
            beta = self._step_back(problem, beta, step)
            # Both alpha and beta include the label's probability at this step: subtract it once.
            emitted = problem.emitted[step]
            counted = xp.where(xp.isfinite(emitted), emitted, 0.0)
            posterior = xp.exp(alphas[step] + beta - counted - log_total)
            shares = xp.zeros(batch * classes, np.float64)
            self._scatter_add(shares, cells, posterior.reshape(-1))
            found = xp.exp(log_probs[step].astype(np.float64)) - shares.reshape(batch, classes)
            counts = (step < problem.steps) & known[:, None]
            result[step] = xp.where(counts, found * grad_loss[:, None], 0.0)
        return result.astype(log_probs.dtype)

    def _problem(
        self,
        operation: str,
        log_probs: Array,
        targets: Array,
        input_lengths: Array,
        target_lengths: Array,
        blank: int,
    ) -> _Problem:
        xp = self.xp
        batch, length = targets.shape
        used = xp.arange(length) < target_lengths[:, None]
        labels = xp.full((batch, 2 * length + 1), blank, dtype=np.int64)
        labels[:, 1::2] = xp.where(used, targets, blank)
        check_range(operation, "targets", labels, 0, log_probs.shape[2])
        skips = xp.zeros(labels.shape, dtype=bool)
        skips[:, 3::2] = (labels[:, 3::2] != labels[:, 1:-2:2]) & (labels[:, 3::2] != blank)
        states = 2 * target_lengths.astype(np.int64)[:, None] + 1
        counted = xp.arange(labels.shape[1]) < states
        emitted = _Emissions(xp, log_probs, labels, counted, self.workspace_bytes)
        return _Problem(labels, emitted, skips, states, input_lengths[:, None])

    def _first_states(self, problem: _Problem) -> Array:
        """Return ``alpha`` at step 0: a sequence starts with a blank or its first label.

        A sample without steps stays in a state before the start; in this state, only an empty
        target is complete.
        """
        xp = self.xp
        starts = xp.arange(problem.labels.shape[1]) < 2
        alpha = xp.where(starts, problem.emitted[0], -np.inf)
        nothing = xp.where(xp.arange(problem.labels.shape[1]) == 0, 0.0, -np.inf)
        return xp.where(problem.steps > 0, alpha, nothing)

    def _step(self, problem: _Problem, alpha: Array, step: int) -> Array:
        """Return ``alpha`` of the next step; samples past their last step keep theirs."""
        reached = self.xp.logaddexp(alpha, self._shifted(alpha, 1))
        skipped = self.xp.where(problem.skips, self._shifted(alpha, 2), -np.inf)
        reached = self.xp.logaddexp(reached, skipped) + problem.emitted[step]
        return self.xp.where(step < problem.steps, reached, alpha)

    def _step_back(self, problem: _Problem, beta: Array | None, step: int) -> Array:
        """Return ``beta`` at ``step`` from the next step's, which is ``None`` at the last step."""
        xp = self.xp
        places = xp.arange(problem.labels.shape[1])
        ends = (places >= problem.states - 2) & (places < problem.states)
        last = xp.where(ends, problem.emitted[step], -np.inf)
        if beta is None:
            beta = xp.full(last.shape, -np.inf)
        followed = xp.logaddexp(beta, self._shifted(beta, -1))
        # A transition may skip the blank between two different labels.
        skipped = self._shifted(xp.where(problem.skips, beta, -np.inf), -2)
        followed = xp.logaddexp(followed, skipped) + problem.emitted[step]
        return xp.where(step == problem.steps - 1, last, followed)

    def _shifted(self, states: Array, by: int) -> Array:
        """Return the states moved by ``by`` places, filled with -inf."""
        moved = self.xp.full(states.shape, -np.inf)
        if by > 0:
            moved[:, by:] = states[:, :-by]
        else:
            moved[:, :by] = states[:, -by:]
        return moved

    def _losses(self, problem: _Problem, alpha: Array) -> Array:
        """Return ``-log`` of all paths that end in the last label or the blank after it."""
        xp = self.xp
        last = xp.take_along_axis(alpha, problem.states - 1, axis=1)
        before = xp.take_along_axis(alpha, xp.maximum(problem.states - 2, 0), axis=1)
        before = xp.where(problem.states > 1, before, -np.inf)
        return -xp.logaddexp(last, before)[:, 0]


def _check(
    operation: str,
    log_probs: Array,
    targets: Array,
    input_lengths: Array,
    target_lengths: Array,
    blank: int,
) -> None:
    check_rank(operation, "log_probs", log_probs, 3, "[steps, batch, classes]")
    steps, batch, classes = log_probs.shape
    if steps < 1:
        raise refuse(operation, "shape of log_probs", log_probs.shape, "at least one step")
    if not 0 <= blank < classes:
        raise refuse(operation, "blank", blank, f"in 0..{classes - 1}")
    check_rank(operation, "targets", targets, 2, "[batch, length]")
    check_shape(operation, "targets", targets, (batch, targets.shape[1]))
    check_integers(operation, "targets", targets)
    for name, lengths, most in (
        ("input_lengths", input_lengths, steps),
        ("target_lengths", target_lengths, targets.shape[1]),
    ):
        check_shape(operation, name, lengths, (batch,))
        check_range(operation, name, lengths, 0, most + 1)
