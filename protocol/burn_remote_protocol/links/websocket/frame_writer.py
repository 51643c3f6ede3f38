"""Outgoing WebSocket messages of a client: framing, masking and sending, without large copies.

How it works: ``message_buffers`` turns one message into buffers in sending order. A small message
is one buffer, header included. A large payload becomes several blocks that refer to the caller's
memory, and each block is masked (RFC 6455, section 5.3, requires it of clients) just before it is
written. A ``FrameWriter`` writes the buffers of one message after another, even if several threads
send.
"""

from __future__ import annotations

import collections
import os
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from burn_remote_protocol.links.websocket.frames import (
    BINARY,
    CONTINUATION,
    FINAL_BIT,
    LENGTH_16_LIMIT,
    MASK_BIT,
    apply_mask,
    frame_header,
)
from burn_remote_protocol.links.websocket.timed_locks import call_holding

__all__ = ["FrameWriter", "OutgoingBuffer", "message_buffers", "messages_buffers"]

# Payloads are masked in blocks of this size just before they are sent: small enough for the masked
# copy to be in the second-level cache when the kernel reads it, large enough for few system calls.
MASK_BLOCK_BYTES: Final = 256 * 2**10

# Up to this size a frame is one buffer with its header: copying it costs less than a second system
# call.
JOINED_BYTES: Final = 64 * 2**10

# Masking keys drawn per system call; a system call for each frame would take 0.5 µs.
KEYS_PER_DRAW: Final = 256

# How often the rest of an interrupted message is copied again if an interrupt or a lack of memory
# ends the copying. A copy takes 0.1 ms.
MAX_DETACHMENTS: Final = 20

_SPLIT_KEYS: Final = struct.Struct("4s" * KEYS_PER_DRAW).unpack

_EMPTY: Final = memoryview(b"")


class OutgoingBuffer:
    """Bytes to be sent, and how many of them the operating system has accepted.

    They are masked just before they are sent. ``accepted`` holds the result of each system call.
    The C function that makes the call also appends its result, so no ``KeyboardInterrupt`` can
    occur in between. The masked copy is kept in ``_masked`` in the same way. ``more`` says that the
    rest of the frame follows immediately, ``is_constant`` that ``data`` never changes.
    """

    __slots__ = ("_data", "_is_constant", "_key", "_masked", "accepted", "more")

    def __init__(
        self,
        data: bytes | memoryview,
        key: bytes | None = None,
        *,
        more: bool = False,
        is_constant: bool = False,
    ):
        self._data = data
        self._key = key
        if key is not None:
            self._masked: list[bytes] = []
        self._is_constant = is_constant
        self.more = more
        self.accepted: list[int] = []

    def unsent(self) -> bytes | memoryview:
        """Return what still has to be sent, masked."""
        if self._key is not None:
            self.detach()
        accepted = self.accepted
        return memoryview(self._data)[sum(accepted) :] if accepted else self._data

    def done(self) -> bool:
        """Whether the operating system has accepted all bytes."""
        return sum(self.accepted) == len(self._data)

    @property
    def borrows(self) -> bool:
        """Whether it still refers to memory that the caller may change."""
        return self._key is not None and not self._is_constant

    def detach(self) -> None:
        """Mask the bytes now, into a copy, so that the caller's memory is no longer needed."""
        if self._key is not None:
            masked = self._masked
            if not masked:
                # One call in C masks and keeps the copy. An interrupt meanwhile is raised
                # afterwards, so copying gets on even if every copy is interrupted.
                masked.extend(map(apply_mask, (self._data,), (self._key,)))
            self._data = masked[0]
            self._key = None


# ``write(buffer, timeout_seconds)`` writes some bytes of a buffer. Returns ``False`` after the
# timeout; ``None`` means no timeout. Raises ``OSError``.
Write = Callable[[OutgoingBuffer, float | None], bool]


class FrameWriter:
    """Writes whole messages one after the other, even if several threads send.

    An interrupted send leaves the rest of its message in the queue, where it is sent before the
    next message. Control frames never wait for a sender: they join the queue between messages.
    """

    def __init__(self, write: Write, fragment_bytes: int | None) -> None:
        self._write: Final = write
        self._fragment_bytes: Final = fragment_bytes
        self._keys: Final[list[bytes]] = []
        # What ``send_control`` has to send: two public attributes, because each round trip looks at
        # them. First the message being sent, or the rest of an interrupted one. Guarded by
        # ``lock``.
        self.unsent: collections.deque[OutgoingBuffer] = collections.deque()
        # Control frames to send after the current message. A receiver appends them instead of
        # waiting for the sender: if both ends waited for their senders, neither would read, a
        # deadlock.
        self.control: collections.deque[OutgoingBuffer] = collections.deque()
        self.lock: Final = threading.RLock()

    def send(self, head: bytes, payload: memoryview) -> None:
        """Send one message; return once the operating system has accepted it. Hold ``lock``.

        Raises ``OSError``.
        """
        total = len(head)
        if payload or total > JOINED_BYTES or self.unsent or self._fragment_bytes is not None:
            self._call(self._send, head, payload)
            return
        # ``_send`` and ``_flush``, inlined for one buffer, as every small message has.
        keys = self._keys
        key = keys.pop() if keys else _next_key(keys)
        header = frame_header(FINAL_BIT | BINARY, total, MASK_BIT)
        data = header + key + apply_mask(head, key)
        buffer = OutgoingBuffer(data)
        self.unsent.append(buffer)
        self._write(buffer, None)
        if buffer.accepted == [len(data)]:
            self.unsent.popleft()
        else:
            self._flush()

    def queue(self, head: bytes, payload: memoryview) -> None:
        """Queue one message, whose payload never changes, after sending those before it.

        Hold ``lock``. ``flush`` and later messages send it. Raises ``OSError``.
        """
        self._call(self._queue, head, payload)

    def _queue(self, head: bytes, payload: memoryview) -> None:
        if self.unsent:
            self._flush_rest()
        made = message_buffers(head, payload, self._keys, self._fragment_bytes, True)
        # One call in C: the queue has the message whole or not at all.
        self.unsent.extend(made)

    def flush(self) -> None:
        """Send what is queued. Hold ``lock``. Raises ``OSError``."""
        self._flush_rest()

    def send_together(self, frames: list[bytes]) -> None:
        """Send several messages like ``send``, with few system calls. Hold ``lock``.

        Removes them from the list when the queue has them.
        """
        self._call(self._send_together, frames)

    def _send_together(self, frames: list[bytes]) -> None:
        if self.unsent:
            self._flush_rest()
        made = messages_buffers(frames, self._keys, self._fragment_bytes)
        unsent = self.unsent
        # CPython runs no signal handler between these, because they call nothing.
        unsent += made
        del frames[:]
        self._flush()

    def _send(self, head: bytes, payload: memoryview) -> None:
        if self.unsent:
            self._flush_rest()
        self.unsent.extend(message_buffers(head, payload, self._keys, self._fragment_bytes))
        self._flush()

    def _call(self, step: Callable[..., None], *arguments: Any) -> None:
        """Call ``step``; if it is interrupted, detach what it has queued."""
        try:
            try:
                step(*arguments)
            except BaseException:
                self._detach()
                raise
        except BaseException:
            # A second interrupt may have come before the first call of ``_detach`` did anything.
            self._detach()
            raise

    def send_control(self, frames: Iterable[bytes] = (), timeout_seconds: float = 0) -> None:
        """Send control frames, or leave them to the thread that is sending. Raises ``OSError``.

        Call it without frames after each message, and before each read, to send pending control
        frames.
        """
        self.control.extend(map(OutgoingBuffer, frames))
        while self.control or self.unsent:
            if not call_holding(self.lock, timeout_seconds, self._flush_control, timeout_seconds):
                return

    def _flush_control(self, timeout_seconds: float) -> bool:
        while self.control:
            # Append first, so that Ctrl-C loses no frame. If it leaves a frame in both queues, the
            # frame is still sent once: both have the same ``OutgoingBuffer``.
            self.unsent.append(self.control[0])
            self.control.popleft()
        return self._flush_rest(timeout_seconds)

    def _detach(self) -> None:
        """Detach the rest of an interrupted message, although further interrupts may come."""
        try:
            for _ in range(MAX_DETACHMENTS):
                try:
                    for buffer in self.unsent:
                        buffer.detach()
                    return
                except BaseException:  # the caller raises the first interrupt
                    continue
        except BaseException:  # came between two turns of the loop
            for buffer in self.unsent:
                buffer.detach()

    def _flush_rest(self, timeout_seconds: float | None = None) -> bool:
        """Send what earlier sends have left in the queue. Raises ``OSError``."""
        if any(buffer.borrows for buffer in self.unsent):
            # The caller may have changed this memory since, so the link must end. A session then
            # sends the message again over a new link.
            raise ConnectionAbortedError("a message was interrupted and could not be copied")
        return self._flush(timeout_seconds)

    def _flush(self, timeout_seconds: float | None = None) -> bool:
        while self.unsent:
            buffer = self.unsent[0]
            if not buffer.done() and not self._write(buffer, timeout_seconds):
                return False
            if buffer.done():
                self.unsent.popleft()
        return True


def message_buffers(
    head: bytes,
    payload: memoryview,
    keys: list[bytes],
    fragment_bytes: int | None,
    is_constant: bool = False,
) -> list[OutgoingBuffer]:
    """Return one binary message as buffers in sending order.

    ``keys`` holds unpredictable masking keys, one per WebSocket frame; it is refilled when empty.
    ``is_constant``: the payload never changes.
    """
    total = len(head) + len(payload)
    if total <= JOINED_BYTES and (fragment_bytes is None or total <= fragment_bytes):
        key = _next_key(keys)
        body = b"".join((head, payload)) if payload else head
        header = frame_header(FINAL_BIT | BINARY, total, MASK_BIT) + key
        return [OutgoingBuffer(header + apply_mask(body, key))]
    buffers: list[OutgoingBuffer] = []
    parts = [memoryview(head), payload]
    opcode = BINARY
    while True:
        size = total if fragment_bytes is None else min(total, fragment_bytes)
        total -= size
        key = _next_key(keys)
        header = frame_header(opcode if total else opcode | FINAL_BIT, size, MASK_BIT) + key
        buffers.append(OutgoingBuffer(header, more=True))
        buffers += _masked_blocks(parts, size, key, is_constant)
        opcode = CONTINUATION
        if not total:
            return buffers


def messages_buffers(
    frames: Iterable[bytes], keys: list[bytes], fragment_bytes: int | None
) -> list[OutgoingBuffer]:
    """Return several binary messages as buffers; small ones share a buffer, for one system call.

    ``keys`` is as for ``message_buffers``.
    """
    buffers: list[OutgoingBuffer] = []
    joined: list[bytes] = []
    size = 0
    for frame in frames:
        length = len(frame)
        if length >= LENGTH_16_LIMIT:
            if joined:
                buffers.append(OutgoingBuffer(b"".join(joined)))
                joined, size = [], 0
            buffers += message_buffers(frame, _EMPTY, keys, fragment_bytes)
            continue
        key = keys.pop() if keys else _next_key(keys)
        joined += (frame_header(FINAL_BIT | BINARY, length, MASK_BIT), key, apply_mask(frame, key))
        size += length
        if size >= JOINED_BYTES:
            buffers.append(OutgoingBuffer(b"".join(joined)))
            joined, size = [], 0
    if joined:
        buffers.append(OutgoingBuffer(b"".join(joined)))
    return buffers


def _masked_blocks(
    parts: list[memoryview], size: int, key: bytes, is_constant: bool
) -> Iterator[OutgoingBuffer]:
    """Remove ``size`` bytes from the front of ``parts``, in blocks."""
    while size:
        block = parts[0][: min(size, MASK_BLOCK_BYTES)]
        parts[0] = parts[0][len(block) :]
        if not parts[0]:
            parts.pop(0)
        if block:
            size -= len(block)
            yield OutgoingBuffer(block, key, more=size > 0, is_constant=is_constant)
            turn = len(block) % 4
            key = key[turn:] + key[:turn]


def _next_key(keys: list[bytes]) -> bytes:
    # A list, not a generator: an interrupt would end the generator.
    if not keys:
        drawn = os.urandom(4 * KEYS_PER_DRAW)
        keys.extend(_SPLIT_KEYS(drawn))
    return keys.pop()
