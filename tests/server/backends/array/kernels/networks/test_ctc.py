"""The CTC loss, compared with a sum over all paths by enumeration."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch
from support.gradients import numeric_gradient
from support.module_kernels import Array, call_kernel, normal, run


def log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def loss_by_paths(log_probs: Array, labels: list[int], blank: int) -> float:
    """Return ``-log p(labels)`` from ``[steps, classes]``: merge repeats, then drop blanks."""
    steps, classes = log_probs.shape
    total = 0.0
    for path in itertools.product(range(classes), repeat=steps):
        spelt = [label for label, _ in itertools.groupby(path) if label != blank]
        if spelt == labels:
            total += math.exp(sum(log_probs[t, label] for t, label in enumerate(path)))
    return -math.log(total) if total else math.inf


@st.composite
def problems(draw: st.DrawFn) -> tuple[Array, Array, Array, Array, int]:
    steps, batch, classes = draw(st.integers(1, 4)), draw(st.integers(0, 3)), 3
    length, blank = draw(st.integers(0, 3)), draw(st.integers(0, 2))
    labels = [label for label in range(classes) if label != blank]
    targets = [[draw(st.sampled_from(labels)) for _ in range(length)] for _ in range(batch)]
    input_lengths = [draw(st.integers(0, steps)) for _ in range(batch)]
    target_lengths = [draw(st.integers(0, length)) for _ in range(batch)]
    return (
        normal(draw(st.integers(0, 2**32)), steps, batch, classes),
        np.array(targets, np.int64).reshape(batch, length),
        np.array(input_lengths, np.int64),
        np.array(target_lengths, np.int32),
        blank,
    )


@given(problems())
@settings(deadline=None)
def test_the_loss_is_the_sum_over_all_paths(
    problem: tuple[Array, Array, Array, Array, int],
) -> None:
    logits, targets, input_lengths, target_lengths, blank = problem
    log_probs = log_softmax(logits)
    lengths = (input_lengths, target_lengths)
    found = run("CtcLoss", log_probs, targets, *lengths, blank=blank)
    expected = [
        loss_by_paths(log_probs[:steps, n], targets[n, :length].tolist(), blank)
        for n, (steps, length) in enumerate(zip(*lengths, strict=True))
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@given(problems())
@settings(deadline=None, max_examples=50)
def test_the_gradient_is_that_of_the_logits_before_a_log_softmax(
    problem: tuple[Array, Array, Array, Array, int],
) -> None:
    logits, *rest, blank = problem
    grad = normal(5, logits.shape[1])

    def losses(logits: Array) -> Array:
        # An infinite loss has the gradient zero by definition, as training needs.
        found = run("CtcLoss", log_softmax(logits), *rest, blank=blank)
        return np.where(np.isfinite(found), found, 0)

    found = run("CtcLossBackward", log_softmax(logits), *rest, grad, blank=blank)
    np.testing.assert_allclose(found, numeric_gradient(losses, logits, grad), rtol=1e-6, atol=1e-7)


def test_long_inputs_keep_their_digits_in_float32() -> None:
    logits = normal(1, 2000, 1, 30, dtype=np.float32)
    targets = np.arange(600).reshape(1, 600) % 29 + 1
    lengths = (np.array([2000]), np.array([600]))
    exact = run("CtcLoss", log_softmax(logits.astype(np.float64)), targets, *lengths, blank=0)
    found = run("CtcLoss", log_softmax(logits), targets, *lengths, blank=0)
    np.testing.assert_allclose(found, exact, rtol=1e-5)


def test_labels_after_a_targets_length_are_ignored() -> None:
    log_probs = log_softmax(normal(1, 4, 1, 3))
    lengths = (np.array([4]), np.array([1]))
    padded = run("CtcLoss", log_probs, np.array([[1, -100]]), *lengths, blank=0)
    alone = run("CtcLoss", log_probs, np.array([[1]]), *lengths, blank=0)
    np.testing.assert_array_equal(padded, alone)


def test_impossible_classes_leave_the_gradient_finite() -> None:
    # The third class has probability 0.
    with np.errstate(divide="ignore"):
        log_probs = np.log(np.array([[[0.5, 0.5, 0.0]]] * 3))
    arguments: tuple[Any, ...] = (np.array([[1]]), np.array([3]), np.array([1]), np.ones(1))
    assert np.isfinite(run("CtcLossBackward", log_probs, *arguments, blank=0)).all()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"log_probs": np.zeros((4, 3))}, "shape of log_probs"),
        ({"log_probs": np.zeros((0, 2, 3))}, "shape of log_probs .* at least one step"),
        ({"targets": np.zeros((3, 2), int)}, r"shape of targets .* expected \[2, 2\]"),
        ({"targets": np.full((2, 2), 3)}, r"a value of targets is 3, expected in 0\.\.2"),
        ({"targets": np.full((2, 2), -1)}, r"a value of targets is -1, expected in 0\.\.2"),
        ({"input_lengths": np.array([1])}, r"shape of input_lengths .* expected \[2\]"),
        ({"input_lengths": np.array([1, 5])}, "a value of input_lengths is 5"),
        ({"target_lengths": np.array([-1, 2])}, "a value of target_lengths is -1"),
        ({"target_lengths": np.array([1, 3])}, "a value of target_lengths is 3"),
    ],
)
def test_a_mismatched_argument_is_refused_by_name(changed: dict[str, Array], words: str) -> None:
    usual = {
        "log_probs": np.zeros((4, 2, 3)),
        "targets": np.ones((2, 2), int),
        "input_lengths": np.array([4, 4]),
        "target_lengths": np.array([2, 2]),
    }
    with pytest.raises(ShapeMismatch, match=f"^CtcLoss: {words}"):
        call_kernel("CtcLoss", *(usual | changed).values(), blank=0)


def test_an_invalid_blank_and_fractional_targets_are_refused() -> None:
    lengths = (np.array([4]), np.array([1]))
    with pytest.raises(ShapeMismatch, match=r"blank is 3, expected in 0\.\.2"):
        call_kernel("CtcLoss", np.zeros((4, 1, 3)), np.ones((1, 1), int), *lengths, blank=3)
    with pytest.raises(DTypeMismatch, match="targets has dtype float64"):
        call_kernel("CtcLoss", np.zeros((4, 1, 3)), np.ones((1, 1)), *lengths, blank=0)
