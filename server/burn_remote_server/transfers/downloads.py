"""The state of one tensor that is being fetched from a peer, and validation of its data."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from burn_remote_protocol.errors import (
    BurnRemoteError,
    OperationFailed,
    ProtocolViolation,
    TransferFailed,
)
from burn_remote_protocol.messages import Chunk, Lent
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.interface import Backend

__all__ = ["Download", "ignore_progress", "transfer_failure"]


def ignore_progress(hops: int) -> None:
    """Ignore a report that the operations that produce a tensor make progress."""


class Download:
    """One tensor that is being fetched from a peer."""

    def __init__(
        self,
        backend: Backend,
        spec: TensorSpec,
        on_progress: Callable[[int], None] = ignore_progress,
    ) -> None:
        """Prepare to receive a tensor.

        ``on_progress(hops)`` is called for each ``Waiting`` message with its number of hops (see
        ``tensors/slots.py``), and with 0 when elements arrive.
        """
        self.spec = spec
        self.done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.received = 0
        self._backend = backend
        self._upload: Any = None
        self.awaits_reply = True
        self.exposed_bytes: int | None = None  # size of the exposed tensor, from the peer's reply
        self._may_borrow = True
        self.reports = 0  # ``Waiting`` messages: the peer may still expose the tensor
        self._on_progress = on_progress

    @property
    def progress(self) -> int:
        """A number that grows with each byte and each progress report."""
        return self.received + self.reports

    def note_progress(self, hops: int) -> None:
        """Record that the operations that produce the tensor make progress."""
        self.reports += 1
        self._on_progress(hops)

    def try_again(self) -> None:
        """Reset the state, to fetch the missing bytes over another connection."""
        self.done = asyncio.get_running_loop().create_future()
        self.awaits_reply = True
        self.exposed_bytes = None
        self._may_borrow = True

    def decline(self) -> None:
        """Reset the state, to receive chunks because the lent memory cannot be used."""
        self.try_again()
        self._may_borrow = False

    def begin(self, value: Any) -> None:
        """Process the peer's reply: the tensor's spec, whose elements follow, or an error."""
        self.awaits_reply = False
        if isinstance(value, BurnRemoteError):
            raise transfer_failure(value)
        if not isinstance(value, TensorSpec):
            raise ProtocolViolation("the reply to a fetch must be a tensor's shape and dtype")
        if self.exposed_bytes is not None:
            raise ProtocolViolation("a peer must reply to each fetch only once")
        self.exposed_bytes = value.nbytes
        if value != self.spec:
            raise TransferFailed(f"the source exposed {value}, expected {self.spec}")
        if self._upload is None:
            self._upload = self._backend.empty(value)
        if not value.nbytes:
            self.finish(self._backend.finished(self._upload, value.dtype))

    def write(self, chunk: Chunk) -> None:
        """Write a chunk into the tensor."""
        end = chunk.offset + len(chunk.data)
        size = self.spec.nbytes if self._upload is not None else 0
        if chunk.offset != self.received or end > size:
            raise ProtocolViolation(
                f"a chunk at {chunk.offset:,}, but {self.received:,} of {size:,} bytes have arrived"
            )
        self._backend.write(self._upload, chunk.offset, chunk.data)
        self.received = end
        self._on_progress(0)
        if end == size:
            self.finish(self._backend.finished(self._upload, self.spec.dtype))

    def lend(self, lent: Lent) -> None:
        """Complete ``done`` with the location of the lent memory, for a call of ``borrow``."""
        if self.exposed_bytes is None or self.received or not self._may_borrow:
            raise ProtocolViolation(
                "a peer may lend a tensor only once, only as a whole, and only right after its "
                "shape and dtype"
            )
        self.done.set_result(lent)

    async def borrow(self, lent: Lent) -> Any:
        """Copy the array from the memory that the peer lends. Raises ``TransferFailed``."""
        try:
            return await asyncio.to_thread(self._borrow, lent.handle)
        except asyncio.CancelledError:
            # The copy continues in its thread, so do not confirm it to the peer.
            self.exposed_bytes = None
            raise

    def _borrow(self, handle: bytes) -> Any:
        self._backend.borrow(self._upload, handle)
        return self._backend.finished(self._upload, self.spec.dtype)

    def finish(self, array: Any) -> None:
        """Deliver the array."""
        if not self.done.done():
            self.done.set_result(array)

    def fail(self, error: OperationFailed) -> None:
        """Deliver an error."""
        if not self.done.done():
            self.done.set_exception(error)


def transfer_failure(error: BurnRemoteError) -> OperationFailed:
    """Convert an error into the failure of a fetched tensor."""
    return error if isinstance(error, OperationFailed) else TransferFailed(str(error))
