"""Turns in which sessions decode long frames on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Generator
from typing import Final, TypeVar

from burn_remote_protocol.loop_calls import LoopCall, TurnLock

__all__ = [
    "LARGE_FRAME_BYTES",
    "NEVER_LONG_BYTES",
    "SMALL_FRAME_BYTES",
    "DecodingTurns",
    "decoding_weight",
    "is_long",
]

T = TypeVar("T")

# Longer frames are decoded in turns. The steps of the largest frame, 512 KiB, take 40 ms for lists
# nested 1,000 deep and 17 ms for lists of one element. Our client sends a batch when it has this
# size, so its frames are rarely longer.
LARGE_FRAME_BYTES: Final = 64 * 1024

# Time of decoding a frame and freeing the result, as a number of bytes of small operations, 8 ns
# each. Lists that are empty or nested take far longer than their bytes: 59 KB of lists nested 1,000
# deep took 10 ms, as long as 1.2 MB of operations. Bytes inside of numbers look like lists too.
LIST_WEIGHT: Final = 12
_LISTS: Final = bytes((*range(0x80, 0xA0), *range(0xDC, 0xE0)))  # and maps
# Shorter frames are not searched for lists: most frames are so short, and take longer to receive.
UNWEIGHED_BYTES: Final = 128
# Frames of a larger weight are decoded in turns too: 1.5 ms of lists. Operations of two small
# tensor ids have eight bytes each, so 64 KiB of them have less.
LONG_WEIGHT: Final = 256 * 1024
# No frame of this size has that weight.
NEVER_LONG_BYTES: Final = LONG_WEIGHT // (1 + LIST_WEIGHT)

# Decoding in steps pauses once it has taken this time; the last step before a pause may exceed it.
STEP_SECONDS: Final = 0.005

# Shorter turns end without a pause: the event loop's clock has a resolution of a millisecond.
SHORT_SECONDS: Final = 0.0005

# Other frames are decoded without turns. In one iteration of the event loop, all sessions together
# begin no further frame once they have decoded frames of this weight: 64 KiB of operations. Without
# this limit, 64 sessions that each sent a frame of the worst kind took 700 ms.
WEIGHT_AT_ONCE: Final = 2 * LARGE_FRAME_BYTES
# Frames up to this size have the higher limit ``SMALL_WEIGHT_AT_ONCE``, so that the longer frames
# of other sessions do not delay them.
SMALL_FRAME_BYTES: Final = 4096
SMALL_WEIGHT_AT_ONCE: Final = 3 * WEIGHT_AT_ONCE


def decoding_weight(frame: bytes | memoryview) -> int:
    """Return the weight of a frame: about its bytes, and more for each list in it."""
    size = len(frame)
    if size <= UNWEIGHED_BYTES:
        return size
    packed = bytes(frame)  # a copy only of a view
    return size + LIST_WEIGHT * (size - len(packed.translate(None, _LISTS)))


def is_long(frame: bytes | memoryview) -> bool:
    """Whether a frame is decoded in turns, because decoding it takes long."""
    size = len(frame)
    if size <= NEVER_LONG_BYTES:
        return False
    return size > LARGE_FRAME_BYTES or decoding_weight(frame) > LONG_WEIGHT


class DecodingTurns:
    """Turns of all sessions of a process for long decoding on the event loop, one at a time.

    After each turn, a pause as long as the turn follows, in which the event loop does other work.
    Without this pause, another turn could begin in every iteration of the loop. A client whose
    request takes five iterations would then wait for five long frames, or for five of each session
    that sends them.

    A session waits for one turn at a time, and turns are given in the order in which they were
    requested. So a frame waits for at most one turn and one pause of each other session: 80 ms for
    each session, or 20 s if 256 sessions send frames of the worst kind without a break.

    Other frames need no turn, but share a weight (``decoding_weight``) in each iteration of the
    event loop: ``allows``, ``spend`` and ``wait``.

    Threads of sessions that decode hold ``thread_lock``, so that they do so one at a time.
    """

    def __init__(self) -> None:
        self.thread_lock: Final = threading.Lock()
        self._turn: Final = TurnLock()
        self._spent = 0
        self._renewing: Final = LoopCall(self._renew, lambda: bool(self._waiting))
        # Tasks that wait to decode a frame, oldest first, with its weight.
        self._waiting: Final[deque[tuple[int, asyncio.Future[None]]]] = deque()

    def allows(self, size: int) -> bool:
        """Whether a frame of ``size`` bytes may be decoded in this iteration without a turn."""
        if self._spent < WEIGHT_AT_ONCE:
            return True
        return size <= SMALL_FRAME_BYTES and self._spent < SMALL_WEIGHT_AT_ONCE

    def spend(self, weight: int) -> None:
        """Count a frame that is decoded without a turn in this iteration."""
        self._spent += weight
        # Only after half of the weight, because scheduling a call for each frame would take longer.
        # What other iterations have spent before that does not matter.
        if self._spent >= WEIGHT_AT_ONCE // 2:
            self._renewing.request()

    async def wait(self, weight: int) -> None:
        """Wait for an iteration in which a frame may be decoded without a turn."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((weight, turn))
        self._renewing.request()
        await turn

    def _renew(self) -> None:
        """Begin to count anew, and wake the tasks whose frames may be decoded now."""
        # Tasks run in the next iteration. What they will decode counts now too, so that frames that
        # arrive before that do not double the work of an iteration.
        self._spent = 0
        try:
            while self._waiting and self._spent < WEIGHT_AT_ONCE:
                weight, turn = self._waiting.popleft()
                if not turn.done():  # a session may have ended while it waited
                    turn.set_result(None)
                    self._spent += weight
        finally:
            if self._waiting:
                self._renewing.request()

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
            try:
                # Not a wait of this session: it may end during the pause, for an invalid frame.
                asyncio.get_running_loop().call_later(taken, self._turn.release)
                return
            except MemoryError:
                pass  # without a pause, because nobody else would release the turn
        self._turn.release()
