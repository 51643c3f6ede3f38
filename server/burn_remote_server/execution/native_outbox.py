"""The queue of outgoing frames of a native session.

Small replies are sent first, each as one frame. The chunks of large tensors are interleaved round
robin, so no download delays a small reply or another download.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from burn_remote_protocol.dialects.native import (
    CHUNK_BYTES,
    INLINE_BYTES,
    chunk_head,
    decode_frame,
    encode_elements,
    encode_frame,
)
from burn_remote_protocol.errors import (
    OperationFailed,
    QuotaExceeded,
)
from burn_remote_protocol.messages import Failed, Fetch, Lent, Reply, ReplyValue, Waiting
from burn_remote_protocol.session_states import ReplayWindow
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.access.quota import OverheadAccount, ended_for_memory
from burn_remote_server.tensors.slots import InFlight

__all__ = ["Frame", "NativeOutbox", "held_bytes"]

# A complete frame, or a frame in two parts: header and payload.
Frame = bytes | tuple[bytes, memoryview]

# Smaller frames are counted only if ``UNCOUNTED_FRAMES`` are already queued or unacknowledged.
# Counting a frame takes 2 µs, and so many small frames take less memory than
# ``FREE_OVERHEAD_BYTES``.
COUNTED_BYTES: Final = 2048
UNCOUNTED_FRAMES: Final = 96


def held_bytes(size: int) -> int:
    """Return the memory of a frame of ``size`` bytes.

    It includes the object, its entries in the queue and the replay window, and the fragmentation of
    the heap (an eighth, measured).
    """
    return size + size // 8 + 256


class _CountedFrame(bytes):
    """A frame that counts in an account as long as anything references it."""

    account: OverheadAccount

    def __del__(self) -> None:
        self.account.remove(held_bytes(len(self)))


@dataclass(slots=True, eq=False)  # compared by identity: == would compare all of the data
class _Download:
    payload: int
    data: memoryview
    sent: int = 0


class NativeOutbox:
    """Outgoing frames of an engine; sent frames stay in the replay window until acknowledged.

    The engine's thread appends and the connection takes; the operations of ``deque`` are atomic.
    """

    def __init__(
        self,
        fetch: Callable[[Fetch, InFlight], None],
        *,
        max_waiting_bytes: int = 2**62,
        is_resumable: bool = True,
        has_checksums: bool = False,
        tells_waiting: bool = False,
        tells_hops: bool = False,
    ) -> None:
        """Create an empty queue.

        ``max_waiting_bytes`` bounds the bytes of queued large tensors. ``is_resumable``: keep sent
        frames until they are acknowledged. ``has_checksums``: add checksums to chunks.
        ``tells_waiting``: the target understands ``Waiting``. ``tells_hops``: it also understands
        the field ``hops`` of ``Waiting``.
        """
        self._max_waiting_bytes = max_waiting_bytes
        self._is_resumable = is_resumable
        self._has_checksums = has_checksums
        self._tells_waiting = tells_waiting
        self._tells_hops = tells_hops
        # Each counter has one writing thread: the engine's, or the connection's.
        self._added_bytes = 0
        self._taken_bytes = 0
        self.window: ReplayWindow[Frame] = ReplayWindow()
        self._again: deque[Frame] = deque()
        self._frames: deque[bytes] = deque()
        self._downloads: deque[_Download] = deque()
        self.failures: Counter[str] = Counter()  # number of reported failures, by error code
        self._fetch = fetch
        self._account: OverheadAccount | None = None

    def count_in(self, account: OverheadAccount) -> None:
        """Count the bytes of later frames in an account."""
        self._account = account

    def __len__(self) -> int:
        return len(self._again) + len(self._frames) + len(self._downloads)

    def has(self, count: int) -> bool:
        """Return whether at least so many are queued; each round trip asks this.

        CPython 3.11 takes longer to call ``__len__`` than any other method.
        """
        return len(self._again) + len(self._frames) + len(self._downloads) >= count

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to send."""
        return not (self._frames or self._downloads or self._again)

    def take(self) -> Frame | None:
        """Return the next frame to send, or ``None``."""
        if self._again:
            return self._again.popleft()
        frame = self._frames.popleft() if self._frames else self._next_chunk()
        if frame is not None and self._is_resumable:
            size = len(frame) if isinstance(frame, bytes) else len(frame[1])
            self.window.append(frame, size)
        return frame

    def move_to(self, arrived: deque[bytes]) -> None:
        """Move all frames to a queue, each as a whole.

        A frame that leaves one queue is in the other one, also after a ``KeyboardInterrupt``:
        CPython runs no signal handler when a function in Python returns, and between statements
        that call nothing.
        """
        frames, downloads, window = self._frames, self._downloads, self.window
        while frames or downloads:
            if frames:
                first = frames[0]
                whole = (first if isinstance(first, bytes) else first[0] + first[1],)
                window.append(first, len(whole[0]))
                arrived += whole
                del frames[0]
                continue
            download = downloads[0]
            start = download.sent
            end = min(start + CHUNK_BYTES, len(download.data))
            data = download.data[start:end]
            head = chunk_head(download.payload, start, data if self._has_checksums else None)
            whole = (head + data,)
            taken = self._taken_bytes + len(data)
            is_last = end == len(download.data)
            window.append((head, data), len(data))
            arrived += whole
            self._taken_bytes = taken
            download.sent = end
            if is_last:
                del downloads[0]

    def replay(self) -> None:
        """Send the unacknowledged frames again, before all others."""
        self._again = deque(self.window.frames())

    def reply(self, request: int, value: ReplyValue) -> None:
        """Queue the reply to a request; the elements of a large tensor follow in chunks.

        Raises ``SessionLost``, which ends the session, if not even an error fits into the quota.
        """
        if not isinstance(value, TensorData):
            self._append(encode_frame(Reply(request, value)))
            return
        data = memoryview(value.bytes).cast("B")
        if len(data) <= INLINE_BYTES:
            try:
                # Encoded without another copy, which would fragment the heap.
                self._append_within_quota(encode_elements(request, data))
            except QuotaExceeded as error:
                refusal = QuotaExceeded(error.reason, operation="Read", shapes=str(value.spec))
                self._append(encode_frame(Reply(request, refusal)))
            return
        waiting = self._added_bytes - self._taken_bytes
        if waiting and waiting + len(data) > self._max_waiting_bytes:
            refusal = QuotaExceeded(
                f"bytes of queued responses: {waiting + len(data):,} would be queued, "
                f"{self._max_waiting_bytes:,} are allowed; read fewer tensors at once",
                operation="Read",
            )
            self._append(encode_frame(Reply(request, refusal)))
            return
        self.follow(request, value)

    def follow(self, request: int, value: TensorData, start: int = 0) -> None:
        """Reply with a tensor's shape and dtype, followed by its bytes from ``start`` in chunks."""
        data = memoryview(value.bytes).cast("B")
        self._append(encode_frame(Reply(request, value.spec)))
        if start < len(data) or not start:
            self._added_bytes += len(data) - start
            self._downloads.append(_Download(request, data, start))

    def abandon(self, request: int) -> None:
        """Stop sending a tensor. Call only in the thread that takes frames."""
        for download in [*self._downloads]:
            if download.payload == request:
                self._downloads.remove(download)
                self._taken_bytes += len(download.data) - download.sent

    def has_answered(self, request: int) -> bool:
        """Whether the complete reply to a request is queued; remove an incomplete one.

        An interrupt may have come after the reply, or between the shape and dtype of a large tensor
        and its elements.
        """
        for frame in [*self._frames]:
            message = decode_frame(frame)
            if isinstance(message, Reply) and message.request == request:
                if not isinstance(message.value, TensorSpec):
                    return True
                if any(download.payload == request for download in self._downloads):
                    return True
                self._frames.remove(frame)
        return False

    def lend(self, request: int, spec: TensorSpec, handle: bytes) -> None:
        """Reply with a tensor's shape and dtype, and the handle of the memory with its bytes."""
        self._append(encode_frame(Reply(request, spec)))
        self._append(encode_frame(Lent(request, handle)))

    def wait(self, request: int, hops: int) -> None:
        """Tell a fetch's target that understands ``Waiting`` that earlier work makes progress."""
        if self._tells_waiting:
            # 0 is safe for a target that does not understand hops, because it does not pass
            # progress reports on.
            self._append(encode_frame(Waiting(request, hops if self._tells_hops else 0)))

    def failed(self, tensors: tuple[int, ...], error: OperationFailed) -> None:
        """Report a failed operation. Raises ``SessionLost`` like ``reply``."""
        self.failures[error.code] += 1
        self._append(encode_frame(Failed(tensors, error)))

    def fetch(self, task: Fetch, slot: InFlight) -> None:
        """Start a fetch."""
        self._fetch(task, slot)

    def _append(self, frame: bytes) -> None:
        try:
            self._append_within_quota(frame)
        except QuotaExceeded as error:
            raise ended_for_memory("a reply or the report of a failure", error) from error

    def _append_within_quota(self, frame: bytes) -> None:
        if self._account is not None and (
            len(frame) >= COUNTED_BYTES or len(self._frames) + len(self.window) >= UNCOUNTED_FRAMES
        ):
            self._account.add(held_bytes(len(frame)))
            frame = _CountedFrame(frame)
            frame.account = self._account
        self._frames.append(frame)

    def _next_chunk(self) -> Frame | None:
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
