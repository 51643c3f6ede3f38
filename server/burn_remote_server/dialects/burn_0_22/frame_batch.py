"""Batches of consecutive frames of Burn 0.22, decoded in bounded steps."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from functools import partial
from typing import Any, Final

from burn_remote_protocol.dialects.burn_0_22 import Close, Message
from burn_remote_protocol.dialects.burn_0_22_recognition import MessageRecognizer
from burn_remote_protocol.errors import ProtocolViolation, detached
from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_server.dialects.burn_0_21.task_runner import Unreadable
from burn_remote_server.dialects.burn_0_21.thread_intake import DecodedFrames
from burn_remote_server.dialects.burn_0_21.two_socket_sessions import decoded_bytes
from burn_remote_server.execution.decoding_turns import (
    LARGE_FRAME_BYTES,
    DecodingTurns,
    decoding_weight,
)
from burn_remote_server.execution.sessions import Session

__all__ = ["MAX_UNKNOWN_MESSAGES", "SHORT_FRAME_BYTES", "FrameBatch", "decoded_frames"]

# A batch with this many tasks takes no more frames. Small operations cost about 2 µs each, so such
# a batch may run on the event loop. If earlier tasks wait for the worker, the batch goes to the
# worker too. It may then be larger, because passing a batch on takes about 40 µs.
FULL_BATCH_TASKS: Final = 48
FULL_WORKER_BATCH_TASKS: Final = 256
# A batch of this weight (``decoding_weight``) takes no more frames: all its frames are decoded in
# one iteration of the event loop, and decoding them takes up to 1 ms.
FULL_BATCH_WEIGHT: Final = LARGE_FRAME_BYTES
# Longer frames are decoded in turns. A frame of four operations has 300 to 600 bytes.
SHORT_FRAME_BYTES: Final = 4096
# A batch with this many unknown messages takes no more frames, and the next batch is decoded in
# turns. Decoding an unknown message takes 30 to 100 µs; messages that a program repeats take less.
MAX_UNKNOWN_MESSAGES: Final = 64


class FrameBatch:
    """The messages of consecutive frames.

    ``unknown`` is the number of messages that the recognizer did not know, and ``weight`` that of
    the frames that were decoded without turns. ``tasks`` has messages and ``KnownFrame``s.
    """

    def __init__(self, recognizer: MessageRecognizer) -> None:
        self._recognizer: Final = recognizer
        self.tasks: Final[list[Any]] = []
        self.count = 0  # of the messages
        self.size = 0
        self.weight = 0
        self.unknown = 0

    def add(self, frame: bytes | memoryview) -> None:
        """Add the messages of a short frame, which the recognizer may know."""
        self.size += len(frame)
        known = self._recognizer.recognize(frame)
        if known is not None:
            self.tasks.append(known)
            self.count += len(known)
            self.weight += len(frame)
            return
        self.weight += decoding_weight(frame)
        before = self._recognizer.unknown
        try:
            self._extend(self._recognizer.decode(frame))
        except ProtocolViolation as error:
            self._end_with(error)
        self.unknown += self._recognizer.unknown - before

    def add_now(self, frame: bytes) -> None:
        """Add the messages of a frame without pauses, in a thread other than the event loop's."""
        if len(frame) <= SHORT_FRAME_BYTES:
            self.add(frame)
            return
        self.size += len(frame)
        for _ in self._steps(frame):
            pass

    async def add_in_turns(self, frame: bytes | memoryview, decoding: DecodingTurns) -> None:
        """Add the messages of a frame, with pauses between them."""
        self.size += len(frame)
        await decoding.run(self._steps(frame))

    def add_arrived(self, link: AsyncLink, *, is_busy: bool) -> None:
        """Add short frames that have arrived, within a bounded time.

        ``is_busy``: earlier tasks wait for the session's worker.
        """
        most = FULL_WORKER_BATCH_TASKS if is_busy else FULL_BATCH_TASKS
        while (
            self.weight < FULL_BATCH_WEIGHT
            and self.count < most
            and self.unknown < MAX_UNKNOWN_MESSAGES
            and (more := link.receive_nowait(SHORT_FRAME_BYTES)) is not None
        ):
            self.add(more)

    def _steps(self, frame: bytes | memoryview) -> Generator[None, None, None]:
        """Add the messages of a frame; yield after each, and between the steps of long ones."""
        before = self._recognizer.unknown
        try:
            for task in self._recognizer.each_message(frame):
                if task is not None:
                    self._extend((task,))
                yield
        except ProtocolViolation as error:
            self._end_with(error)
        self.unknown += self._recognizer.unknown - before

    def _extend(self, tasks: Collection[Message | ProtocolViolation]) -> None:
        self.count += len(tasks)
        self.tasks.extend(
            [Unreadable(task) if isinstance(task, ProtocolViolation) else task for task in tasks]
        )

    def _end_with(self, error: ProtocolViolation) -> None:
        self.count += 1
        # Its frames would keep objects that were decoded from the frame alive, up to 15 MiB.
        self.tasks.append(Unreadable(detached(error)))


def decoded_frames(
    frames: Sequence[bytes], recognizer: MessageRecognizer, work: Session
) -> DecodedFrames:
    """Decode frames in the session's thread, up to one that the event loop must handle."""
    if len(frames) == 1 and len(frames[0]) <= SHORT_FRAME_BYTES:
        # The usual case of a program that waits for replies, in less time.
        known = recognizer.recognize(frames[0])
        if known is not None:
            return DecodedFrames([known], len(frames[0]), 0, ())
    batch = FrameBatch(recognizer)
    unread: Sequence[bytes] = ()
    tasks, size = batch.tasks, 0
    for place, frame in enumerate(frames):
        before, size = len(batch.tasks), batch.size
        if len(frame) > LARGE_FRAME_BYTES or work.frame_memory.lacks_room(frame):
            unread = frames[place:]
            break
        if len(frame) <= SHORT_FRAME_BYTES:
            batch.add_now(frame)
        else:
            with work.frame_memory.counted(frame):
                work.decode_in_thread(partial(batch.add_now, frame))
        if any(type(task) is Close for task in batch.tasks[before:]):
            # The event loop decodes this frame again, and ends the session.
            tasks, unread = batch.tasks[:before], frames[place:]
            break
        size = batch.size
    return DecodedFrames(tasks, size, decoded_bytes(tasks, size), unread)
