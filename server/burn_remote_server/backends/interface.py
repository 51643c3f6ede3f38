"""What must an array library offer so that sessions can compute on it?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from burn_remote_protocol.dtypes import DType, DTypeUsage
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import TensorData, TensorSpec

__all__ = ["Backend", "BackendSession", "Kernel"]

# kernel(*tensors, **parameters, out=spec or specs) -> array or tuple of arrays.
Kernel = Callable[..., Any]


class BackendSession(ABC):
    """What one session has of a backend: kernels bound to its own random numbers."""

    @abstractmethod
    def kernel(self, signature: Signature) -> Kernel:
        """Return the implementation of an operation. Raises ``Unsupported`` for none."""

    @abstractmethod
    def array_dtype(self, dtype: DType) -> Any:
        """Return the array library's dtype in which tensors of ``dtype`` are held."""

    @abstractmethod
    def seed(self, seed: int) -> None:
        """Start the session's random numbers anew."""


class Backend(ABC):
    """One device: its arrays and what can be done with them."""

    name: str
    device_count: int = 1
    ad_enabled: bool = False

    @abstractmethod
    def open_session(self) -> BackendSession:
        """Return a session with random numbers of its own."""

    @abstractmethod
    def to_device(self, data: TensorData) -> Any:
        """Return an array with the elements of ``data``, copied."""

    @abstractmethod
    def empty(self, spec: TensorSpec) -> Any:
        """Return an array for an upload to fill. Raises ``MemoryError``."""

    @abstractmethod
    def writable_bytes(self, array: Any) -> memoryview:
        """Return the memory of an array made by ``empty``, as bytes in wire order."""

    @abstractmethod
    def finished(self, array: Any) -> Any:
        """Return the tensor's array once all of ``writable_bytes`` is written."""

    @abstractmethod
    def to_bytes(self, array: Any, dtype: DType) -> memoryview:
        """Return the elements as they cross the wire; without a copy where they are so in memory."""

    @abstractmethod
    def nbytes(self, array: Any) -> int:
        """Return the logical size of an array in bytes."""

    @abstractmethod
    def memory_bytes(self) -> int:
        """Return the memory of the device."""

    @abstractmethod
    def dtype_usage(self, dtype: DType) -> DTypeUsage:
        """Return what the device can do with a dtype."""

    def supports_dtype(self, dtype: DType) -> bool:
        """Whether tensors of a dtype can be stored and computed with."""
        usage = self.dtype_usage(dtype)
        return DTypeUsage.STORAGE in usage and DTypeUsage.ARITHMETIC in usage

    def prepare_thread(self) -> None:
        """Make the calling thread ready to run kernels."""

    def sync(self) -> None:
        """Wait until the device has done everything asked of it."""

    def memory_cleanup(self) -> None:
        """Return cached memory to the system."""
