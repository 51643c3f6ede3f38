"""The queue of frames that leave a native session.

Replies go first and whole; the chunks of large answers take turns, so that no download delays a
small reply or another download.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from burn_remote_protocol.dialects.native import (
    CHUNK_BYTES,
    INLINE_BYTES,
    chunk_head,
    encode_frame,
)
from burn_remote_protocol.errors import (
    BurnRemoteError,
    LimitExceeded,
    OperationFailed,
    QuotaExceeded,
)
from burn_remote_protocol.messages import Failed, Fetch, Lent, Reply
from burn_remote_protocol.session_states import ReplayWindow
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.access.quota import OverheadAccount
from burn_remote_server.execution.slots import InFlight

__all__ = ["Frame", "NativeOutbox", "held_bytes"]

# A whole frame, or a header and the payload that follows it in the same frame.
Frame = bytes | tuple[bytes, memoryview]

# Frames below this size are counted only where more than so many wait: counting takes a
# microsecond, and that many take less than ``FREE_OVERHEAD_BYTES``.
COUNTED_BYTES: Final = 1024
UNCOUNTED_FRAMES: Final = 256


def held_bytes(size: int) -> int:
    """Return what a frame of ``size`` bytes takes in memory: also its object, its places in the
    queue and the window, and the gaps that such frames leave in the heap (measured: an eighth)."""
    return size + size // 8 + 256


class _CountedFrame(bytes):
    """A frame that counts in an account for as long as anything refers to it."""

    account: OverheadAccount

    def __del__(self) -> None:
        self.account.remove(held_bytes(len(self)))


@dataclass(slots=True, eq=False)  # compared by identity: == would compare all of the data
class _Download:
    payload: int
    data: memoryview
    sent: int = 0


class NativeOutbox:
    """Frames for what an engine says, each kept until the client has it.

    The engine's thread appends, the pump takes; ``deque`` makes each step atomic.
    """

    def __init__(
        self,
        fetch: Callable[[Fetch, InFlight], None],
        *,
        max_waiting_bytes: int = 2**62,
        is_resumable: bool = True,
        has_checksums: bool = False,
    ) -> None:
        """Create an empty queue.

        ``max_waiting_bytes`` bounds large answers that were not sent. ``is_resumable``: what was
        sent is kept until it is acknowledged. ``has_checksums``: chunks carry them.
        """
        self._max_waiting_bytes = max_waiting_bytes
        self._is_resumable = is_resumable
        self._has_checksums = has_checksums
        # Counted by one thread each: the engine adds, the pump takes away.
        self._added_bytes = 0
        self._taken_bytes = 0
        self.window: ReplayWindow[Frame] = ReplayWindow()
        self._again: deque[Frame] = deque()
        self._frames: deque[bytes] = deque()
        self._downloads: deque[_Download] = deque()
        self.failures: Counter[str] = Counter()  # reported so far, by the error's code
        self._fetch = fetch
        self._account: OverheadAccount | None = None

    def count_in(self, account: OverheadAccount) -> None:
        """Count the bytes of frames in an account from now on."""
        self._account = account

    def __len__(self) -> int:
        return len(self._again) + len(self._frames) + len(self._downloads)

    def take(self) -> Frame | None:
        """Return the next frame to send, or ``None``."""
        if self._again:
            return self._again.popleft()
        frame = self._next()
        if frame is not None and self._is_resumable:
            size = len(frame) if isinstance(frame, bytes) else len(frame[1])
            self.window.append(frame, size)
        return frame

    def replay(self) -> None:
        """Send again, before anything else, what the client has not acknowledged."""
        self._again = deque(self.window.frames())

    def reply(self, request: int, value: TensorData | BurnRemoteError | int | None) -> None:
        """Answer a request; large elements follow in chunks.

        Raises ``LimitExceeded``, which ends the session, where not even a refusal has room.
        """
        if not isinstance(value, TensorData):
            self._append(encode_frame(Reply(request, value)))
            return
        data = memoryview(value.bytes).cast("B")
        if len(data) <= INLINE_BYTES:
            # Packed from where it lies: another copy on the way would leave gaps in the heap.
            elements = cast("bytes", data)
            try:
                self._append_within_quota(encode_frame(Reply(request, elements)))
            except QuotaExceeded as error:
                refusal = QuotaExceeded(error.reason, operation="Read", shapes=str(value.spec))
                self._append(encode_frame(Reply(request, refusal)))
            return
        waiting = self._added_bytes - self._taken_bytes
        if waiting and waiting + len(data) > self._max_waiting_bytes:
            refusal = QuotaExceeded(
                f"bytes of answers that wait to be sent: {waiting + len(data):,} would, "
                f"{self._max_waiting_bytes:,} are allowed; read fewer tensors at once",
                operation="Read",
            )
            self._append(encode_frame(Reply(request, refusal)))
            return
        self.follow(request, value)

    def follow(self, request: int, value: TensorData, start: int = 0) -> None:
        """Answer with a tensor's shape and dtype, and its bytes from ``start`` on in chunks."""
        data = memoryview(value.bytes).cast("B")
        self._append(encode_frame(Reply(request, value.spec)))
        if start < len(data) or not start:
            self._added_bytes += len(data) - start
            self._downloads.append(_Download(request, data, start))

    def abandon(self, request: int) -> None:
        """Send no more of a tensor: its reader has enough. In the thread that takes."""
        for download in [*self._downloads]:
            if download.payload == request:
                self._downloads.remove(download)
                self._taken_bytes += len(download.data) - download.sent

    def lend(self, request: int, spec: TensorSpec, handle: bytes) -> None:
        """Answer with a tensor's shape and dtype, and what opens the memory that has its bytes."""
        self._append(encode_frame(Reply(request, spec)))
        self._append(encode_frame(Lent(request, handle)))

    def failed(self, tensors: tuple[int, ...], error: OperationFailed) -> None:
        """Report an operation that failed by itself. Raises ``LimitExceeded`` like ``reply``."""
        self.failures[error.code] += 1
        self._append(encode_frame(Failed(tensors, error)))

    def fetch(self, task: Fetch, slot: InFlight) -> None:
        """Start a download."""
        self._fetch(task, slot)

    def _append(self, frame: bytes) -> None:
        try:
            self._append_within_quota(frame)
        except QuotaExceeded as error:
            raise LimitExceeded(
                f"frames that wait to be sent ({error.reason})",
                seen=len(self._frames) + 1,
                allowed=len(self._frames),
            ) from error

    def _append_within_quota(self, frame: bytes) -> None:
        if self._account is not None and (
            len(frame) >= COUNTED_BYTES or len(self._frames) >= UNCOUNTED_FRAMES
        ):
            self._account.add(held_bytes(len(frame)))
            frame = _CountedFrame(frame)
            frame.account = self._account
        self._frames.append(frame)

    def _next(self) -> Frame | None:
        if self._frames:
            return self._frames.popleft()
        if not self._downloads:
            return None
        download = self._downloads.popleft()
        start = download.sent
        download.sent = min(start + CHUNK_BYTES, len(download.data))
        if download.sent < len(download.data):
            self._downloads.append(download)
        data = download.data[start : download.sent]
        self._taken_bytes += len(data)
        return chunk_head(download.payload, start, data if self._has_checksums else None), data
