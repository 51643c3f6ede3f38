"""Members of a group in one process, linked in memory, without sessions or servers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from burn_remote_protocol.collectives import CollectiveCall, GroupSpec
from burn_remote_server.backends.interface import Backend
from burn_remote_server.backends.numpy.backend import NumpyBackend
from burn_remote_server.collectives.collective_engine import CollectiveEngine, Job
from burn_remote_server.collectives.links import Incoming, MemoryPipe
from burn_remote_server.collectives.member import Member
from burn_remote_server.collectives.ring_engine import RingEngine
from burn_remote_server.telemetry.counters import Counters
from burn_remote_server.tensors.slots import InFlight, Lent
from support.waiting import PATIENCE_SECONDS

__all__ = ["Members"]


class Members:
    """The members of a group, linked in memory."""

    def __init__(
        self,
        count: int,
        *,
        absent: tuple[int, ...] = (),
        bound_seconds: float = 0.5,
        issue_seconds: float = 600.0,
        open_engine: Callable[[Member], CollectiveEngine] = RingEngine,
        backend: Callable[[], Backend] = NumpyBackend,
    ) -> None:
        self.addresses = tuple(f"ws://host-{rank}:1" for rank in range(count))
        pipes = [MemoryPipe() for _ in range(count)]
        self.ended = [threading.Event() for _ in range(count)]
        self.rings: dict[int, Member] = {}
        self._issued = [0] * count
        for rank in range(count):
            if rank in absent:
                continue
            spec = GroupSpec(bytes(32), rank, self.addresses, bound_seconds, issue_seconds)
            dial = self._dial(pipes[rank - 1])
            ended = self.setting(self.ended[rank])
            ring = Member(
                spec, backend(), open_engine, dial, Counters(), ended, 0.5, self._describe(rank)
            )
            pipes[rank].on_message(ring.receive_from_next)
            if count > 1 and (rank + 1) % count not in absent:
                ring.attach(pipes[rank])
            self.rings[rank] = ring
        for ring in self.rings.values():
            ring.start()

    @staticmethod
    def _describe(rank: int) -> Callable[[], str]:
        return lambda: f"session {rank} is idle"

    @staticmethod
    def _dial(pipe: MemoryPipe) -> Callable[[Callable[[], None]], Incoming]:
        return lambda check: pipe

    @staticmethod
    def setting(event: threading.Event) -> Callable[[Member], None]:
        return lambda member: event.set()

    def issue(self, rank: int, call: CollectiveCall, *inputs: Any) -> list[InFlight]:
        """Issue a collective on one member; return its slots."""
        specs = call.output_specs(len(self.addresses), rank)
        slots = [InFlight(spec, PATIENCE_SECONDS) for spec in specs]
        given = [one if isinstance(one, InFlight) else Lent(one) for one in inputs]
        job = Job(self._issued[rank], call, given, slots, range(len(slots)))
        self._issued[rank] += 1
        self.rings[rank].submit(job)
        return slots

    def leave(self) -> None:
        for ring in self.rings.values():
            ring.leave()
        assert all(self.ended[rank].wait(PATIENCE_SECONDS) for rank in self.rings)
