"""Linear layers, embeddings, attention and gradients match their definitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import burn_remote as br
from burn_remote import functional as F
from burn_remote import gradients as G
from support.values import same

RNG = np.random.default_rng(0)


def softmax(a: np.ndarray, axis: int = -1) -> Any:
    powers = np.exp(a - a.max(axis, keepdims=True))
    return powers / powers.sum(axis, keepdims=True)


def test_linear_layers_and_embeddings_match_their_definitions(device: br.Device) -> None:
    a, w, b = RNG.random((2, 5, 3)), RNG.random((4, 3)), RNG.random(4)
    x, weight, bias = (br.tensor(one, device=device) for one in (a, w, b))
    same(F.linear(x, weight, bias), a @ w.T + b, 1e-12)
    same(F.linear(x, weight), a @ w.T, 1e-12)
    for places in (
        np.array([[0, 3], [2, 2]]),
        np.array([1]),
        np.array(2),
        np.zeros((2, 1, 3), int),
    ):
        same(F.embedding(br.tensor(places, device=device), weight), w[places])
    same(
        F.one_hot(br.tensor([[0, 2], [1, 1]], device=device), 3),
        np.eye(3, dtype=int)[[[0, 2], [1, 1]]],
    )
    with pytest.raises(br.UsageError, match="num_classes"):
        F.one_hot(br.tensor([0], device=device), -1)


def test_attention_matches_its_definition(device: br.Device) -> None:
    q, k, v = RNG.random((2, 3, 4, 8)), RNG.random((2, 3, 5, 8)), RNG.random((2, 3, 5, 6))
    query, key, value = (br.tensor(one, device=device) for one in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(8)
    attend = F.scaled_dot_product_attention
    same(attend(query, key, value), softmax(scores) @ v, 1e-12)
    seen = RNG.random((4, 5)) < 0.7
    seen[:, 0] = True
    masked = np.where(seen, scores, -np.inf)
    mask = br.tensor(seen, device=device)
    same(attend(query, key, value, mask), softmax(masked) @ v, 1e-12)
    same(attend(query[0], key[0], value[0], mask), softmax(masked[0]) @ v[0], 1e-12)
    bias = RNG.random((4, 5))
    added = attend(query, key, value, br.tensor(bias, device=device), scale=0.5)
    same(added, softmax(q @ k.swapaxes(-1, -2) / 2 + bias) @ v, 1e-12)
    square = attend(query, key[:, :, :4], value[:, :, :4], is_causal=True)
    causal = np.where(np.tri(4, dtype=bool), scores[..., :4], -np.inf)
    same(square, softmax(causal) @ v[:, :, :4], 1e-12)
    with pytest.raises(br.UsageError, match="dropout"):
        attend(query, key, value, dropout_p=0.1)


def test_heads_of_keys_and_values_may_serve_several_heads_of_the_query(device: br.Device) -> None:
    q, k, v = RNG.random((2, 6, 4, 8)), RNG.random((2, 2, 5, 8)), RNG.random((2, 3, 5, 7))
    query, key, value = (br.tensor(one, device=device) for one in (q, k, v))
    scores = q @ k.repeat(3, axis=1).swapaxes(-1, -2) / math.sqrt(8)
    found = F.scaled_dot_product_attention(query, key, value, enable_gqa=True)
    same(found, softmax(scores) @ v.repeat(2, axis=1), 1e-12)
    with pytest.raises(br.ShapeMismatch, match=r"4 heads .* cannot serve equally many of the 6"):
        four = br.ones((2, 4, 5, 8), dtype=br.float64, device=device)
        F.scaled_dot_product_attention(query, four, four, enable_gqa=True)
    with pytest.raises(br.ShapeMismatch, match="enable_gqa needs query"):
        F.scaled_dot_product_attention(query[0], key[0], value[0], enable_gqa=True)


@pytest.mark.parametrize(("queries", "keys"), [(4, 7), (7, 4), (1, 5), (5, 1)])
def test_a_causal_query_attends_to_keys_at_its_position_and_before(
    device: br.Device, queries: int, keys: int
) -> None:
    q = RNG.random((2, 3, queries, 8))
    k, v = RNG.random((2, 3, keys, 8)), RNG.random((2, 3, keys, 6))
    query, key, value = (br.tensor(one, device=device) for one in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(8)
    seen = np.tri(queries, keys, dtype=bool)
    attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    same(attended, softmax(np.where(seen, scores, -np.inf)) @ v, 1e-12)
    single = F.scaled_dot_product_attention(query[0], key[0], value[0], is_causal=True)
    same(single, softmax(np.where(seen, scores[0], -np.inf)) @ v[0], 1e-12)
    allowed = RNG.random((queries, keys)) < 0.7
    allowed[:, 0] = True
    both = F.scaled_dot_product_attention(
        query, key, value, br.tensor(allowed, device=device), is_causal=True
    )
    same(both, softmax(np.where(seen & allowed, scores, -np.inf)) @ v, 1e-12)


def test_gradients_of_layers_match_their_definitions(device: br.Device) -> None:
    a, w, g = RNG.random((2, 5, 3)), RNG.random((3, 4)), RNG.random((2, 5, 4))
    x, weight, grad = (br.tensor(one, device=device) for one in (a, w, g))
    same(G.linear_x_backward(weight, grad), g @ w.T, 1e-12)
    same(G.linear_weight_backward(x, grad), np.einsum("bni,bno->io", a, g), 1e-12)
    same(G.linear_bias_backward(grad), g.sum((0, 1)), 1e-12)
    places = np.array([[0, 2], [2, 2]])
    rows = RNG.random((2, 2, 4))
    expected = np.zeros((3, 4))
    np.add.at(expected, places, rows)
    indices, row_grad = br.tensor(places, device=device), br.tensor(rows, device=device)
    same(G.embedding_backward(weight, row_grad, indices), expected, 1e-12)
