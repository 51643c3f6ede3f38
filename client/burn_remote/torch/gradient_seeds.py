"""The gradient of a loss with respect to itself: the number 1, where each backward pass begins.

The elements of our tensors never change, so one tensor on each device serves all backward passes.
"""

from __future__ import annotations

from typing import Any, Final

import burn_remote as br
from burn_remote.runner.issuing import recording
from burn_remote.torch.aten.table import TABLE, overload
from burn_remote.torch.burn_tensor import BurnTensor, value_of, wrap
from burn_remote.torch.value_conversion import functional

__all__ = ["ones_like"]

# A tensor with the number 1, by the index of its device and its dtype.
_ones: Final[dict[tuple[int, Any], br.Tensor]] = {}

_OVERLOAD: Final = overload("ones_like")
_in_general: Final = functional(_OVERLOAD, TABLE[_OVERLOAD])


def ones_like(args: Any, kwargs: dict[str, Any]) -> Any:
    """Return ones; without an operation if they are one element, as a loss has."""
    x = args[0]
    if (
        type(x) is not BurnTensor
        or x.dim()
        or len(args) > 1
        or any(kwargs.get(name) is not None for name in ("dtype", "layout", "device"))
        or recording.runner is not None
    ):
        return _in_general(args, kwargs)
    key = x._place.index, x._metadata.dtype
    one = _ones.get(key)
    client = value_of(x).handle.client
    if one is None or one.handle.client is not client:
        made = _in_general(args, kwargs)
        if value_of(made).handle.client is client:
            _ones[key] = value_of(made)
        return made
    return wrap(one, x._place)
