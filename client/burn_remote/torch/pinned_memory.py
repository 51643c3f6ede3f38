"""``x.pin_memory()`` of tensors on the CPU, which returns the tensor itself.

A ``DataLoader`` with ``pin_memory=True`` pins each batch for the current accelerator. Uploads to
servers do not need pinned memory, and PyTorch has no allocator of it for backends in Python.
"""

from __future__ import annotations

from typing import Any

__all__ = ["accept_pinning"]


def accept_pinning(library: Any) -> None:
    """Register the operation behind ``pin_memory`` for tensors on the CPU."""
    library.impl("_pin_memory", _unpinned, "CPU")


def _unpinned(x: Any, device: Any = None) -> Any:
    return x
