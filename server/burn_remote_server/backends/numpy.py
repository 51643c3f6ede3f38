"""What is particular to NumPy as the array library?"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from burn_remote_protocol.tensors import TensorData
from burn_remote_server.backends.array.backend import ArrayBackend
from burn_remote_server.backends.host_memory import host_memory_bytes, resident_bytes
from burn_remote_server.backends.interface import Memory

__all__ = ["NumpyBackend"]


class NumpyBackend(ArrayBackend):
    """The CPU of this machine."""

    name: ClassVar[str] = "numpy"

    def __init__(self, memory_limit: int | None = None) -> None:
        super().__init__(np)
        self._memory_limit = memory_limit

    @property
    def device_name(self) -> str:
        return platform.processor() or platform.machine()

    def memory_bytes(self) -> int:
        return min(host_memory_bytes(), self._memory_limit or host_memory_bytes())

    def memory(self) -> Memory:
        # Arrays are not told apart from the rest of the process.
        return Memory(self.memory_bytes(), resident_bytes(), 0)

    def prepare_thread(self) -> None:
        # Infinities and NaN are results like others. NumPy keeps this setting per thread and, in a
        # task, per task; asking for it around each call would cost a microsecond.
        np.seterr(all="ignore")

    def owns_memory(self, array: Any) -> bool:
        return array.base is None and bool(array.flags.writeable)

    # NumPy has done its work when a kernel returns, and keeps no memory that it could give back.

    def sync(self) -> None:
        return None

    def memory_cleanup(self) -> None:
        return None

    def memory_persistent_allocations(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def staging(self, data: Iterable[TensorData]) -> None:
        return None
