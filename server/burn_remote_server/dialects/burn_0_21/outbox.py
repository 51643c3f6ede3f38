"""The queue of a session's reply frames in the form of Burn 0.21."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

from burn_remote_protocol.dialects.burn_0_21_responses import BurnReply, encode_reply
from burn_remote_protocol.dialects.native import INLINE_BYTES
from burn_remote_protocol.errors import LimitExceeded, OperationFailed, QuotaExceeded
from burn_remote_protocol.messages import Fetch, ReplyValue
from burn_remote_protocol.tensors import TensorData
from burn_remote_server.access.quota import OverheadAccount, ended_for_memory
from burn_remote_server.execution.native_outbox import held_bytes
from burn_remote_server.hosting.host import Device
from burn_remote_server.tensors.slots import InFlight

__all__ = ["BurnOutbox"]

# Most failures kept until a read or a sync reports them, so that a program that never syncs cannot
# accumulate them.
MAX_UNREPORTED: Final = 64

# Replies up to this size are copied: those with elements that ``TensorTable.hold_reply`` does not
# count, of up to ``INLINE_BYTES``, and the names, the shape, the dtype and the ids around them.
COPIED_BYTES: Final = INLINE_BYTES + 1024


class BurnOutbox:
    """The queue of reply frames in Burn's dialect, between the engine and the socket's handler."""

    # encode(reply, is_sync=False): the release's form of a reply, as a list of buffers.
    encode = staticmethod(encode_reply)

    def __init__(self, device: Device, max_waiting_bytes: int) -> None:
        self._device = device
        self._max_waiting_bytes = max_waiting_bytes
        # Each counter has one writing thread: the engine's, or the event loop's.
        self._added_bytes = 0
        self.taken_bytes = 0
        self.frames: deque[list[bytes | memoryview]] = deque()
        self.failures: Counter[str] = Counter()  # number of failures so far, by error code
        self._unreported: list[OperationFailed] = []
        self._account: OverheadAccount | None = None

    def count_in(self, account: OverheadAccount) -> None:
        """Count the bytes of later frames in an account."""
        self._account = account

    def reply(self, request: int, value: ReplyValue) -> None:
        """Queue the response to a request.

        Raises ``SessionLost``, which ends the session, if not even an error fits into the quota.
        """
        if isinstance(value, OperationFailed):
            self._unreported = [each for each in self._unreported if each.tensor != value.tensor]
        frame = self._encoded(request, value)
        size = sum(map(len, frame))
        waiting = self._added_bytes - self.taken_bytes
        if waiting and waiting + size > self._max_waiting_bytes:
            refusal = QuotaExceeded(
                f"bytes of queued responses: {waiting + size:,} would be queued, "
                f"{self._max_waiting_bytes:,} are allowed; read fewer tensors at once"
            )
            frame = self.encode(BurnReply(request, refusal))
            size = sum(map(len, frame))
        elif size <= COPIED_BYTES:
            frame = [b"".join(frame)]  # a small view could keep a large tensor's memory alive
        try:
            self._count(frame)
        except QuotaExceeded as error:
            frame = self.encode(BurnReply(request, error))
            size = sum(map(len, frame))
            try:
                self._count(frame)
            except QuotaExceeded:
                raise ended_for_memory("a response", error) from error
        self._added_bytes += size
        self.frames.append(frame)

    def append(self, frame: list[bytes | memoryview]) -> None:
        """Queue another small frame. Raises ``SessionLost`` if it does not fit into the quota."""
        try:
            self._count(frame)
        except QuotaExceeded as error:
            raise ended_for_memory("a response", error) from error
        self._added_bytes += sum(map(len, frame))
        self.frames.append(frame)

    def taken(self, frame: Sequence[bytes | memoryview]) -> None:
        """Count a frame as sent."""
        self.taken_bytes += sum(map(len, frame))
        if self._account is not None:
            self._account.remove(_own_bytes(frame))

    def _count(self, frame: Sequence[bytes | memoryview]) -> None:
        if self._account is not None:
            self._account.add(_own_bytes(frame))

    def failed(self, tensors: tuple[int, ...], error: OperationFailed) -> None:
        """Keep a failure until a read of the tensor, or else the next sync, reports it."""
        self.failures[error.code] += 1
        if len(self._unreported) < MAX_UNREPORTED:
            self._unreported.append(error)

    def _encoded(self, request: int, value: ReplyValue) -> list[bytes | memoryview]:
        try:
            if value is None and self._unreported:
                first, self._unreported = self._unreported[0], []
                return self.encode(BurnReply(request, first), is_sync=True)
            assert not isinstance(value, tuple) or isinstance(value, TensorData)  # native only
            return self.encode(BurnReply(request, value))
        except LimitExceeded as error:
            return self.encode(BurnReply(request, OperationFailed(str(error))))

    def fetch(self, task: Fetch, slot: InFlight) -> None:
        """Start a fetch."""
        self._device.host.start_fetch(self, self._device.backend, task, slot)


def _own_bytes(frame: Sequence[bytes | memoryview]) -> int:
    """Return a frame's own memory, without elements that are views of a tensor's memory.

    ``TensorTable.hold_reply`` counts such elements.
    """
    return held_bytes(sum(len(buffer) for buffer in frame if isinstance(buffer, bytes)))
