"""The thread of a session, which runs work that would delay the event loop.

Each session has one thread, made when it is first needed: it keeps the session's order by itself,
and NumPy and CuPy release the interpreter lock inside their kernels. A pool would need a queue per
session on top, to keep one session's work in order and off two threads at once.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from burn_remote_server.access.quota import Pool

__all__ = ["Worker"]


class Worker:
    """Run calls in order on one thread.

    What waits is taken out of ``memory``. ``prepare`` is called in that thread first, ``progress``
    after each call, and ``failed`` with
    whatever ``prepare`` or a call raised, after which the calls go on. All methods belong to the
    event loop's thread.
    """

    def __init__(
        self,
        name: str,
        prepare: Callable[[], None],
        progress: Callable[[], None],
        failed: Callable[[BaseException], None],
        memory: Pool | None = None,
    ) -> None:
        self._name = name
        self._prepare = prepare
        self._progress = progress
        self._failed = failed
        self._memory = memory
        self._queue: queue.SimpleQueue[tuple[Callable[[], None], int] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        # Counted by one thread each: the loop submits, the worker completes.
        self._submitted = 0
        self._completed = 0
        self._submitted_bytes = 0
        self._completed_bytes = 0

    @property
    def queued(self) -> int:
        """Calls that have not ended."""
        return self._submitted - self._completed

    @property
    def queued_bytes(self) -> int:
        """Bytes that the calls which have not ended hold."""
        return self._submitted_bytes - self._completed_bytes

    def submit(self, call: Callable[[], None], size: int = 0) -> None:
        """Run a call, which holds ``size`` bytes, after all those before it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._submitted += 1
        self._submitted_bytes += size
        if self._memory is not None and size:
            self._memory.add(size)
        self._queue.put((call, size))

    def stop(self) -> None:
        """End the thread after the calls submitted so far."""
        if self._thread is not None:
            self._queue.put(None)

    def _work(self) -> None:
        self._try(self._prepare)
        while (item := self._queue.get()) is not None:
            call, size = item
            self._try(call)
            # A call holds arrays: without this the last one would live until the next comes.
            del call, item
            self._completed += 1
            self._completed_bytes += size
            if self._memory is not None and size:
                self._memory.give_back(size)
            self._progress()

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:  # a thread that ends leaves all who wait for it waiting
            self._failed(error)
