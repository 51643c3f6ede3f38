"""What must an array library offer so that sessions can compute on it?

The surface is that of Burn's ``Backend`` trait; what are Burn's ``*TensorOps`` for each kind of
tensor is here one kernel per row of the table of operations.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from burn_remote_protocol.dtypes import DType, DTypeUsage
from burn_remote_protocol.operations.row import Signature
from burn_remote_protocol.tensors import TensorData, TensorSpec

__all__ = ["Backend", "BackendSession", "Kernel", "Run"]

# kernel(*tensors, **parameters, out=spec or specs) -> array or tuple of arrays. One tensor per
# input field: an array, None for an absent one, a list for a list.
Kernel = Callable[..., Any]

# run(*tensors) -> array or tuple of arrays: a kernel whose parameters and outputs are settled.
Run = Callable[..., Any]


class BackendSession(ABC):
    """What one session has of a backend: kernels bound to its own random numbers."""

    @abstractmethod
    def bind(self, signature: Signature) -> Run:
        """Return the implementation of an operation for its parameters and its outputs.

        What does not change between calls is decided here, once; what is returned may be a function
        of the array library itself. Raises ``Unsupported``.
        """

    @abstractmethod
    def array_dtype(self, dtype: DType) -> Any:
        """Return the array library's dtype in which tensors of ``dtype`` are held."""

    @abstractmethod
    def seed(self, seed: int) -> None:
        """Start the session's random numbers anew; the same seed gives the same tensors."""


class Backend(ABC):
    """One device: its arrays and what can be done with them.

    Arrays are never changed once a kernel or an upload has made them, so they may be shared.
    """

    name: ClassVar[str]
    # Gradients are the client's: it sends the operations that compute them.
    ad_enabled: ClassVar[bool] = False

    @property
    def device_count(self) -> int:
        """How many devices of this library the machine has."""
        return 1

    @abstractmethod
    def open_session(self) -> BackendSession:
        """Return a session with random numbers of its own."""

    @abstractmethod
    def to_device(self, data: TensorData) -> Any:
        """Return an array with the elements of ``data``; the data may change afterwards.

        Raises ``MemoryError``, and ``Unsupported`` for a dtype that cannot be stored.
        """

    @abstractmethod
    def empty(self, spec: TensorSpec) -> Any:
        """Return an array for an upload to fill. Raises ``MemoryError`` and ``Unsupported``."""

    @abstractmethod
    def writable_bytes(self, array: Any) -> memoryview:
        """Return the memory of an array made by ``empty``, as bytes in wire order."""

    @abstractmethod
    def finished(self, array: Any, dtype: DType) -> Any:
        """Return the tensor's array once all of ``writable_bytes`` is written."""

    @abstractmethod
    def to_bytes(self, array: Any, dtype: DType) -> memoryview:
        """Return the elements as they cross the wire; no copy where they are so in memory."""

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
        general = DTypeUsage.STORAGE | DTypeUsage.ARITHMETIC
        return self.dtype_usage(dtype) & general == general

    @abstractmethod
    def prepare_thread(self) -> None:
        """Make the calling thread, or the running task, ready to run kernels."""

    @abstractmethod
    def sync(self) -> None:
        """Wait until the device has done everything asked of it."""

    @abstractmethod
    def memory_cleanup(self) -> None:
        """Return cached memory to the system."""

    @abstractmethod
    def memory_persistent_allocations(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which arrays are made that will stay, such as a model's weights."""

    @abstractmethod
    def staging(self, data: Iterable[TensorData]) -> None:
        """Prepare data that will soon be uploaded, where the device is faster for it."""
