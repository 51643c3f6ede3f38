"""Attention, computed in blocks so that the whole matrix of scores is never stored.

Computes ``softmax(mask(softcap(Q K' * scale)) + bias) V`` over blocks of queries and keys with a
running maximum and sum per query (Milakov & Gimelshein, arXiv:1805.02867; Dao et al.,
"FlashAttention", arXiv:2205.14135). The order of the steps is Burn's: scale (by default
``1 / sqrt(dim)``), soft cap ``cap * tanh(scores / cap)``, mask (true hides a key), causal mask,
bias. A query for which all keys are hidden gives zeros.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple

from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.array.core.row_extremes import row_extremes
from burn_remote_server.backends.array.kernels.matrix_products import matmul
from burn_remote_server.backends.array.kernels.networks.checks import (
    check_rank,
    check_shape,
    refuse,
)
from burn_remote_server.backends.array.kernels.networks.module_kernels import (
    Array,
    Kernel,
    ModuleKernels,
    blocks,
)

__all__ = ["Attention"]

QUERIES = "[batch, heads, queries, dim]"
KEYS = "[batch, heads, keys, dim]"
SCORES = "[batch, heads, queries, keys]"


class _Options(NamedTuple):
    scale: float
    softcap: float | None
    # Number of keys visible to the first query after its own position, or None without a causal
    # mask. The last query sees the last key.
    causal_offset: int | None


class Attention(ModuleKernels):
    """Attention with any mask and bias that broadcast.

    ``query`` is ``[batch, heads, queries, dim]``, ``key`` ``[batch, heads, keys, dim]``, ``value``
    ``[batch, heads, keys, values]``; ``mask`` and ``attn_bias`` broadcast to ``[batch, heads,
    queries, keys]``; the output is ``[batch, heads, queries, values]``.
    """

    # Maximal number of keys per block of scores. With more keys, fewer queries fit into the
    # workspace, so the matrix products have fewer rows and are slower. With fewer keys, the running
    # maxima are updated more often.
    keys_at_once: ClassVar[int] = 2048
    # Workspace for several images, which are computed at once to save calls: 16 images of 4 heads
    # with 64 queries and keys took 1.0 ms at once and 1.3 ms one by one. A larger workspace would
    # not stay in the cache.
    images_bytes: ClassVar[int] = 2 * 2**20

    def table(self) -> Mapping[str, Kernel]:
        """Return the kernels by the names of their IR variants."""
        return {"Attention": self.attention}

    def attention(
        self,
        query: Array,
        key: Array,
        value: Array,
        mask: Array | None,
        attn_bias: Array | None,
        *,
        scale: float | None,
        softcap: float | None,
        is_causal: bool,
        out: TensorSpec,
    ) -> Array:
        """Return the values averaged per query with the softmax of its scores as weights."""
        _check(query, key, value)
        batch, heads, queries, dim = query.shape
        keys = key.shape[2]
        full = (batch, heads, queries, keys)
        mask = self._broadcast("mask", mask, full)
        bias = self._broadcast("attn_bias", attn_bias, full)
        if softcap is not None and not softcap > 0:
            raise refuse("Attention", "softcap", softcap, "more than 0")
        options = _Options(
            scale=1.0 / math.sqrt(dim) if scale is None else float(scale),
            softcap=softcap,
            causal_offset=keys - queries if is_causal else None,
        )
        places = [*self._query_blocks(full, query.dtype.itemsize)]
        if len(places) == 1:
            return self._attend(query, key, value, mask, bias, options, 0)
        result = self.xp.empty((batch, heads, queries, value.shape[3]), query.dtype)
        for rows in places:
            result[rows] = self._attend(
                query[rows],
                key[rows[:2]],
                value[rows[:2]],
                None if mask is None else mask[rows],
                None if bias is None else bias[rows],
                options,
                rows[2].start,
            )
        return result

    def _broadcast(
        self, argument: str, array: Array | None, shape: tuple[int, ...]
    ) -> Array | None:
        if array is None:
            return None
        check_rank("Attention", argument, array, 4, SCORES)
        for seen, wanted in zip(array.shape, shape, strict=True):
            if seen not in (1, wanted):
                expected = f"{list(shape)}, or 1 in place of a size"
                raise refuse("Attention", f"shape of {argument}", array.shape, expected)
        return self.xp.broadcast_to(array, shape)

    def _query_blocks(
        self, shape: tuple[int, ...], itemsize: int
    ) -> Iterator[tuple[slice, slice, slice]]:
        """Yield blocks of batch, heads and queries whose scores fit into the workspace."""
        batch, heads, queries, keys = shape
        # Two arrays at a time: the scores and their exponentials.
        row_bytes = max(1, 2 * min(keys, self.keys_at_once) * itemsize)
        queries_at_once = max(1, min(queries, self.workspace_bytes // row_bytes))
        heads_at_once = self.workspace_bytes // (row_bytes * queries_at_once)
        images_at_once = self.images_bytes // max(1, row_bytes * queries * heads)
        for first_image, last_image in blocks(batch, images_at_once):
            for first_head, last_head in blocks(heads, heads_at_once):
                for first, last in blocks(queries, queries_at_once):
                    yield (
                        slice(first_image, last_image),
                        slice(first_head, last_head),
                        slice(first, last),
                    )

    def _attend(
        self,
        query: Array,
        key: Array,
        value: Array,
        mask: Array | None,
        bias: Array | None,
        options: _Options,
        first_query: int,
    ) -> Array:
        """Return the output of a block of queries by a loop over blocks of keys."""
        xp = self.xp
        limits = xp.finfo(query.dtype)
        query = query * query.dtype.type(options.scale)
        highest = total = result = None
        for first, last in blocks(
            self._visible_keys(query, key, options, first_query), self.keys_at_once
        ):
            part = slice(first, last)
            scores = matmul(xp, query, key[:, :, part].swapaxes(-1, -2))
            if options.softcap is not None:
                scores /= options.softcap
                xp.tanh(scores, out=scores)
                scores *= options.softcap
            if mask is not None:
                xp.copyto(scores, -math.inf, where=mask[..., part])
            if options.causal_offset is not None:
                self._hide_future(scores, first_query + options.causal_offset - first)
            if bias is not None:
                scores += bias[..., part]
            extremes = row_extremes(xp, scores.shape, scores.dtype)
            if extremes is not None:
                top = extremes.largest(scores)
            else:
                top = scores.max(axis=-1, keepdims=True)
            # The maximum is -inf if all keys are hidden. The lowest finite number in its place
            # makes the exponentials 0 instead of NaN.
            xp.maximum(top, limits.min, out=top)
            if highest is not None:
                xp.maximum(top, highest, out=top)
            scores -= top
            xp.exp(scores, out=scores)
            sums = scores.sum(axis=-1, keepdims=True)
            weighted = matmul(xp, scores, value[:, :, part])
            if result is None:
                highest, total, result = top, sums, weighted
                continue
            shrink = xp.exp(highest - top)
            total = total * shrink + sums
            result = result * shrink + weighted
            highest = top
        if result is None:
            return xp.zeros((*query.shape[:3], value.shape[3]), query.dtype)
        result /= xp.maximum(total, limits.tiny)
        return result

    def _visible_keys(self, query: Array, key: Array, options: _Options, first_query: int) -> int:
        """Return the number of keys visible to the last query of the block."""
        keys = int(key.shape[2])
        if options.causal_offset is None:
            return keys
        seen = first_query + int(query.shape[2]) + options.causal_offset
        return max(0, min(keys, seen))

    def _hide_future(self, scores: Array, offset: int) -> None:
        """Hide later keys: query ``i`` sees the keys up to ``i + offset``."""
        if offset < scores.shape[3] - 1:
            places = self.xp.arange(scores.shape[3])
            limits = self.xp.arange(scores.shape[2])[:, None] + offset
            self.xp.copyto(scores, -math.inf, where=places > limits)


def _check(query: Array, key: Array, value: Array) -> None:
    check_rank("Attention", "query", query, 4, QUERIES)
    check_rank("Attention", "key", key, 4, KEYS)
    check_rank("Attention", "value", value, 4, "[batch, heads, keys, values]")
    batch, heads, _, dim = query.shape
    if dim == 0:
        raise refuse("Attention", "shape of query", query.shape, "a dim of at least 1")
    check_shape("Attention", "key", key, (batch, heads, key.shape[2], dim))
    check_shape("Attention", "value", value, (batch, heads, key.shape[2], value.shape[3]))
