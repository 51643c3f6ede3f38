"""A session without a connection, and work that blocks its thread."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from burn_remote_protocol.dialects.native import Batch
from burn_remote_protocol.errors import TransferFailed
from burn_remote_server.access.quota import Pool
from burn_remote_server.backends.interface import Backend
from burn_remote_server.execution.sessions import Session
from burn_remote_server.telemetry.counters import Counters
from support.engines import EngineSession, undecoded
from support.waiting import PATIENCE_SECONDS

__all__ = ["Gate", "Running"]


class Running:
    """A session whose notifications are counted, and the engine session below it."""

    def __init__(
        self,
        inline_cost: int = 10**6,
        memory: Pool | None = None,
        backend: Backend | None = None,
        **options: Any,
    ) -> None:
        self.below = EngineSession(backend=backend)
        self.stopped_fetching = 0
        self.notified = asyncio.Event()
        self.session = Session(
            1,
            self.below.engine,
            self.below.interpreter,
            Counters(),
            inline_cost=inline_cost,
            stop_fetching=self.stop_fetching,
            memory=memory,
            **options,
        )
        self.session.notify = self.notified.set

    def stop_fetching(self) -> None:
        self.stopped_fetching += 1
        for _, slot in self.below.outbox.fetches:
            slot.fail(TransferFailed("the session has ended"))

    def submit(self, *tasks: Any, size: int = 0) -> None:
        wire = tuple(task if type(task) is tuple else undecoded(task) for task in tasks)
        self.session.submit_batch(Batch(0, wire), bytes(size))

    async def idle(self) -> None:
        """Wait until no work is queued."""
        while self.session.queued:
            await self.notified.wait()
            self.notified.clear()


class Gate:
    """Work that blocks a session's thread until it is opened."""

    def __init__(self, session: Session) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        session.submit(self)

    def __call__(self) -> None:
        self.entered.set()
        assert self.opened.wait(PATIENCE_SECONDS)
