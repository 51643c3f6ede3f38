"""Routing of a Burn server's replies to the requests that wait for them."""

from __future__ import annotations

from typing import Any, Final

from burn_remote.arguments.arrays import array_from, data_from, numpy_dtype
from burn_remote.runner.pending import Pending
from burn_remote.sessions.source_locations import Locations
from burn_remote_protocol.dialects.burn_0_21_responses import BurnReply
from burn_remote_protocol.dtypes import DTypeUsage
from burn_remote_protocol.errors import (
    BurnRemoteError,
    OperationFailed,
    ProtocolViolation,
    fresh,
    shown,
)
from burn_remote_protocol.snapshots import items_of
from burn_remote_protocol.tensors import TensorData, TensorSpec

__all__ = ["BurnResponseRouter"]


class _Request:
    """A request without a reply yet; ``read`` is the tensor that it reads, if any."""

    __slots__ = ("pending", "read", "reports_failures")

    def __init__(
        self,
        pending: Pending[Any],
        read: tuple[int, TensorSpec] | None,
        reports_failures: bool,
    ) -> None:
        self.pending = pending
        self.read = read
        self.reports_failures = reports_failures


class BurnResponseRouter:
    """Requests without a reply, by id."""

    def __init__(self, locations: Locations) -> None:
        self._locations: Final = locations
        self._requests: dict[int, _Request] = {}
        self._last_reason = ""  # of the last failure that a read or a sync raised
        # A failure in the reply to a request that reports no failures; the next sync raises it.
        self._unreported: OperationFailed | None = None

    def expect(
        self,
        request: int,
        pending: Pending[Any],
        read: tuple[int, TensorSpec] | None = None,
        *,
        reports_failures: bool = True,
    ) -> None:
        """Register a request; ``read`` is the id, shape and dtype of the tensor that it reads.

        ``reports_failures``: if the request is a sync, it raises a failure that the server reports.
        """
        self._requests[request] = _Request(pending, read, reports_failures)

    def take(self, reply: BurnReply, *, is_repeated: bool = False) -> None:
        """Deliver a reply. Raises ``ProtocolViolation`` for a reply to an unknown request.

        ``is_repeated``: an interrupt stopped the first delivery.
        """
        request = self._requests.get(reply.request)
        if request is None:
            if is_repeated:
                return
            raise ProtocolViolation(f"a reply to request {reply.request:#x}, which is not open")
        value = reply.value
        if request.read is not None:
            tensor, spec = request.read
            if isinstance(value, OperationFailed):
                self._last_reason = value.reason
                value.location = self._locations.find(tensor)
                request.pending.fail(value)
            else:
                _complete(request.pending, value, spec)
        elif type(value) is int:
            request.pending.complete(DTypeUsage(value))
        else:
            self._finish_sync(request, value if isinstance(value, OperationFailed) else None)
        # Last, so that after an interrupt before this line the reply is delivered again.
        self._requests.pop(reply.request, None)  # unless ``fail`` removed it meanwhile

    def _finish_sync(self, request: _Request, failure: OperationFailed | None) -> None:
        self._unreported = first = self._unreported or failure
        if first is None or not request.reports_failures:
            request.pending.complete(None)
        else:
            self._last_reason = first.reason
            request.pending.fail(first)
            self._unreported = None

    def take_failures(self) -> OperationFailed | None:
        """Return and forget a failure that no read and no sync has raised."""
        failure, self._unreported = self._unreported, None
        # A lost device fails every sync with one text, also the sync that ends the session.
        return None if failure is None or failure.reason in self._last_reason else failure

    def fail(self, error: BurnRemoteError) -> None:
        """Fail every open request; when this returns, all are done.

        Several threads may call this at once.
        """
        for number, request in items_of(self._requests):
            request.pending.fail(fresh(error))
            # Last, so that after an interrupt before this line the next call fails the request.
            self._requests.pop(number, None)


def _complete(pending: Pending[Any], value: object, spec: TensorSpec) -> None:
    """Complete a read; without memory for another dtype, fail it alone."""
    try:
        data = _as_declared(value, spec)
    except MemoryError:
        data = None
    if data is not None:
        pending.complete(data)
    else:
        # A new error: the traceback of the first one would keep this thread's frames alive.
        pending.fail(MemoryError(f"this process has no memory for a copy of {spec}"))


def _as_declared(data: object, spec: TensorSpec) -> TensorData:
    """Return a read's elements in the dtype that the program expects.

    The real server returns some reads in another dtype: an integer tensor's argmax and argmin as
    int64, gathered bools as bytes.
    """
    if not isinstance(data, TensorData) or data.shape != spec.shape:
        raise ProtocolViolation(f"the reply to a read of {spec} is {shown(data)}")
    if data.dtype is spec.dtype:
        return data
    return data_from(array_from(data).astype(numpy_dtype(spec.dtype)), spec.dtype)
