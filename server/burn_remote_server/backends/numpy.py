"""What is particular to NumPy as the array library?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from burn_remote_protocol.tensors import TensorData
from burn_remote_server.backends.array.backend import ArrayBackend
from burn_remote_server.host_memory import host_memory_bytes

__all__ = ["NumpyBackend"]


class NumpyBackend(ArrayBackend):
    """The CPU of this machine."""

    name: ClassVar[str] = "numpy"

    def __init__(self) -> None:
        super().__init__(np)

    def memory_bytes(self) -> int:
        return host_memory_bytes()

    def prepare_thread(self) -> None:
        # Infinities and NaN are results like others. NumPy keeps this setting per thread and, in a
        # task, per task; asking for it around each call would cost a microsecond.
        np.seterr(all="ignore")

    # NumPy has done its work when a kernel returns, and keeps no memory that it could give back.

    def sync(self) -> None:
        return None

    def memory_cleanup(self) -> None:
        return None

    def memory_persistent_allocations(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def staging(self, data: Iterable[TensorData]) -> None:
        return None
