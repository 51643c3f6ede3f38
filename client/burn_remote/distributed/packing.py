"""Parts of tensors along axis 0, and buckets of several tensors packed into few."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from burn_remote.distributed.collective_engine import Bucket
from burn_remote.functions.manipulation import concat
from burn_remote.functions.tensor import Tensor
from burn_remote_protocol.dtypes import DType
from burn_remote_protocol.tensors import TensorSpec

__all__ = ["Layout", "flat", "part_edges"]


def part_edges(size: int, count: int) -> list[int]:
    """Return where ``count`` parts of an axis begin and end, as ``numpy.array_split`` cuts it.

    The first ``size % count`` parts are longer by one than the others.
    """
    shorter, longer = divmod(size, count)
    sizes = [shorter + 1] * longer + [shorter] * (count - longer)
    return [0, *itertools.accumulate(sizes)]


def flat(x: Tensor) -> Tensor:
    """Return the elements of a tensor as one axis."""
    return x.reshape((x.size,))


class Layout:
    """The shapes and dtypes of a bucket, which is packed as one flat tensor for each dtype."""

    __slots__ = ("_places", "specs")

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        self.specs = tuple(specs)
        self._places: dict[DType, list[int]] = {}
        for place, spec in enumerate(self.specs):
            self._places.setdefault(spec.dtype, []).append(place)

    def packed(self, bucket: Bucket) -> Bucket:
        """Return one flat tensor for each dtype."""
        made = []
        for places in self._places.values():
            parts = [flat(bucket[place]) for place in places]
            made.append(parts[0] if len(parts) == 1 else concat(parts))
        return made

    def unpacked(self, packed: Bucket) -> Bucket:
        """Return the bucket of packed tensors."""
        made: dict[int, Tensor] = {}
        for whole, places in zip(packed, self._places.values(), strict=True):
            start = 0
            for place in places:
                shape = self.specs[place].shape
                stop = start + math.prod(shape)
                part = whole if len(places) == 1 else whole[start:stop]
                made[place] = part.reshape(shape)
                start = stop
        return [made[place] for place in range(len(self.specs))]
