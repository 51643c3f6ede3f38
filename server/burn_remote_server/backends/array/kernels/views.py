"""Copies of small parts of a tensor, which would keep all of its memory alive as views."""

from __future__ import annotations

from typing import Final

from burn_remote_server.backends.array.core.kernel_forms import Array

__all__ = ["without_much_more"]

# A view keeps all of its tensor's memory alive, and the session's quota counts that once the tensor
# is dropped. Larger: programs that keep small parts of large tensors need more memory. Smaller:
# more parts are copied; the thirds of a joint projection in attention should not be.
MAX_MEMORY_PER_VIEW: Final = 4


def without_much_more(part: Array) -> Array:
    """Return a part of a tensor as a view, or a copy where the view would keep too much alive."""
    shown = kept = part.nbytes
    base = part.base
    while base is not None:
        # The last of the bases holds the memory; those between, and bytes, may not know their size.
        kept = getattr(base, "nbytes", kept)
        base = getattr(base, "base", None)
    return part.copy() if kept > MAX_MEMORY_PER_VIEW * shown else part
