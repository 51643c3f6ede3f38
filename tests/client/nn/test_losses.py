"""Losses of numbers and probabilities match their definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote import functional as F
from support.values import same

RNG = np.random.default_rng(0)


def test_losses_of_numbers_match_their_definitions(device: br.Device) -> None:
    a, t = RNG.normal(size=(3, 4)) * 2, RNG.random((3, 4))
    x, y = br.tensor(a, device=device), br.tensor(t, device=device)
    d = np.abs(a - t)
    same(F.mse_loss(x, y), (d**2).mean(), 1e-12)
    same(F.l1_loss(x, y, reduction="sum"), d.sum(), 1e-12)
    same(F.huber_loss(x, y, "none", 0.5), np.where(d < 0.5, d**2 / 2, 0.5 * (d - 0.25)), 1e-12)
    same(F.smooth_l1_loss(x, y, "none"), np.where(d < 1, d**2 / 2, d - 0.5), 1e-12)
    p = 1 / (1 + np.exp(-a))
    expected = -(t * np.log(p) + (1 - t) * np.log(1 - p)).mean()
    same(F.binary_cross_entropy_with_logits(x, y), expected, 1e-12)
    same(F.binary_cross_entropy(x.sigmoid(), y), expected, 1e-12)
    t[0, 0] = 0
    y = br.tensor(t, device=device)
    single = np.where(t == 0, 0, t * (np.log(np.where(t == 0, 1, t)) - a))
    same(F.kl_div(x, y, reduction="batchmean"), single.sum() / 3, 1e-12)
    same(F.kl_div(x, y.clip(min=0.1).log(), "sum", log_target=True),
         (np.clip(t, 0.1, None) * (np.log(np.clip(t, 0.1, None)) - a)).sum(), 1e-12)  # fmt: skip
    with pytest.raises(br.UsageError, match="reduction"):
        F.mse_loss(x, y, reduction="median")


def test_weights_of_positive_targets_weight_their_share_of_the_loss(device: br.Device) -> None:
    a, t = RNG.normal(size=(3, 4)) * 2, RNG.random((3, 4))
    heavier, share = RNG.random(4) * 5, RNG.random((3, 1))
    x, y, p, w = (br.tensor(one, device=device) for one in (a, t, heavier, share))
    likely = 1 / (1 + np.exp(-a))
    losses = -(heavier * t * np.log(likely) + (1 - t) * np.log(1 - likely))
    same(F.binary_cross_entropy_with_logits(x, y, pos_weight=p), losses.mean(), 1e-12)
    x.requires_grad_()
    found = F.binary_cross_entropy_with_logits(x, y, "none", weight=w, pos_weight=p)
    same(found, losses * share, 1e-12)
    found.sum().backward()
    assert x.grad is not None
    same(x.grad, share * ((1 - t) * likely - heavier * t * (1 - likely)), 1e-12)
    doubled = -(2 * t * np.log(likely) + (1 - t) * np.log(1 - likely))
    same(F.binary_cross_entropy_with_logits(x, y, "sum", pos_weight=2), doubled.sum(), 1e-12)
    x = br.tensor([900.0, -900.0, 20.0], device=device).requires_grad_()
    extreme = F.binary_cross_entropy_with_logits(
        x, br.tensor([1.0, 0.0, 1.0], device=device), "sum", pos_weight=3.0
    )
    extreme.backward()
    same(extreme, np.float32(3 * np.log1p(np.exp(-20.0))), 1e-6)
    assert x.grad is not None
    same(x.grad, np.array([0, 0, -3 / (1 + np.exp(20.0))], np.float32), 1e-6)


COLUMN, ROW = np.array([[0.1], [0.4], [0.8]], np.float32), np.array([0.0, 1.0, 1.0], np.float32)


@pytest.mark.parametrize(
    "loss_of",
    [F.mse_loss, F.l1_loss, F.huber_loss, F.smooth_l1_loss, F.kl_div, F.soft_margin_loss],
)
def test_a_loss_that_broadcasts_its_target_warns_at_the_line_of_the_program(
    loss_of: Any, device: br.Device
) -> None:
    x, y = br.tensor(COLUMN, device=device), br.tensor(ROW, device=device)
    with pytest.warns(UserWarning, match=r"target\.reshape\(\(3, 1\)\)") as warned:
        loss_of(x, y)
    assert [one.filename for one in warned] == [__file__]
    assert loss_of(x, y.reshape((3, 1)), reduction="none").shape == (3, 1)


def test_a_weight_multiplies_each_binary_cross_entropy(device: br.Device) -> None:
    a, b, w = (RNG.uniform(0.1, 0.9, size) for size in ((3, 4), (3, 4), (4,)))
    x, y, weight = (br.tensor(one, device=device) for one in (a, b, w))
    losses = -(b * np.log(a) + (1 - b) * np.log(1 - a)) * w
    same(F.binary_cross_entropy(x, y, weight=weight), losses.mean(), 1e-12)
    same(F.binary_cross_entropy(x, y, "none", weight=weight), losses, 1e-12)


@pytest.mark.parametrize("loss_of", [F.binary_cross_entropy, F.binary_cross_entropy_with_logits])
def test_binary_cross_entropy_refuses_a_target_of_another_shape(
    loss_of: Any, device: br.Device
) -> None:
    x, y = br.tensor(COLUMN, device=device), br.tensor(ROW, device=device)
    with pytest.raises(br.ShapeMismatch, match=r"target\.reshape\(\(3, 1\)\)"):
        loss_of(x, y)
    with pytest.raises(br.ShapeMismatch, match=r"must have the shape \[3, 1\] of the input"):
        loss_of(x, y[:2])
    assert loss_of(x, y.reshape((3, 1)), reduction="none").shape == (3, 1)


def test_a_target_of_one_element_is_meant_for_all_inputs(device: br.Device) -> None:
    x, one = br.tensor(COLUMN, device=device), br.tensor([1.0], device=device)
    same(F.mse_loss(x, one), ((COLUMN - 1) ** 2).mean(), 1e-6)
    same(F.binary_cross_entropy(x, one), -np.log(COLUMN).mean(), 1e-6)
