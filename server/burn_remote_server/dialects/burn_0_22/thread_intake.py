"""Receiving, decoding and executing of a session's frames in its own thread.

While the session's thread is busy, frames that wake the event loop would only make two threads wait
for the interpreter's lock. So the thread that executes the frames also receives the next ones. It
ends as soon as nothing arrives for a moment, or something arrives that the event loop handles: a
long frame, or the end of the session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from burn_remote_protocol.dialects.burn_0_22 import Close
from burn_remote_protocol.dialects.burn_0_22_recognition import MessageRecognizer
from burn_remote_protocol.links.interface import LentReceiver
from burn_remote_server.dialects.burn_0_21.two_socket_sessions import (
    BurnSession,
    decoded_bytes,
)
from burn_remote_server.dialects.burn_0_22.early_reads import divided_after_reads
from burn_remote_server.dialects.burn_0_22.frame_batch import SHORT_FRAME_BYTES, FrameBatch
from burn_remote_server.execution.decoding_turns import LARGE_FRAME_BYTES
from burn_remote_server.execution.sessions import MAX_WAITING_REPLIES, Session

__all__ = ["receive_in_thread"]

# How long the thread waits for the next frame. After a reply, a program needs up to some 100 µs to
# send the next one. While the thread waits, calls for it are delayed by as much.
WAIT_SECONDS: Final = 0.001


class _Decoded(NamedTuple):
    """The tasks of frames, their length, and the frames that the event loop must handle."""

    tasks: Sequence[Any]
    size: int
    unread: Sequence[bytes]


def receive_in_thread(
    receiver: LentReceiver,
    session: BurnSession,
    recognizer: MessageRecognizer,
    is_draining: Callable[[], bool],
) -> None:
    """Receive and execute frames until the event loop must continue; called by the thread."""
    work, counters = session.session, session.session.counters
    tasks: Sequence[Any]
    unread: Sequence[bytes] = ()

    def send_replies() -> None:
        if session.send_in_thread(receiver.send):
            work.wake_event_loop()

    session.send_during_tasks(send_replies)
    try:
        while not (unread or work.must_yield or is_draining()):
            work.turn.rest()
            frames = receiver.receive(WAIT_SECONDS)
            if not frames:
                break
            known = None
            if len(frames) == 1 and len(frames[0]) <= SHORT_FRAME_BYTES:
                # The usual case of a program that waits for replies, in less time.
                known = recognizer.recognize(frames[0])
            if known is not None:
                tasks, size, held = [known], len(frames[0]), 0
            else:
                tasks, size, unread = _decoded(frames, recognizer, work)
                held = decoded_bytes(tasks, size)
            counters.client_received_bytes += size
            counters.batches += 1
            counters.thread_batches += 1
            # The usual single task is not examined.
            parts = [tasks] if len(tasks) < 2 else divided_after_reads(tasks)
            for part in parts:
                work.run_in_thread(partial(session.execute, part), held)
                send_replies()
                if work.error is not None:
                    work.wake_event_loop()
            if len(session.outbox.frames) >= MAX_WAITING_REPLIES:
                break
    finally:
        session.send_during_tasks(None)
        receiver.give_back(unread)


def _decoded(frames: Sequence[bytes], recognizer: MessageRecognizer, work: Session) -> _Decoded:
    batch = FrameBatch(recognizer)
    for place, frame in enumerate(frames):
        if len(frame) > LARGE_FRAME_BYTES or work.frame_memory.lacks_room(frame):
            return _Decoded(batch.tasks, batch.size, frames[place:])
        before = len(batch.tasks)
        if len(frame) <= SHORT_FRAME_BYTES:
            batch.add_now(frame)
        else:
            with work.frame_memory.counted(frame):
                work.decode_in_thread(partial(batch.add_now, frame))
        if any(type(task) is Close for task in batch.tasks[before:]):
            # The event loop decodes this frame again, and ends the session.
            return _Decoded(batch.tasks[:before], batch.size - len(frame), frames[place:])
    return _Decoded(batch.tasks, batch.size, ())
