"""Linear layers multiply the last axis; leading axes are arbitrary."""

from __future__ import annotations

import numpy as np
import pytest

from burn_remote_protocol.errors import ShapeMismatch
from support.gradients import numeric_gradient
from support.module_kernels import Array, normal, run

LEADING = [(), (3,), (2, 3), (2, 1, 3), (0, 3)]


def forward(x: Array, weight: Array, bias: Array | None) -> Array:
    y: Array = np.einsum("...i,io->...o", x, weight)
    return y if bias is None else y + bias


@pytest.mark.parametrize("leading", LEADING)
def test_layers_and_gradients_match_their_definition(leading: tuple[int, ...]) -> None:
    x, weight, bias = normal(1, *leading, 4), normal(2, 4, 5), normal(3, 5)
    grad = normal(4, *leading, 5)
    np.testing.assert_allclose(run("Linear", x, weight, bias), forward(x, weight, bias))
    np.testing.assert_allclose(run("Linear", x, weight, None), forward(x, weight, None))
    for name, tensors, gradient in (
        ("LinearXBackward", (weight, grad), lambda x: forward(x, weight, bias)),
        ("LinearWeightBackward", (x, grad), lambda weight: forward(x, weight, bias)),
        ("LinearBiasBackward", (grad,), lambda bias: forward(x, weight, bias)),
    ):
        moved = {"LinearXBackward": x, "LinearWeightBackward": weight, "LinearBiasBackward": bias}
        expected = numeric_gradient(gradient, moved[name], grad, step=1.0)
        np.testing.assert_allclose(run(name, *tensors), expected, rtol=1e-9, atol=1e-9)


def test_intermediate_sums_do_not_overflow_float16() -> None:
    x = np.full((1, 4), 300, np.float16)
    weight = np.array([[300], [-300], [300], [-300]], np.float16)
    np.testing.assert_array_equal(run("Linear", x, weight, None), [[0]])


def test_mismatched_features_are_refused_by_name() -> None:
    with pytest.raises(ShapeMismatch, match=r"x is .*, but weight .* takes 4 features"):
        run("Linear", np.zeros((2, 3)), np.zeros((4, 5)), None)
    with pytest.raises(ShapeMismatch, match=r"weight"):
        run("Linear", np.zeros((2, 4)), np.zeros((1, 4, 5)), None)
    with pytest.raises(ShapeMismatch, match=r"bias"):
        run("Linear", np.zeros((2, 4)), np.zeros((4, 5)), np.zeros(4))
    with pytest.raises(ShapeMismatch, match=r"output_grad is .*, but weight .* makes 5 features"):
        run("LinearXBackward", np.zeros((4, 5)), np.zeros((2, 4)))
    with pytest.raises(ShapeMismatch, match=r"x is .*, output_grad .* differ in the last axis"):
        run("LinearWeightBackward", np.zeros((2, 4)), np.zeros((3, 5)))
    with pytest.raises(ShapeMismatch, match=r"\bx\b"):
        run("LinearWeightBackward", np.zeros(()), np.zeros(5))
    with pytest.raises(ShapeMismatch, match=r"output_grad"):
        run("LinearBiasBackward", np.zeros(()))
