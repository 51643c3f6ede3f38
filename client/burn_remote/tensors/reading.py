"""How does a program get the elements of tensors, and when does it wait for them?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from burn_remote.diagnostics.invalid_calls import explained
from burn_remote.sessions.pending import Pending
from burn_remote.tensors.arrays import Array, array_from, numpy_dtype
from burn_remote_protocol.errors import BurnRemoteError
from burn_remote_protocol.tensors import TensorData

if TYPE_CHECKING:
    from burn_remote.runner import TensorHandle
    from burn_remote.tensor import Tensor

__all__ = ["read", "read_array", "wait_array"]


@explained
def read(tensors: Iterable[Tensor]) -> list[Array]:
    """Wait for the elements of several tensors, of whatever devices, in one round trip.

    Returns a NumPy array for each, as ``Tensor.numpy`` does. Everything is asked for before
    anything is waited for. Raises the error of the first tensor that failed.
    """
    pending = [read_array(tensor.handle) for tensor in tensors]
    return [one.result() for one in pending]


def read_array(handle: TensorHandle) -> Pending[Array]:
    """Ask for the elements of a tensor; they become a NumPy array when they come.

    Raises ``DTypeMismatch`` for a quantized tensor, whose elements NumPy does not have.
    """
    numpy_dtype(handle.spec.dtype)
    arriving = _Arriving(handle.client.read_tensor_async(handle))
    return arriving.array


def wait_array(handle: TensorHandle) -> Array:
    """Ask for a tensor's elements and wait for them: ``read_array`` with less in between."""
    numpy_dtype(handle.spec.dtype)
    return array_from(handle.client.read_tensor_async(handle).result())


class _Arriving:
    """The source of an array: the data that it will be made of."""

    def __init__(self, data: Pending[TensorData]) -> None:
        self._data = data
        self.array: Pending[Array] = Pending(self)
        data.on_done(self._deliver)

    def wait(self, pending: Pending[Any], timeout_seconds: float | None) -> None:
        """Wait for the data (``Source``)."""
        with contextlib.suppress(BurnRemoteError, TimeoutError):
            self._data.result(timeout_seconds)
        # Another thread may have received the data and not yet called ``_deliver``.
        if self._data.done() and not self.array.done():
            self._deliver(self._data)

    def attend(self) -> None:
        """Have the data received although no thread waits (``Source``)."""
        self._data.attend()

    def _deliver(self, data: Pending[TensorData]) -> None:
        try:
            self.array.complete(array_from(data.result()))
        except BurnRemoteError as error:
            self.array.fail(error)
