"""Writes to expanded tensors, whose elements are several elements of the tensor at once.

PyTorch refuses most of them. The CPU carries out those for which the order of the elements does not
matter, or in which later elements replace earlier ones; so do these functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from burn_remote.torch.burn_tensor import BurnTensor, alias, geometry_of, without_repetition
from burn_remote.torch.geometry import Geometry

__all__ = ["EXPANDED_WRITES", "is_expanded"]


def is_expanded(x: Any) -> bool:
    """Return whether several elements of a tensor are one element of its storage."""
    size, stride, _ = geometry_of(x)
    return 0 in stride and any(n > 1 and not s for n, s in zip(size, stride, strict=True))


def _once(name: str) -> Callable[..., None]:
    """Return a function that writes to each element of the storage once."""

    def write(x: BurnTensor, *args: Any, **kwargs: Any) -> None:
        function = getattr(torch.ops.aten, name)
        function(without_repetition(x), *args, **kwargs)

    return write


def _masked_fill(x: BurnTensor, mask: Any, value: Any) -> None:
    """Fill each element of the storage of which the mask selects at least one place."""
    once = without_repetition(x)
    repeated = [axis for axis, n in enumerate(once.shape) if n != x.shape[axis]]
    once.masked_fill_(mask.expand(x.shape).any(dim=repeated, keepdim=True), value)


def _tril(x: BurnTensor, diagonal: int = 0) -> None:
    mask = torch.ones(x.shape, dtype=torch.bool, device=x.device)
    _masked_fill(x, mask.triu(diagonal + 1), 0)


def _triu(x: BurnTensor, diagonal: int = 0) -> None:
    mask = torch.ones(x.shape, dtype=torch.bool, device=x.device)
    _masked_fill(x, mask.tril(diagonal - 1), 0)


def _index_fill(x: BurnTensor, dim: int, index: Any, value: Any) -> None:
    chosen = torch.zeros(x.shape[dim] if x.dim() else 1, dtype=torch.bool, device=x.device)
    shape = [1] * x.dim()
    shape[dim] = -1
    _masked_fill(x, chosen.index_fill(0, index, True).reshape(shape), value)


def _index_put(
    x: BurnTensor, indices: Sequence[Any], values: Any, accumulate: bool = False
) -> None:
    """Write at places of the storage. Of several values for one element, one remains."""
    count = x._storage.count
    every = torch.arange(count, device=x.device)
    places = every.as_strided(*geometry_of(x))[
        tuple(slice(None) if i is None else i for i in indices)
    ]
    flat = alias(x, Geometry((count,), (1,), 0), None)
    flat.index_put_((places,), values, accumulate)


# Name of an overload that writes -> a function that carries it out on an expanded tensor.
EXPANDED_WRITES: Final[dict[str, Callable[..., None]]] = {
    "fill_.Scalar": _once("fill_"),
    "fill_.Tensor": _once("fill_"),
    "index_fill_.int_Scalar": _index_fill,
    "index_fill_.int_Tensor": _index_fill,
    "index_put_": _index_put,
    "_index_put_impl_": lambda x, indices, values, accumulate=False, unsafe=False: _index_put(
        x, indices, values, accumulate
    ),
    "masked_fill_.Scalar": _masked_fill,
    "masked_fill_.Tensor": _masked_fill,
    "threshold_": _once("threshold_"),
    "tril_": _tril,
    "triu_": _triu,
}
