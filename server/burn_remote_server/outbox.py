"""Which frames leave a native session next?

Replies go first and whole; the chunks of large answers take turns, so that no download holds up a
small reply or another download.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from burn_remote_protocol.dialects.native import (
    CHUNK_BYTES,
    INLINE_BYTES,
    chunk_head,
    encode_frame,
)
from burn_remote_protocol.errors import BurnRemoteError, OperationFailed
from burn_remote_protocol.messages import Acknowledged, Failed, Fetch, Reply
from burn_remote_protocol.tensors import TensorData
from burn_remote_server.slots import InFlight

__all__ = ["Frame", "NativeOutbox"]

# A whole frame, or a header and the payload that follows it in the same frame.
Frame = bytes | tuple[bytes, memoryview]

# Larger: the client's replay window holds more batches. Smaller: more frames that only acknowledge.
ACKNOWLEDGE_EVERY = 16


@dataclass(slots=True)
class _Download:
    payload: int
    data: memoryview
    sent: int = 0


class NativeOutbox:
    """Turn what an engine says into frames, for one session.

    The engine's thread appends, the pump takes; ``deque`` makes each step atomic.
    """

    def __init__(self, fetch: Callable[[Fetch, InFlight], None]) -> None:
        self._frames: deque[bytes] = deque()
        self._downloads: deque[_Download] = deque()
        self._fetch = fetch
        self._sequence = 0
        self._acknowledged = 0

    def __len__(self) -> int:
        return len(self._frames) + len(self._downloads)

    def take(self) -> Frame | None:
        """Return the next frame to send, or ``None``."""
        if self._frames:
            return self._frames.popleft()
        if not self._downloads:
            return None
        download = self._downloads.popleft()
        start = download.sent
        download.sent = min(start + CHUNK_BYTES, len(download.data))
        if download.sent < len(download.data):
            self._downloads.append(download)
        return chunk_head(download.payload, start), download.data[start : download.sent]

    def reply(self, request: int, value: TensorData | BurnRemoteError | int | None) -> None:
        """Answer a request; large elements follow in chunks."""
        if not isinstance(value, TensorData):
            self._frames.append(encode_frame(Reply(self._number(), request, value)))
            return
        data = memoryview(value.bytes).cast("B")
        if len(data) <= INLINE_BYTES:
            whole = TensorData(bytes(data), value.shape, value.dtype)
            self._frames.append(encode_frame(Reply(self._number(), request, whole)))
            return
        self._frames.append(encode_frame(Reply(self._number(), request, value.spec)))
        self._downloads.append(_Download(request, data))

    def failed(self, tensors: tuple[int, ...], error: OperationFailed) -> None:
        """Report an operation that failed by itself."""
        self._frames.append(encode_frame(Failed(self._number(), tensors, error)))

    def fetch(self, task: Fetch, slot: InFlight) -> None:
        """Pass a download on to whoever does them."""
        self._fetch(task, slot)

    def executed(self, batch: int) -> None:
        """Acknowledge batches now and then."""
        if batch - self._acknowledged >= ACKNOWLEDGE_EVERY:
            self._acknowledged = batch
            self._frames.append(encode_frame(Acknowledged(batch)))

    def say(self, message: object) -> None:
        """Queue any other message."""
        self._frames.append(encode_frame(message))

    def _number(self) -> int:
        self._sequence += 1
        return self._sequence
