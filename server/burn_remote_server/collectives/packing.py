"""Joining of a call's small tensors, so that they share a frame instead of taking one each.

All members join the same tensors in the same order, because both follow from the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from burn_remote_protocol.collectives import CollectiveCall, CollectiveKind
from burn_remote_protocol.tensors import TensorSpec

__all__ = ["Packing"]

# Copying a smaller tensor twice, to join and to split, takes less time than a frame of its own.
SMALL_BYTES: Final = 64 * 1024

# In these kinds, the elements of a tensor stay together in their order.
_PACKABLE: Final = frozenset(
    {CollectiveKind.ALL_REDUCE, CollectiveKind.BROADCAST, CollectiveKind.REDUCE}
)


class Packing:
    """The tensors of a call, with the small ones joined to one tensor after the others.

    ``call`` is the call to carry out. It is the given call if fewer than two tensors are small.
    """

    def __init__(self, call: CollectiveCall) -> None:
        sizes = [spec.nbytes for spec in call.specs]
        small = [place for place, size in enumerate(sizes) if size < SMALL_BYTES]
        if call.kind not in _PACKABLE or len(small) < 2:
            small = []
        self._small: Final = small
        self._large: Final = [place for place in range(len(sizes)) if place not in {*small}]
        self._sizes: Final = sizes
        self.call: Final = call if not small else self._joined(call)

    def _joined(self, call: CollectiveCall) -> CollectiveCall:
        elements = sum(call.specs[place].size for place in self._small)
        joined = TensorSpec((elements,), call.specs[0].dtype)
        specs = (*(call.specs[place] for place in self._large), joined)
        return CollectiveCall(call.kind, specs, call.reduction, call.root)

    @property
    def copied_bytes(self) -> int:
        """The memory of the joined inputs and outputs."""
        return 2 * sum(self._sizes[place] for place in self._small)

    def pack(self, tensors: Sequence[memoryview]) -> list[memoryview]:
        """Return the memory of the call's inputs; none if this member has none."""
        if not self._small or not tensors:
            return [*tensors]
        joined = b"".join([tensors[place] for place in self._small])
        return [*(tensors[place] for place in self._large), memoryview(joined)]

    def output_memory(self, tensors: Sequence[memoryview]) -> list[memoryview]:
        """Return memory for the call's outputs, which ``unpack`` copies to the tensors."""
        if not self._small or len(tensors) != len(self._sizes):
            return [*tensors]
        size = sum(self._sizes[place] for place in self._small)
        return [*(tensors[place] for place in self._large), memoryview(bytearray(size))]

    def unpack(self, memory: Sequence[memoryview], tensors: Sequence[memoryview]) -> None:
        """Copy the joined outputs to their tensors."""
        if not self._small or len(tensors) != len(self._sizes):
            return
        at = 0
        for place in self._small:
            size = self._sizes[place]
            tensors[place][:] = memory[-1][at : at + size]
            at += size
