"""The memory that the contents of a session's frames take while they are decoded and executed.

If the pool has no room for a decoded frame, the session's thread decodes and executes it in parts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from burn_remote_protocol.dialects.bounded_unpacking import (
    MAX_UNPACKED_BYTES_PER_BYTE,
    MAX_VALUE_BYTES,
    unpacked_bytes,
)
from burn_remote_server.access.quota import Pool, ended_for_memory

__all__ = [
    "DECODED_SHARES",
    "LARGE_PART_BYTES",
    "PART_BYTES",
    "SMALL_PART_BYTES",
    "FrameMemory",
    "Part",
]

# The most bytes of a part. A small part runs also while the pool is full: so a session can always
# drop tensors, and expose those for which others wait.
PART_BYTES: Final = 1024
# Memory of a small part: that of ``PART_BYTES`` in which each byte begins a map.
SMALL_PART_BYTES: Final = MAX_UNPACKED_BYTES_PER_BYTE * PART_BYTES
# A part that takes more than this, and more than a quarter of the pool, needs room in the pool.
LARGE_PART_BYTES: Final = 16 * 1024 * 1024
# A frame whose contents take more than the pool divided by this is decoded in parts. Python returns
# memory to the system in blocks of 1 MiB, so a few live objects keep the memory of all others that
# were created while a long frame was decoded: 20 MiB in a pool of 64 MiB.
DECODED_SHARES: Final = 16


class Part(NamedTuple):
    """A part of a frame: the memory that it takes when it is decoded, and what to do with it."""

    held_bytes: int
    decode: Callable[[], Any]
    execute: Callable[[Any], None]


class FrameMemory:
    """The memory of one session's frames in a pool.

    ``has_ended`` returns whether the session has ended, and ``before_waiting`` is called before its
    thread waits.
    """

    def __init__(
        self, pool: Pool, has_ended: Callable[[], bool], before_waiting: Callable[[], None]
    ) -> None:
        self._pool: Final = pool
        self._has_ended: Final = has_ended
        self._before_waiting: Final = before_waiting
        # Whether the session's thread waits until a large part may exceed the pool.
        self.is_awaited = False

    @property
    def is_full(self) -> bool:
        """Whether the pool is full."""
        return self._pool.is_full

    def lacks_room(self, frame: bytes | memoryview) -> bool:
        """Return whether the pool has no room for what a frame contains, decoded.

        Also return ``True`` if the contents would take a large share of the pool.
        """
        pool, size = self._pool, len(frame)
        if size <= PART_BYTES:
            return False
        # Longer frames contain elements, and at most this besides.
        most = MAX_UNPACKED_BYTES_PER_BYTE * min(size, MAX_VALUE_BYTES)
        share = pool.max_bytes // DECODED_SHARES
        if most <= share and pool.has_room(most):
            return False
        if size > MAX_VALUE_BYTES:
            return not pool.has_room(most)
        unpacked = unpacked_bytes(frame)
        return unpacked > share or not pool.has_room(unpacked)

    @contextlib.contextmanager
    def counted(self, frame: bytes | memoryview) -> Iterator[None]:
        """Count the memory of a frame that is decoded in the context, unless it has elements."""
        size = unpacked_bytes(frame) if len(frame) <= MAX_VALUE_BYTES else 0
        self._pool.add(size)
        try:
            yield
        finally:
            self._pool.give_back(size)

    @contextlib.contextmanager
    def room(self, size: int) -> Iterator[bool]:
        """Count the memory of a part in the context, also beyond the pool if it is full.

        A large part then waits until no other one exceeds the pool. The context is ``False`` if the
        session ended before. Raises ``SessionLost`` for a part that may not exceed the pool.
        """
        pool = self._pool
        if size <= SMALL_PART_BYTES:
            pool.add(size)
        elif not pool.take(size):
            with self._overdraft(size) as is_given:
                yield is_given
            return
        try:
            yield True
        finally:
            pool.give_back(size)

    @contextlib.contextmanager
    def _overdraft(self, size: int) -> Iterator[bool]:
        pool = self._pool
        if size > max(pool.max_bytes // 4, LARGE_PART_BYTES):
            raise ended_for_memory("a task", pool.refusal(size))
        self.is_awaited = True
        self._before_waiting()
        with pool.overdrafts.turn(self._has_ended) as is_given:
            self.is_awaited = False
            pool.add(size)
            try:
                yield is_given
            finally:
                pool.give_back(size)
