"""Attention computed in blocks equals attention with all scores at once."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burn_remote_protocol.errors import ShapeMismatch
from burn_remote_server.backends.array.kernels.networks.module_kernels import WORKSPACE_BYTES
from support.module_kernels import BFLOAT16, Array, call_kernel, normal, run

PLAIN: dict[str, Any] = {"scale": None, "softcap": None, "is_causal": False}


def attend(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    bias: Array | None,
    *,
    scale: float | None,
    softcap: float | None,
    is_causal: bool,
) -> Array:
    """Compute attention with all scores at once, in Burn's order of steps."""
    scores = query @ key.swapaxes(-1, -2)
    scores *= 1 / math.sqrt(query.shape[3]) if scale is None else scale
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    if mask is not None:
        scores = np.where(mask, -np.inf, scores)
    if is_causal:
        queries, keys = scores.shape[2:]
        seen = np.arange(keys) <= np.arange(queries)[:, None] + keys - queries
        scores = np.where(seen, scores, -np.inf)
    if bias is not None:
        scores = scores + bias
    top = np.maximum(scores.max(axis=-1, keepdims=True, initial=-1e300), -1e300)
    powers = np.exp(scores - top)
    result: Array = powers / np.maximum(powers.sum(axis=-1, keepdims=True), 1e-300) @ value
    return result


@given(st.data())
@settings(deadline=None)
def test_attention_matches_its_definition_for_blocks_of_any_size(data: st.DataObject) -> None:
    draw = data.draw
    batch, heads = draw(st.integers(0, 2)), draw(st.integers(1, 3))
    queries, keys, dim, values = (draw(st.integers(1, 7)) for _ in range(4))
    seed = draw(st.integers(0, 2**32))
    full = (batch, heads, queries, keys)

    def broadcasting(array: Array) -> Array | None:
        kept = tuple(slice(None) if draw(st.booleans()) else slice(0, 1) for _ in range(4))
        return draw(st.sampled_from([None, array[kept]]))

    mask = broadcasting(normal(seed + 3, *full) > 0.3)
    bias = broadcasting(normal(seed + 4, *full))
    tensors = (
        normal(seed, batch, heads, queries, dim),
        normal(seed + 1, batch, heads, keys, dim),
        normal(seed + 2, batch, heads, keys, values),
        mask,
        bias,
    )
    options: dict[str, Any] = {
        "scale": draw(st.sampled_from([None, 0.5])),
        "softcap": draw(st.sampled_from([None, 1.5])),
        "is_causal": draw(st.booleans()),
    }
    blocks = {
        "workspace_bytes": draw(st.sampled_from([1, 200, WORKSPACE_BYTES])),
        "keys_at_once": draw(st.sampled_from([1, 3, 2048])),
    }
    found = run("Attention", *tensors, **options, settings=blocks)
    np.testing.assert_allclose(found, attend(*tensors, **options), rtol=1e-9, atol=1e-9)


def test_a_query_that_sees_no_key_gets_zeros() -> None:
    tensors = [normal(seed, 1, 1, 3, 2, dtype=np.float32) for seed in range(3)]
    mask = np.zeros((1, 1, 3, 3), bool)
    mask[..., 1, :] = True
    found = run("Attention", *tensors, mask, None, **PLAIN)
    np.testing.assert_array_equal(found[0, 0, 1], [0, 0])
    assert np.isfinite(found).all()


def test_queries_before_the_first_key_of_a_causal_mask_get_zeros() -> None:
    query = np.ones((1, 1, 4, 2), np.float32)
    key = value = np.ones((1, 1, 2, 2), np.float32)
    found = run("Attention", query, key, value, None, None, **(PLAIN | {"is_causal": True}))
    np.testing.assert_array_equal(found[0, 0, :, 0], [0, 0, 1, 1])


def test_blocks_of_scores_fit_into_the_workspace() -> None:
    tensors = [normal(seed, 2, 4, 1024, 16, dtype=np.float32) for seed in range(3)]
    bias = np.zeros((1, 1, 1024, 1024), np.float32)
    result = run("Attention", *tensors, None, bias, **PLAIN)
    tracemalloc.start()
    call_kernel("Attention", *tensors, None, bias, **PLAIN)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # All scores at once would take 32 MiB.
    assert peak - result.nbytes < 1.5 * WORKSPACE_BYTES


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16])
def test_low_precision_is_rounded_once(dtype: Any) -> None:
    tensors = [normal(seed, 1, 2, 5, 4, dtype=dtype) for seed in range(3)]
    found = run("Attention", *tensors, None, None, **PLAIN)
    query, key, value = (tensor.astype(np.float64) for tensor in tensors)
    exact = attend(query, key, value, None, None, **PLAIN)
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=2**-8, atol=2**-10)


@pytest.mark.parametrize(
    ("position", "shape", "words"),
    [
        (0, (2, 3, 4), "shape of query"),
        (0, (1, 2, 3, 0), "shape of query"),
        (1, (1, 2, 5, 6), r"shape of key is \[1, 2, 5, 6\], expected \[1, 2, 5, 4\]"),
        (2, (1, 2, 6, 7), r"shape of value is \[1, 2, 6, 7\], expected \[1, 2, 5, 7\]"),
        (3, (1, 2, 3, 4), r"shape of mask is \[1, 2, 3, 4\], expected \[1, 2, 3, 5\]"),
        (3, (3, 5), "shape of mask"),
        (4, (1, 3, 3, 5), "shape of attn_bias"),
    ],
)
def test_a_mismatched_tensor_is_refused_by_name(
    position: int, shape: tuple[int, ...], words: str
) -> None:
    shapes: list[tuple[int, ...]] = [
        (1, 2, 3, 4),
        (1, 2, 5, 4),
        (1, 2, 5, 7),
        (1, 1, 3, 5),
        (1, 2, 1, 5),
    ]
    shapes[position] = shape
    tensors = [np.zeros(shape, bool if i == 3 else float) for i, shape in enumerate(shapes)]
    with pytest.raises(ShapeMismatch, match=f"^Attention: {words}"):
        call_kernel("Attention", *tensors, **PLAIN)


@pytest.mark.parametrize("softcap", [0.0, -1.0, math.nan])
def test_a_soft_cap_must_be_positive(softcap: float) -> None:
    tensors = [np.zeros((1, 1, 2, 2))] * 3
    with pytest.raises(ShapeMismatch, match=f"softcap is {softcap}, expected more than 0"):
        call_kernel("Attention", *tensors, None, None, **(PLAIN | {"softcap": softcap}))
