"""Embeddings look up rows of a table; gradients add up per row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from burn_remote_protocol.errors import DTypeMismatch, ShapeMismatch
from support.gradients import numeric_gradient
from support.module_kernels import BFLOAT16, call_kernel, normal, run

INDICES = np.array([[0, 2, 2], [1, 0, 2]])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, BFLOAT16])
def test_an_embedding_takes_the_rows_that_the_indices_name(dtype: Any) -> None:
    weights = normal(1, 4, 5, dtype=dtype)
    found = run("Embedding", weights, INDICES)
    for place in np.ndindex(INDICES.shape):
        np.testing.assert_array_equal(found[place], weights[INDICES[place]])


@pytest.mark.parametrize("workspace", [1, 8 * 2**20])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_the_gradient_of_a_row_sums_those_of_its_uses(dtype: Any, workspace: int) -> None:
    weights, grad = normal(1, 4, 5), normal(2, 2, 3, 5)
    limits = {"workspace_bytes": workspace}
    found = run("EmbeddingBackward", weights, grad, INDICES.astype(dtype), settings=limits)
    expected = numeric_gradient(lambda table: table[INDICES], weights, grad, step=1.0)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_empty_indices_give_no_rows_and_a_zero_gradient() -> None:
    weights, none = normal(1, 4, 5), np.zeros((0, 3), np.int64)
    assert run("Embedding", weights, none).shape == (0, 3, 5)
    assert not run("EmbeddingBackward", weights, np.zeros((0, 3, 5)), none).any()


@pytest.mark.parametrize("index", [-1, 4])
def test_an_index_outside_the_table_is_refused(index: int) -> None:
    weights, indices = np.zeros((4, 5)), np.array([[0, index]])
    expected = rf"a value of indices is {index}, expected in 0\.\.3"
    with pytest.raises(ShapeMismatch, match=f"^Embedding: {expected}"):
        call_kernel("Embedding", weights, indices)
    with pytest.raises(ShapeMismatch, match=f"^EmbeddingBackward: {expected}"):
        call_kernel("EmbeddingBackward", weights, np.zeros((1, 2, 5)), indices)


def test_a_mismatched_argument_is_refused_by_name() -> None:
    with pytest.raises(ShapeMismatch, match="shape of weights"):
        call_kernel("Embedding", np.zeros(4), INDICES)
    with pytest.raises(DTypeMismatch, match="indices has dtype float64, expected integers"):
        call_kernel("Embedding", np.zeros((4, 5)), INDICES.astype(float))
    with pytest.raises(ShapeMismatch, match=r"shape of out_grad .* expected \[2, 3, 5\]"):
        call_kernel("EmbeddingBackward", np.zeros((4, 5)), np.zeros((2, 3, 4)), INDICES)
