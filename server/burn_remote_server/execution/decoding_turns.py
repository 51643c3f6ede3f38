"""Turns in which sessions decode long frames on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
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


class DecodingTurns:
    """Turns of all sessions of a process for long decoding on the event loop, one at a time.

    After each turn, a pause as long as the turn follows, in which the event loop does other work.
    Without this pause, another turn could begin in every iteration of the loop. A client whose
    request takes five iterations would then wait for five long frames, or for five of each session
    that sends them.

    A session waits for one turn at a time, and turns are given in the order in which they were
    requested. So a frame waits for at most one turn and one pause of each other session: 80 ms for
    each session, or 20 s if 256 sessions send frames of the worst kind without a break. Smaller
    frames do not wait for turns.
    """

    def __init__(self) -> None:
        self._turn: Final = asyncio.Lock()

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
