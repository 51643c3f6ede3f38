"""MiniLM-L6 in plain NumPy, written from the description of BERT (Devlin et al., 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import erf

__all__ = ["embed"]

Array = np.ndarray[Any, Any]


def embed(weights: Mapping[str, Array], tokens: Array, lengths: Array) -> Array:
    """Return the embeddings ``[n, 384]``, of length 1, of token numbers ``[n, tokens]``."""
    count = tokens.shape[1]
    x = weights["embeddings.word_embeddings.weight"][tokens]
    x = x + weights["embeddings.position_embeddings.weight"][:count]
    x = x + weights["embeddings.token_type_embeddings.weight"][0]
    x = _norm(weights, "embeddings.LayerNorm", x)
    exists = np.arange(count) < lengths[:, None]
    for index in range(6):
        x = _layer(weights, f"encoder.layer.{index}", x, exists)
    mean = (x * exists[:, :, None]).sum(1) / lengths[:, None].astype(x.dtype)
    normalized: Array = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    return normalized


def _layer(weights: Mapping[str, Array], name: str, x: Array, exists: Array) -> Array:
    n, count, width = x.shape
    query, key, value = (
        _linear(weights, f"{name}.attention.self.{part}", x)
        .reshape(n, count, 12, width // 12)
        .transpose(0, 2, 1, 3)
        for part in ("query", "key", "value")
    )
    scores = query @ key.transpose(0, 1, 3, 2) / np.sqrt(np.float32(width // 12))
    scores = np.where(exists[:, None, None, :], scores, np.float32(-np.inf))
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = (scores / scores.sum(-1, keepdims=True)) @ value
    mixed = mixed.transpose(0, 2, 1, 3).reshape(n, count, width)
    output = f"{name}.attention.output"
    x = _norm(weights, f"{output}.LayerNorm", x + _linear(weights, f"{output}.dense", mixed))
    inner = _linear(weights, f"{name}.intermediate.dense", x)
    inner = inner * np.float32(0.5) * (1 + erf(inner / np.sqrt(np.float32(2))))
    inner = _linear(weights, f"{name}.output.dense", inner)
    return _norm(weights, f"{name}.output.LayerNorm", x + inner)


def _linear(weights: Mapping[str, Array], name: str, x: Array) -> Array:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _norm(weights: Mapping[str, Array], name: str, x: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + np.float32(1e-12))
    shifted: Array = scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    return shifted
