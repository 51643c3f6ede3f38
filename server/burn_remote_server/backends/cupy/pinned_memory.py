"""Through which memory of the host do elements go to a GPU and come from it?

Through pinned memory, which the GPU reads and writes by itself. There may be none left: the system
or a container bounds it. Then CUDA copies from and to any other by way of a little of its own.
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
    """Memory of the host, from ``pinned`` as long as that has some. Thread-safe.

    ``pinned`` returns so many bytes as an array, or raises an error of CUDA with its ``status``.
    """

    def __init__(self, pinned: Callable[[int], Any]) -> None:
        self._pinned: Final = pinned
        self._has_warned = False

    def empty(self, size: int) -> Any:
        """Return an array of so many bytes. Raises ``MemoryError``."""
        try:
            return self._pinned(size)
        except RuntimeError as error:
            # Mostly ``cudaErrorMemoryAllocation``, but what a driver makes of a limit of the
            # system's is nowhere said.
            if getattr(error, "status", None) in (None, *LOST):
                raise
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "no pinned memory left, copies to and from GPUs are slower",
                    bytes=size,
                    reason=str(error),
                )
            return np.empty(size, np.uint8)


def is_pinned(array: Any) -> bool:
    """Whether an array of ``HostMemory`` is pinned: it is a window on memory that is CUDA's."""
    return array.base is not None
