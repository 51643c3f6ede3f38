"""MiniLM-L6: embeddings of sentences by a transformer with published weights.

``br.load(path, nested=True)`` gives the weights as nested dictionaries, in which each layer has the
names of its arguments, so ``F.linear(x, **layer)`` applies it.
"""

from __future__ import annotations

from typing import Any

import burn_remote as br
from burn_remote import functional as F


def embed(weights: dict[str, Any], tokens: br.Tensor, lengths: br.Tensor) -> br.Tensor:
    """Return embeddings ``[n, 384]`` of token numbers ``[n, tokens]``, with their lengths."""
    tables, count = weights["embeddings"], tokens.shape[1]
    words = F.embedding(tokens, tables["word_embeddings"]["weight"])
    places = tables["position_embeddings"]["weight"][:count]
    x = norm(words + places + tables["token_type_embeddings"]["weight"][0], tables)
    exists = br.arange(count, device=tokens.device) < lengths[:, None]
    for layer in weights["encoder"]["layer"].values():
        x = transformed(x, layer, exists[:, None, None])
    shares = exists[..., None].astype(x.dtype)
    return F.normalize((x * shares).sum(axis=1) / shares.sum(axis=1), dim=1)


def norm(x: br.Tensor, layer: dict[str, Any]) -> br.Tensor:
    return F.layer_norm(x, x.shape[-1:], **layer["LayerNorm"], eps=1e-12)


def transformed(x: br.Tensor, layer: dict[str, Any], exists: br.Tensor) -> br.Tensor:
    parts = [F.linear(x, **layer["attention"]["self"][one]) for one in ("query", "key", "value")]
    query, key, value = (part.reshape(*x.shape[:2], 12, -1).swapaxes(1, 2) for part in parts)
    mixed = F.scaled_dot_product_attention(query, key, value, exists).swapaxes(1, 2)
    output = layer["attention"]["output"]
    x = norm(x + F.linear(mixed.reshape(x.shape), **output["dense"]), output)
    inner = F.gelu(F.linear(x, **layer["intermediate"]["dense"]))
    return norm(x + F.linear(inner, **layer["output"]["dense"]), layer["output"])
