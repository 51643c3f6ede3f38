"""Routing of a native server's replies to the requests that wait for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from burn_remote.runner.pending import Pending
from burn_remote.sessions.failures import together
from burn_remote.sessions.native.reused_memory import ReusedMemory
from burn_remote.sessions.source_locations import Locations
from burn_remote_protocol.dtypes import DTypeUsage
from burn_remote_protocol.errors import (
    BurnRemoteError,
    OperationFailed,
    ProtocolViolation,
    fresh,
    shown,
)
from burn_remote_protocol.messages import Chunk, Closing, Failed, Names, Reply
from burn_remote_protocol.snapshots import items_of
from burn_remote_protocol.tensors import TensorData, TensorSpec

__all__ = ["ResponseRouter"]

# The first failures are kept until a read, a sync or the end of the session raises them; the others
# are counted. Bounds the memory of a program that never reads or syncs.
UNREPORTED_LENGTH: Final = 64

# The memory of a freed result of these sizes is kept for the next one. The C library itself reuses
# smaller blocks. The maximum bounds what a session holds in addition to the program's arrays.
MIN_KEPT_BYTES: Final = 2**20
MAX_KEPT_BYTES: Final = 256 * 2**20


class _Request:
    """A request without a reply yet."""

    __slots__ = ("buffer", "discards", "pending", "read", "received", "reports_failures")

    def __init__(
        self, pending: Pending[Any], read: TensorSpec | None, reports_failures: bool
    ) -> None:
        self.pending = pending
        self.read = read
        self.reports_failures = reports_failures
        # Where the chunks of a download go, once the server has announced them.
        self.buffer: memoryview | None = None
        # Whether there is no memory for ``buffer``, so that the chunks are only counted.
        self.discards = False
        self.received = 0


class ResponseRouter:
    """Requests without a reply, by number. Messages are taken by one thread at a time.

    Another thread may call ``fail`` meanwhile, which removes all requests.
    """

    def __init__(self, locations: Locations) -> None:
        self.memory: Final = ReusedMemory(MIN_KEPT_BYTES, MAX_KEPT_BYTES, 1)
        self._locations: Final = locations
        self._requests: dict[int, _Request] = {}
        self._unreported: list[OperationFailed] = []
        self._unkept = 0  # failures beyond ``UNREPORTED_LENGTH``

    def expect(
        self,
        request: int,
        pending: Pending[Any],
        read: TensorSpec | None,
        *,
        reports_failures: bool = True,
    ) -> None:
        """Register a request; ``read`` is the shape and dtype of the tensor that it reads.

        ``reports_failures``: if the request is a sync, it raises the failures that no read raised.
        """
        self._requests[request] = _Request(pending, read, reports_failures)

    def take(self, message: object, *, is_repeated: bool = False) -> None:
        """Deliver a message to the request that it answers.

        ``is_repeated``: an interrupt stopped the first delivery. Every step can be repeated, and a
        request is removed only after it was completed.

        Raises ``ProtocolViolation`` for a message that answers no request. If the server closes the
        session, raises the error that it gives as the reason.
        """
        if is_repeated and self._has_taken(message):
            return
        _HANDLERS.get(type(message), ResponseRouter._refuse)(self, message, is_repeated)

    def _has_taken(self, message: object) -> bool:
        if isinstance(message, Failed):
            return any(known.tensor == message.error.tensor for known in self._unreported)
        if isinstance(message, Reply):
            return message.request not in self._requests
        return isinstance(message, Chunk) and message.payload not in self._requests

    def fail(self, error: BurnRemoteError) -> None:
        """Fail every open request; when this returns, all are done.

        Several threads may call this at once.
        """
        self.memory.close()
        for number, request in items_of(self._requests):
            request.pending.fail(fresh(error))
            # Last, so that after an interrupt before this line the next call fails the request.
            self._requests.pop(number, None)

    def take_failures(self) -> OperationFailed | None:
        """Return and forget the failures that no read and no sync has raised, as one error."""
        # A failure without a tensor reports a lost device to a sync. Closing a session also sends
        # such a sync, whose failure is not the program's.
        self._unreported = [one for one in self._unreported if one.tensor is not None]
        if not self._unreported:
            return None
        failure = together(self._unreported, self._unreported_count)
        self._unreported = []
        self._unkept = 0
        return failure

    @property
    def _unreported_count(self) -> int:
        return len(self._unreported) + self._unkept

    def _take_reply(self, reply: Reply, is_repeated: bool) -> None:
        request = self._requests.get(reply.request)
        if request is None:
            raise ProtocolViolation(f"a reply to request {reply.request}, which is not open")
        value = reply.value
        if isinstance(value, BurnRemoteError):
            request.pending.fail(self._explained(value))
            self._requests.pop(reply.request, None)
        elif isinstance(value, TensorSpec):
            self._begin_download(request, value, is_repeated)
        else:
            self._complete(request, value)
            self._requests.pop(reply.request, None)

    def _complete(self, request: _Request, value: bytes | Names | int | None) -> None:
        spec = request.read
        if spec is not None:
            if type(value) is not bytes or len(value) != spec.nbytes:
                raise ProtocolViolation(f"the reply to a read of {spec} is {shown(value)}")
            # The constructor of a named tuple is Python code, and each read would call it.
            request.pending.complete(tuple.__new__(TensorData, (value, *spec)))
        elif isinstance(value, bytes):
            raise ProtocolViolation(f"elements came for a request that is no read: {shown(value)}")
        elif isinstance(value, tuple):
            request.pending.complete(value)
        elif isinstance(value, int):
            request.pending.complete(DTypeUsage(value))
        elif self._unreported and request.reports_failures:
            request.pending.fail(together(self._unreported, self._unreported_count))
            self._unreported = []
            self._unkept = 0
        else:
            request.pending.complete(None)

    def _begin_download(self, request: _Request, spec: TensorSpec, is_repeated: bool) -> None:
        # Allocate what the read asked for, never what a reply claims.
        is_second = (request.buffer is not None or request.discards) and not is_repeated
        if request.read is None or spec != request.read or is_second:
            raise ProtocolViolation(f"expected a reply for {request.read}, got one for {spec}")
        try:
            request.buffer = self.memory.allocate(spec.nbytes)
        except MemoryError:
            # Any thread may read this reply, so the error goes to the request, not to the reader.
            request.discards = True
        if request.discards:
            # A new error: the traceback of the first one would keep this thread's frames alive.
            request.pending.fail(
                MemoryError(f"this process has no memory for the {spec.nbytes} bytes of {spec}")
            )

    def _take_chunk(self, chunk: Chunk, is_repeated: bool) -> None:
        request = self._requests.get(chunk.payload)
        end = chunk.offset + len(chunk.data)
        is_next = request is not None and (
            chunk.offset == request.received or (is_repeated and end == request.received)
        )
        # Only reads have a buffer or discard chunks.
        spec = None if request is None else request.read
        buffer = None if request is None else request.buffer
        is_announced = request is not None and (buffer is not None or request.discards)
        if request is None or spec is None or not is_announced or not is_next or end > spec.nbytes:
            raise ProtocolViolation(f"unexpected chunk of payload {chunk.payload}")
        if buffer is not None:
            buffer[chunk.offset : end] = chunk.data
        request.received = end
        if end == spec.nbytes:
            if buffer is not None:
                request.pending.complete(TensorData(buffer, spec.shape, spec.dtype))
            self._requests.pop(chunk.payload, None)

    def _take_failed(self, failed: Failed, is_repeated: bool) -> None:
        if len(self._unreported) < UNREPORTED_LENGTH:
            # Looked up now: after 16,384 more tensors the line would be lost.
            error = failed.error
            error.location = self._locations.find(error.tensor, error.step)
            self._unreported.append(failed.error)
        else:
            self._unkept += 1

    def _take_closing(self, closing: Closing, is_repeated: bool) -> None:
        raise self._explained(closing.error)

    def _refuse(self, message: object, is_repeated: bool) -> None:
        raise ProtocolViolation(f"a server does not send {type(message).__name__}")

    def _explained(self, error: BurnRemoteError) -> BurnRemoteError:
        if isinstance(error, OperationFailed):
            error.location = self._locations.find(error.tensor, error.step)
            operation = (error.tensor, error.step)
            self._unreported = [
                one for one in self._unreported if (one.tensor, one.step) != operation
            ]
        return error


_HANDLERS: Final[dict[type[Any], Callable[[ResponseRouter, Any, bool], None]]] = {
    Reply: ResponseRouter._take_reply,
    Chunk: ResponseRouter._take_chunk,
    Failed: ResponseRouter._take_failed,
    Closing: ResponseRouter._take_closing,
}
