"""The arithmetic of collectives: combining the elements of several members in host memory.

float16 and bfloat16 are added in float32: a ``combiner`` rounds at each step, a ``reducer`` once.
Integers wrap, as in the kernels. Each result is computed by one member and passed on, so all
members have the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from burn_remote_protocol.collectives import Reduction
from burn_remote_protocol.dtypes import DType
from burn_remote_server.backends.array.core.array_dtypes import LOW_PRECISION, wire_dtype
from burn_remote_server.backends.interface import Combine, Reduce

__all__ = ["combiner", "reducer"]

_FUNCTIONS: Final[dict[Reduction, Any]] = {
    Reduction.SUM: np.add,
    Reduction.MEAN: np.add,
    Reduction.MIN: np.minimum,
    Reduction.MAX: np.maximum,
    Reduction.PRODUCT: np.multiply,
}


def combiner(dtype: DType, reduction: Reduction, members: int) -> Combine:
    """Return the function that combines elements of ``dtype``; see ``Backend.combiner``."""
    stored = wire_dtype(dtype)
    function = _FUNCTIONS[reduction]
    is_mean = reduction is Reduction.MEAN
    computed = np.dtype(np.float32) if stored in LOW_PRECISION else stored

    def combine(own: Any, received: Any, out: Any, is_last: bool) -> None:
        mine, theirs, target = (np.frombuffer(each, stored) for each in (own, received, out))
        if computed is not stored:
            mine, theirs = mine.astype(computed), theirs.astype(computed)
            result = function(mine, theirs, out=mine)
            if is_last and is_mean:
                result = np.divide(result, computed.type(members), out=mine)
            target[...] = result
            return
        function(mine, theirs, out=target)
        if is_last and is_mean:
            np.divide(target, computed.type(members), out=target)

    return combine


def reducer(dtype: DType, reduction: Reduction) -> Reduce:
    """Return the function that reduces elements of ``dtype``; see ``Backend.reducer``."""
    stored = wire_dtype(dtype)
    function = _FUNCTIONS[reduction]
    is_mean = reduction is Reduction.MEAN
    is_low = stored in LOW_PRECISION
    computed = np.dtype(np.float32) if is_low else stored

    def reduce(given: Sequence[Any], out: Any) -> None:
        first, *others = (np.frombuffer(each, stored) for each in given)
        target = np.frombuffer(out, stored)
        total = first.astype(computed) if is_low else target
        if not (is_low or others):
            total[...] = first
        for each in others:
            mine = each.astype(computed) if is_low else each
            function(total if is_low else first, mine, out=total)
            first = total
        if is_mean:
            np.divide(total, computed.type(len(given)), out=total)
        if is_low:
            target[...] = total

    return reduce
