"""Losses that PyTorch has no decompositions for, and their backward operations."""

from __future__ import annotations

from typing import Any

import numpy as np

import burn_remote as br
import burn_remote.functional as F
from burn_remote.functions.casting import converted_to
from burn_remote.torch.aten.promotion import filled_like
from burn_remote.torch.aten.table import aten
from burn_remote_protocol.errors import UsageError

__all__: list[str] = []

Tensor = br.Tensor

_MEAN = 1  # PyTorch's number of the reduction


# --- connectionist temporal classification ------------------------------------------------------


@aten("_ctc_loss", "_ctc_loss.Tensor")
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the losses ``[batch]``, and zeros in place of what the CPU keeps for the gradient.

    Waits for the length of the longest target if targets are concatenated and their lengths a
    tensor.
    """
    steps, batch, _ = log_probs.shape
    labels, inputs, lengths = _problem(log_probs, targets, input_lengths, target_lengths)
    losses = F.ctc_loss(log_probs, labels, inputs, lengths, blank, "none")
    kept = br.broadcast_to(filled_like(log_probs, 0.0), (batch, steps, 2 * labels.shape[1] + 1))
    return losses, kept


@aten("_ctc_loss_backward", "_ctc_loss_backward.Tensor")
def ctc_loss_backward(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    losses: Tensor,
    log_alpha: Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Tensor:
    labels, inputs, lengths = _problem(log_probs, targets, input_lengths, target_lengths)
    grad = br.broadcast_to(grad, losses.shape)
    result = br.gradients.ctc_loss_backward(log_probs, labels, inputs, lengths, grad, blank)
    if zero_infinity:
        return result
    # The gradient of an infinite loss is NaN, up to the end of the sample.
    steps = br.arange(log_probs.shape[0], dtype=br.int64, device=log_probs.device)
    lost = br.logical_and(br.expand_dims(steps, 1) < inputs, br.isinf(losses))
    return br.mask_fill(result, br.broadcast_to(br.expand_dims(lost, 2), result.shape), np.nan)


def _problem(
    log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Return targets ``[batch, length]`` and the lengths of inputs and targets ``[batch]``."""
    steps, batch, _ = log_probs.shape
    lengths = []
    for name, given in (("input_lengths", input_lengths), ("target_lengths", target_lengths)):
        count = given.size if type(given) is Tensor else len(given)
        if count != batch:
            raise UsageError(
                f"{name} must have {batch} elements, one for each sample, but has {count}"
            )
        if type(given) is not Tensor:
            given = br.tensor(np.array(given, np.int64), device=log_probs.device)
        lengths.append(converted_to(given, br.int64))
    if type(input_lengths) is not Tensor and max(input_lengths, default=0) > steps:
        raise UsageError(
            f"input_lengths must be at most {steps}, the size of axis 0 of log_probs, but one is "
            f"{max(input_lengths)}"
        )
    targets = converted_to(targets, br.int64)
    if targets.ndim == 2:
        return targets, *lengths  # type: ignore[return-value]  # two of them
    if type(target_lengths) is Tensor:
        longest = int(br.max(target_lengths)) if batch else 0
    else:
        longest = max(target_lengths, default=0)
    starts = br.cumulative_sum(lengths[1], axis=0) - lengths[1]
    places = br.arange(longest, dtype=br.int64, device=targets.device)
    places = br.expand_dims(starts, 1) + places
    # Places after the end of a target are not read.
    places = br.clip(places, min=0, max=max(targets.size - 1, 0))
    padded = br.reshape(br.take(targets, br.flatten(places), axis=0), (batch, longest))
    return padded, *lengths  # type: ignore[return-value]


# --- margins ------------------------------------------------------------------------------------


def _share(grad: Tensor, reduction: int, batch: int) -> Tensor:
    """Return the gradient of each sample's loss, ``[batch, 1]`` or ``[]``."""
    if reduction == _MEAN:
        return grad / batch
    return br.reshape(grad, (-1, 1)) if grad.ndim else grad


@aten("multi_margin_loss_backward")
def multi_margin_loss_backward(
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    p: Any,
    margin: Any,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    rows = x if x.ndim == 2 else br.reshape(x, (1, -1))
    batch, classes = rows.shape
    places = br.reshape(converted_to(target, br.int64), (-1, 1))
    margins = margin - br.gather(rows, 1, places) + rows
    counted = br.arange(classes, dtype=br.int64, device=x.device) != places
    slopes = br.where(margins > 0, filled_like(x, 1.0) if p == 1 else 2 * margins, 0.0)
    slopes = br.where(counted, slopes, 0.0) / classes
    if weight is not None:
        slopes = slopes * br.take(weight, br.flatten(places), axis=0).reshape((-1, 1))
    slopes = br.where(counted, slopes, br.negative(br.sum(slopes, axis=1, keepdims=True)))
    return br.reshape(slopes * _share(grad, reduction, batch), x.shape)


@aten("multilabel_margin_loss_backward")
def multilabel_margin_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, reduction: int, is_target: Tensor
) -> Tensor:
    rows, labels, found = (
        one if one.ndim == 2 else br.reshape(one, (1, -1)) for one in (x, target, is_target)
    )
    batch, classes = rows.shape
    # Labels after the first -1 do not count.
    counted = br.cumulative_sum(converted_to(labels < 0, br.int64), axis=1) < 1
    places = converted_to(br.where(counted, labels, 0), br.int64)
    margins = 1 - br.expand_dims(br.gather(rows, 1, places), 2) + br.expand_dims(rows, 1)
    active = br.logical_and(margins > 0, br.expand_dims(counted, 2))
    active = br.logical_and(active, br.expand_dims(br.equal(found, 0.0), 1))
    slopes = converted_to(active, x.dtype) / classes
    result = br.sum(slopes, axis=1)
    of_labels = br.negative(br.sum(slopes, axis=2))
    result = br.scatter(result, 1, places, of_labels, update="add")
    return br.reshape(result * _share(grad, reduction, batch), x.shape)
