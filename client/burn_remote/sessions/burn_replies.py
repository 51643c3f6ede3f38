"""How do a Burn server's answers reach those who wait for them?"""

from __future__ import annotations

from typing import Any, Final

from burn_remote.arguments.arrays import array_from, data_from, numpy_dtype
from burn_remote.runner import TensorHandle
from burn_remote.sessions.connection import fresh
from burn_remote.sessions.locations import Locations
from burn_remote.sessions.pending import Pending
from burn_remote_protocol.dialects.burn_responses import Answer
from burn_remote_protocol.dtypes import DTypeUsage
from burn_remote_protocol.errors import (
    BurnRemoteError,
    OperationFailed,
    ProtocolViolation,
    shown,
)
from burn_remote_protocol.tensors import TensorData, TensorSpec

__all__ = ["BurnReplies"]


class _Request:
    """An answer that is awaited; ``read`` is the tensor that is asked for, where one is."""

    __slots__ = ("pending", "read")

    def __init__(self, pending: Pending[Any], read: TensorHandle | None) -> None:
        self.pending = pending
        # Not the handle: holding it would keep the tensor on the server.
        self.read = None if read is None else (read.spec, read.id)


class BurnReplies:
    """What is awaited, by request."""

    def __init__(self, locations: Locations) -> None:
        self._locations: Final = locations
        self._requests: dict[int, _Request] = {}

    def expect(self, request: int, pending: Pending[Any], read: TensorHandle | None = None) -> None:
        """Wait for an answer; ``read`` is what a read asked for."""
        self._requests[request] = _Request(pending, read)

    def take(self, answer: Answer) -> None:
        """Deliver an answer. Raises ``ProtocolViolation`` for what was not asked."""
        request = self._requests.pop(answer.request, None)
        if request is None:
            raise ProtocolViolation(f"an answer to {answer.request:#x}, which was not asked")
        value = answer.value
        if isinstance(value, OperationFailed):
            if request.read is not None:
                value.location = self._locations.find(request.read[1])
            request.pending.fail(value)
        elif request.read is not None:
            request.pending.complete(_as_declared(value, request.read[0]))
        else:
            request.pending.complete(DTypeUsage(value) if type(value) is int else None)

    def fail(self, error: BurnRemoteError) -> None:
        """Deliver an error to everyone who waits."""
        requests, self._requests = self._requests, {}
        for request in requests.values():
            request.pending.fail(fresh(error))


def _as_declared(data: object, spec: TensorSpec) -> TensorData:
    """Return what was read as the program knows it.

    The real server answers some reads in another dtype: positions of extremes of integers as int64,
    truth values that were gathered as bytes.
    """
    if not isinstance(data, TensorData) or data.shape != spec.shape:
        raise ProtocolViolation(f"the answer to a read of {spec} is {shown(data)}")
    if data.dtype is spec.dtype:
        return data
    return data_from(array_from(data).astype(numpy_dtype(spec.dtype)), spec.dtype)
