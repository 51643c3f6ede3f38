"""Host memory for copies to and from a GPU.

A GPU reads and writes pinned memory directly. The system or a container limits pinned memory. When
there is none left, CUDA copies pageable memory through a small pinned buffer of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from burn_remote_server.backends.cupy.faults import LOST
from burn_remote_server.telemetry.logs import get_logger

__all__ = ["HostMemory", "is_pinned"]

logger = get_logger(__name__)


class HostMemory:
    """Allocates host memory: pinned memory until there is none left. Thread-safe.

    ``pinned(size)`` returns a byte array, or raises a CUDA error with a ``status``.
    """

    def __init__(self, pinned: Callable[[int], Any]) -> None:
        self._pinned: Final = pinned
        self._has_warned = False

    def empty(self, size: int) -> Any:
        """Return an array of ``size`` bytes. Raises ``MemoryError``."""
        try:
            return self._pinned(size)
        except RuntimeError as error:
            # Usually cudaErrorMemoryAllocation; which error a driver returns at a system limit is
            # not documented.
            if getattr(error, "status", None) in (None, *LOST):
                raise
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "no pinned memory left",
                    bytes=size,
                    reason=str(error),
                )
            return np.empty(size, np.uint8)


def is_pinned(array: Any) -> bool:
    """Return whether an array of ``HostMemory`` is pinned: then it is a view of CUDA's memory."""
    return array.base is not None
