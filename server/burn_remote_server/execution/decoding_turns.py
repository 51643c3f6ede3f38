"""Turns in which sessions decode long frames on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Generator
from typing import Final, TypeVar

__all__ = ["LARGE_FRAME_BYTES", "DecodingTurns"]

T = TypeVar("T")

# Longer frames are decoded in turns. Decoding a frame of this size and freeing the result takes
# 5 ms at worst (lists nested 1,000 deep) and 2 ms for lists of one element. The steps of the
# largest frame, 512 KiB, take 40 ms and 17 ms together. Our client sends a batch when it has this
# size, so its frames are rarely longer.
LARGE_FRAME_BYTES: Final = 64 * 1024

# Decoding in steps pauses once it has taken this time; the last step before a pause may exceed it.
STEP_SECONDS: Final = 0.005

# Shorter turns end without a pause: the event loop's clock has a resolution of a millisecond.
SHORT_SECONDS: Final = 0.0005

# Frames of at most ``LARGE_FRAME_BYTES`` are decoded without turns. In one iteration of the event
# loop, all sessions together begin no further frame once they have decoded this many bytes. Without
# this limit, 64 sessions that each sent a frame of the worst kind took 700 ms.
BYTES_AT_ONCE: Final = LARGE_FRAME_BYTES
# Frames up to this size have the higher limit ``SMALL_BYTES_AT_ONCE``, so that the longer frames of
# other sessions do not delay them.
SMALL_FRAME_BYTES: Final = 4096
SMALL_BYTES_AT_ONCE: Final = 3 * BYTES_AT_ONCE


class DecodingTurns:
    """Turns of all sessions of a process for long decoding on the event loop, one at a time.

    After each turn, a pause as long as the turn follows, in which the event loop does other work.
    Without this pause, another turn could begin in every iteration of the loop. A client whose
    request takes five iterations would then wait for five long frames, or for five of each session
    that sends them.

    A session waits for one turn at a time, and turns are given in the order in which they were
    requested. So a frame waits for at most one turn and one pause of each other session: 80 ms for
    each session, or 20 s if 256 sessions send frames of the worst kind without a break.

    Shorter frames need no turn, but share a number of bytes in each iteration of the event loop:
    ``allows``, ``spend`` and ``wait``.
    """

    def __init__(self) -> None:
        self._turn: Final = asyncio.Lock()
        self._spent_bytes = 0
        self._is_renewing = False
        # Tasks that wait to decode a frame, oldest first, with its size.
        self._waiting: Final[deque[tuple[int, asyncio.Future[None]]]] = deque()

    def allows(self, size: int) -> bool:
        """Whether a short frame of ``size`` bytes may be decoded in this iteration of the loop."""
        if self._spent_bytes < BYTES_AT_ONCE:
            return True
        return size <= SMALL_FRAME_BYTES and self._spent_bytes < SMALL_BYTES_AT_ONCE

    def spend(self, size: int) -> None:
        """Count a short frame of ``size`` bytes that is decoded in this iteration."""
        self._spent_bytes += size
        # Only after half of the bytes, because scheduling a call for each frame would take longer.
        # What other iterations have spent before that does not matter.
        if self._spent_bytes >= BYTES_AT_ONCE // 2:
            self._renew_soon()

    async def wait(self, size: int) -> None:
        """Wait for an iteration in which a short frame of ``size`` bytes may be decoded."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        self._renew_soon()
        await turn

    def _renew_soon(self) -> None:
        if not self._is_renewing:
            self._is_renewing = True
            asyncio.get_running_loop().call_soon(self._renew)

    def _renew(self) -> None:
        """Begin to count anew, and wake the tasks whose frames may be decoded now."""
        self._is_renewing = False
        self._spent_bytes = woken = 0
        while self._waiting and woken < BYTES_AT_ONCE:
            size, turn = self._waiting.popleft()
            if not turn.done():  # a session may have ended while it waited
                turn.set_result(None)
                woken += size
        if self._waiting:
            self._renew_soon()

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn. The next one begins after a pause."""
        await self._turn.acquire()
        began = time.perf_counter()
        try:
            yield
        finally:
            self._end(time.perf_counter() - began)

    async def run(self, steps: Generator[None, None, T]) -> T:
        """Wait for a turn, and run steps with a pause after each ``STEP_SECONDS``.

        No other long frame is decoded during the pauses, so the results of only one such frame are
        in memory. Returns the result of the steps.
        """
        await self._turn.acquire()
        began = time.perf_counter()
        try:
            while True:
                next(steps)
                taken = time.perf_counter() - began
                if taken >= STEP_SECONDS:
                    await asyncio.sleep(taken)
                    began = time.perf_counter()
        except StopIteration as ended:
            result: T = ended.value
            return result
        finally:
            self._end(time.perf_counter() - began)

    def _end(self, taken: float) -> None:
        if taken > SHORT_SECONDS:
            # Not a wait of this session: it may end during the pause, for an invalid frame.
            asyncio.get_running_loop().call_later(taken, self._turn.release)
        else:
            self._turn.release()
