"""Batches that are split over the members of a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from burn_remote.arguments.containers import named_leaves, rebuilt
from burn_remote.distributed.packing import part_edges
from burn_remote.functions.creation import tensor
from burn_remote.functions.device_class import Device
from burn_remote.functions.tensor_value import is_tensor
from burn_remote_protocol.errors import ArgumentMismatch, ShapeMismatch

__all__ = ["SplitBatch", "split_batch"]


@dataclass(frozen=True, slots=True)
class SplitBatch:
    """A batch whose rows are on the members' devices; ``DataParallel.split`` makes it.

    ``parts`` has the arguments of the loss function for each member, and ``rows`` the number of
    rows of each part.
    """

    parts: tuple[tuple[Any, ...], ...]
    rows: tuple[int, ...]


def split_batch(batch: Sequence[Any], devices: Sequence[Device]) -> SplitBatch:
    """Split the rows of all arrays and tensors of a batch over devices.

    Arrays and tensors with at least one axis are split along axis 0 as ``numpy.array_split`` does.
    Those without an axis are copied to each device, and all other values are passed as they are.
    Raises ``ArgumentMismatch`` if nothing in the batch has an axis, and ``ShapeMismatch`` if the
    numbers of rows differ or are 0.
    """
    rows = _row_count(batch)
    edges = part_edges(rows, len(devices))
    parts = tuple(
        [
            tuple([_part(argument, edges[member], edges[member + 1], device) for argument in batch])
            for member, device in enumerate(devices)
        ]
    )
    return SplitBatch(parts, tuple(np.diff(edges).tolist()))


def _row_count(batch: Sequence[Any]) -> int:
    found: dict[str, int] = {}
    for name, leaf in named_leaves(list(batch)):
        if _has_rows(leaf):
            found[name] = leaf.shape[0]
    if not found:
        seen = ", ".join(type(one).__name__ for one in batch) or "nothing"
        raise ArgumentMismatch(
            "a batch must have at least one array or tensor with rows along axis 0, but "
            f"{seen} was given"
        )
    (first, rows), *others = found.items()
    for name, count in others:
        if count != rows:
            raise ShapeMismatch(
                f"all arrays of a batch must have the same number of rows, but argument {first} "
                f"has {rows} and argument {name} has {count}; if an array is not to be split, "
                "let the loss function take it from a variable"
            )
    if not rows:
        raise ShapeMismatch("the batch has no rows")
    return rows


def _has_rows(leaf: Any) -> bool:
    return (isinstance(leaf, np.ndarray) or is_tensor(leaf)) and leaf.ndim > 0


def _part(argument: Any, start: int, stop: int, device: Device) -> Any:
    """Return rows of an argument, with its arrays and tensors on a device."""

    def part(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray) and not is_tensor(leaf):
            return leaf
        chosen = leaf[start:stop] if leaf.ndim else leaf
        return chosen.to(device) if is_tensor(chosen) else tensor(chosen, device=device)

    return rebuilt(argument, part)
