"""Receiving, decoding and executing of a session's frames in its own thread.

While the session's thread is busy, frames that wake the event loop would only make two threads wait
for the interpreter's lock. So the thread that executes the frames also receives the next ones. It
ends as soon as nothing arrives for a moment, or something arrives that the event loop handles: a
long frame, or the end of the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from burn_remote_protocol.links.interface import AsyncLink, LentReceiver
from burn_remote_server.dialects.burn_0_21.early_reads import divided_after_reads
from burn_remote_server.dialects.burn_0_21.two_socket_sessions import BurnSession
from burn_remote_server.execution.sessions import MAX_WAITING_REPLIES

__all__ = [
    "DecodedFrames",
    "Lend",
    "ThreadIntake",
    "TwoSocketReceiver",
    "lender",
    "receive_in_thread",
]

# How long the thread waits for the next frame. After a reply, a program needs up to some 100 µs to
# send the next one. While the thread waits, calls for it are delayed by as much.
WAIT_SECONDS: Final = 0.001

# Lends the receiving side of a link; returns ``None`` if it cannot be lent now.
Lend = Callable[[], LentReceiver | None]


class DecodedFrames(NamedTuple):
    """Frames that the thread has decoded: their tasks, length and memory.

    ``held_bytes`` is 0 for a single short frame. The event loop must handle the frames ``unread``.
    """

    tasks: Sequence[Any]
    size: int
    held_bytes: int
    unread: Sequence[bytes]


class TwoSocketReceiver:
    """Receives from the socket for requests, and sends on that for responses, while both are lent.

    A ``LentReceiver``.
    """

    def __init__(self, requests: LentReceiver, responses: LentReceiver) -> None:
        self._requests: Final = requests
        self._responses: Final = responses
        self.receive: Final = requests.receive
        self.send: Final = responses.send

    @classmethod
    def lent(cls, lend_requests: Lend, lend_responses: Lend) -> TwoSocketReceiver | None:
        """Return the receiver of two sockets, ``None`` unless both can be lent now."""
        requests = lend_requests()
        if requests is None:
            return None
        responses = None
        try:
            responses = lend_responses()
        finally:
            if responses is None:
                requests.give_back()
        return None if responses is None else cls(requests, responses)

    def give_back(self, unread: Sequence[bytes] = ()) -> None:
        """Let the event loop receive again, ``unread`` first."""
        try:
            self._responses.give_back()
        finally:
            self._requests.give_back(unread)


class ThreadIntake:
    """Lets the thread of a session receive while it has work to do."""

    def __init__(
        self,
        session: BurnSession,
        lend: Lend,
        decode: Callable[[Sequence[bytes]], DecodedFrames],
        must_wait: Callable[[], bool],
        is_draining: Callable[[], bool],
        before: Callable[[], None] | None = None,
    ) -> None:
        """``must_wait`` returns whether the session is too far behind to read from its client.

        ``before`` may submit work for the thread before the call that receives.
        """
        self._session: Final = session
        self._lend: Final = lend
        self._decode: Final = decode
        self._must_wait: Final = must_wait
        self._is_draining: Final = is_draining
        self._before: Final = before
        self._loop: Final = asyncio.get_running_loop()
        self._will_lend = False

    def expect_work(self) -> None:
        """Let the thread receive, after this callback, if it has work."""
        if self._session.session.is_working and not self._will_lend:
            self._loop.call_soon(self._let_thread_receive)
            self._will_lend = True  # after the allocation, which may fail

    def _let_thread_receive(self) -> None:
        self._will_lend = False
        session = self._session.session
        if not session.is_working or self._must_wait():
            return
        receiver = self._lend()
        if receiver is None:
            return
        is_queued = False
        try:
            if self._before is not None:
                self._before()
            # Otherwise, the receiver of a session that fails meanwhile would never be returned.
            is_queued = session.submit_always(
                partial(receive_in_thread, receiver, self._session, self._decode, self._is_draining)
            )
        finally:
            if not is_queued:  # also for lack of memory
                receiver.give_back()


def receive_in_thread(
    receiver: LentReceiver,
    session: BurnSession,
    decode: Callable[[Sequence[bytes]], DecodedFrames],
    is_draining: Callable[[], bool],
) -> None:
    """Receive and execute frames until the event loop must continue; called by the thread."""
    work, counters = session.session, session.session.counters
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
            tasks, size, held_bytes, unread = decode(frames)
            counters.client_received_bytes += size
            counters.batches += 1
            counters.thread_batches += 1
            # The usual single task is not examined.
            parts = [tasks] if len(tasks) < 2 else divided_after_reads(tasks)
            for part in parts:
                work.run_in_thread(partial(session.execute, part), held_bytes)
                send_replies()
                if work.error is not None:
                    work.wake_event_loop()
            if len(session.outbox.frames) >= MAX_WAITING_REPLIES:
                break
    finally:
        session.send_during_tasks(None)
        receiver.give_back(unread)


def lender(link: AsyncLink) -> Lend:
    """Return the function that lends the receiving side of a link."""
    lend: Lend = getattr(link, "lend_receiver", _not_lent)
    return lend


def _not_lent() -> None:
    """Lend nothing: only the event loop can receive from this kind of link."""
