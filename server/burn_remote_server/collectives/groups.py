"""The groups of a process: its sessions that are members, and the links that members wait for."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from burn_remote_protocol.collectives import EngineKind, GroupSpec, link_id, link_proof
from burn_remote_protocol.errors import OperationFailed
from burn_remote_protocol.messages import Collective, JoinGroup, LeaveGroup
from burn_remote_server.access.fair_places import FairPlaces
from burn_remote_server.access.quota import Quota
from burn_remote_server.backends.interface import Backend
from burn_remote_server.collectives.collective_engine import CollectiveEngine, Job, Membership
from burn_remote_server.collectives.links import Incoming, MemoryPipe
from burn_remote_server.collectives.member import Member
from burn_remote_server.collectives.memory_engine import MemoryEngine
from burn_remote_server.collectives.nccl_engine import NcclEngine
from burn_remote_server.collectives.ring_engine import RingEngine
from burn_remote_server.collectives.scratch import Scratch
from burn_remote_server.settings.server_settings import Settings
from burn_remote_server.telemetry.counters import CounterRegistry
from burn_remote_server.tensors.slots import InFlight, Lent

__all__ = ["Dials", "Groups", "SessionGroups", "group_engines"]

# Most links that are kept for members that have not joined yet (see ``Groups._left``); each has up
# to 2 KiB.
MAX_LEFT: Final = 1024

# Most members of all sessions together, with those that have left and not ended yet. Each has two
# threads.
MAX_MEMBERS: Final = 256

_ENGINES: Final[Mapping[EngineKind, Callable[[Member], CollectiveEngine]]] = {
    EngineKind.RING: RingEngine,
    EngineKind.MEMORY: MemoryEngine,
    EngineKind.NCCL: NcclEngine,
}


def group_engines(settings: Settings, backend: Backend) -> Collection[EngineKind]:
    """Return the engines that a server has: NCCL if its operator and its devices permit it."""
    has_nccl = settings.nccl and backend.has_communicators
    return [kind for kind in _ENGINES if kind is not EngineKind.NCCL or has_nccl]


class Dials(Protocol):
    """Opens the links from members on other servers."""

    def join_seconds(self, spec: GroupSpec) -> float:
        """Return how long members wait for their neighbours."""
        ...

    def dial(self, spec: GroupSpec, party: str, check: Callable[[], None]) -> Incoming:
        """Return the link from the previous member, for a session of this party.

        Raises ``BurnRemoteError``.
        """
        ...


class Groups:
    """The members of all groups in this process. Thread-safe."""

    def __init__(
        self,
        dialler: Dials,
        is_own: Callable[[str], bool],
        counters: CounterRegistry,
        engines: Collection[EngineKind],
    ) -> None:
        """Prepare for groups that use one of ``engines``.

        ``is_own(address)`` returns whether an address is that of this server.
        """
        self.engines: Final = engines
        self._dialler: Final = dialler
        self._is_own: Final = is_own
        self._counters: Final = counters
        self._lock: Final = threading.Lock()
        self._places: Final = FairPlaces(MAX_MEMBERS)
        # Members by the id of the link that starts at them.
        self._ranks: Final[dict[bytes, Member]] = {}
        # Members that wait for the next one, by the id of the link to it.
        self._sources: Final[dict[bytes, Member]] = {}
        self._awaited: Final[dict[bytes, list[asyncio.Future[Member]]]] = {}
        self._pipes: Final[dict[bytes, MemoryPipe]] = {}
        # Links of members that ended before the next member joined, oldest first, and until when
        # they are kept. The next member reads from the link why the member ended.
        self._left: Final[dict[bytes, float]] = {}

    def session(
        self, backend: Backend, host_memory: Quota, *, is_staged: bool, party: str = ""
    ) -> SessionGroups:
        """Return the groups of a new session.

        ``host_memory`` is its quota for host memory. ``is_staged``: its tensors are in the memory
        of a device. ``party`` is that of ``Host.open_fetches``.
        """
        return SessionGroups(self, backend, host_memory, is_staged=is_staged, party=party)

    def join(
        self,
        spec: GroupSpec,
        backend: Backend,
        scratch: Scratch,
        describe_session: Callable[[], str],
        party: str,
    ) -> Membership:
        """Return a new member, which connects to its neighbours.

        ``party`` is that of ``Host.open_fetches``. Raises ``OperationFailed`` if there are too many
        members.
        """
        self._admit(party)
        size = len(spec.addresses)
        identifier = link_id(spec.secret, spec.addresses, spec.rank)
        counters = self._counters.open()

        def ended(member: Member) -> None:
            self._counters.close(counters)
            scratch.release()
            self._forget(spec, member)
            self._dismiss(party)

        join_seconds = self._dialler.join_seconds(spec)
        open_engine = _ENGINES[spec.engine]
        member = Member(
            spec,
            backend,
            open_engine,
            partial(self._dial, spec, party),
            counters,
            ended,
            join_seconds,
            describe_session,
        )
        with self._lock:
            is_taken = self._ranks.setdefault(identifier, member) is not member
        if is_taken:
            member.reject(0, "another session of its server has already joined as this member")
        elif not self._is_own(spec.addresses[spec.rank]):
            member.reject(0, "the session that joined as this member is on another server")
        elif spec.engine not in self.engines:
            member.reject(0, f"its server does not have the engine {str(spec.engine)!r}")
        elif spec.engine is EngineKind.MEMORY and not all(map(self._is_own, spec.addresses)):
            member.reject(0, "the engine 'memory' needs members that are all on one server")
        elif size > 1:
            self._offer(identifier, member, spec.addresses[(spec.rank + 1) % size])
        member.start()
        return member

    def _admit(self, party: str) -> None:
        with self._lock:
            places = self._places
            if not places.take(party):
                raise OperationFailed(
                    f"{places.taken(party):,} members of groups of this client, and "
                    f"{places.total:,} of all clients, are in use or still end; "
                    f"{places.allowed:,} are allowed, half of them for one client; close groups, "
                    "or try again later"
                )

    def _dismiss(self, party: str) -> None:
        with self._lock:
            self._places.give_back(party)

    def _offer(self, identifier: bytes, member: Member, following: str) -> None:
        """Let the next member link itself to a new member."""
        if self._is_own(following):
            pipe = self._pipe(identifier)
            pipe.on_message(member.receive_from_next)
            member.attach(pipe)
            return
        with self._lock:
            self._sources[identifier] = member
            awaited = self._awaited.pop(identifier, [])
        for future in awaited:
            future.get_loop().call_soon_threadsafe(_resolve, future, member)

    def _dial(self, spec: GroupSpec, party: str, check: Callable[[], None]) -> Incoming:
        """Return the link from the previous member; called in a member's thread."""
        previous = (spec.rank - 1) % len(spec.addresses)
        if self._is_own(spec.addresses[previous]):
            identifier = link_id(spec.secret, spec.addresses, previous)
            with self._lock:
                pipe = self._pipes.setdefault(identifier, MemoryPipe())
                pipe.is_linked = True
                self._left.pop(identifier, None)
            return pipe
        return self._dialler.dial(spec, party, check)

    def _forget(self, spec: GroupSpec, member: Member) -> None:
        own = link_id(spec.secret, spec.addresses, spec.rank)
        before = link_id(spec.secret, spec.addresses, (spec.rank - 1) % len(spec.addresses))
        with self._lock:
            if self._ranks.get(own) is member:
                del self._ranks[own]
                self._sources.pop(own, None)
                self._leave_pipe(own, time.monotonic() + spec.issue_seconds)
                self._left.pop(before, None)
                unread = self._pipes.pop(before, None)
                if unread is not None:
                    unread.is_linked = True  # the previous member need not keep the link

    def _leave_pipe(self, identifier: bytes, until: float) -> None:
        """Keep the link of a member that has ended, if the next member may still join."""
        pipe = self._pipes.get(identifier)
        if pipe is None or pipe.is_linked:
            self._pipes.pop(identifier, None)
        else:
            pipe.drop_pieces()
            self._left[identifier] = until
        now = time.monotonic()
        late = [each for each, end in self._left.items() if end <= now]
        too_many = [*self._left][: max(0, len(self._left) - MAX_LEFT)]
        for each in {*late, *too_many}:
            del self._left[each]
            self._pipes.pop(each, None)

    def _pipe(self, identifier: bytes) -> MemoryPipe:
        with self._lock:
            return self._pipes.setdefault(identifier, MemoryPipe())

    async def source(self, identifier: bytes, timeout_seconds: float) -> tuple[Member, bytes]:
        """Return the member from which a link starts, and the proof of its group's secret.

        Waits until a client makes one of this server's sessions that member. Raises
        ``TimeoutError``.
        """
        with self._lock:
            member = self._sources.get(identifier)
            if member is None:
                future: asyncio.Future[Member] = asyncio.get_running_loop().create_future()
                self._awaited.setdefault(identifier, []).append(future)
        if member is None:
            try:
                async with asyncio.timeout(timeout_seconds):
                    member = await future
            finally:
                with self._lock:
                    waiting = self._awaited.get(identifier, [])
                    if future in waiting:
                        waiting.remove(future)
                    if not waiting:
                        self._awaited.pop(identifier, None)
        return member, link_proof(member.spec.secret, identifier)


def _resolve(future: asyncio.Future[Member], member: Member) -> None:
    if not future.done():
        future.set_result(member)


class SessionGroups:
    """The groups of one session, by the numbers that its client chose. Not thread-safe."""

    def __init__(
        self,
        groups: Groups,
        backend: Backend,
        host_memory: Quota,
        *,
        is_staged: bool,
        party: str = "",
    ) -> None:
        self._groups: Final = groups
        self._party: Final = party
        self._backend: Final = backend
        self._new_scratch: Final = partial(Scratch, host_memory, is_staged=is_staged)
        # Returns a text for errors: what the session is doing. Any thread of a member may call it.
        self.describe_session: Callable[[], str] = lambda: ""
        self._members: Final[dict[int, Membership]] = {}
        self._specs: Final[dict[int, GroupSpec]] = {}
        self._scratch: Final[dict[int, Scratch]] = {}
        self._sequences: Final[dict[int, int]] = {}
        # Why this session could not become a member of a group.
        self._refusals: Final[dict[int, str]] = {}
        # Groups in which this member could not carry out a collective; it carries out no later one.
        self._rejected: Final[set[int]] = set()

    def join(self, task: JoinGroup) -> None:
        """Become a member of a group; leave the one that had its number."""
        self.leave(LeaveGroup(task.group))
        scratch = self._new_scratch()
        try:
            member = self._groups.join(
                task.spec, self._backend, scratch, self.describe_session, self._party
            )
        except OperationFailed as error:
            self._refusals[task.group] = error.reason  # for its collectives
            return
        self._members[task.group], self._scratch[task.group] = member, scratch
        self._specs[task.group] = task.spec
        self._sequences[task.group] = 0

    def spec(self, group: int) -> GroupSpec:
        """Return the group with a number. Raises ``OperationFailed``."""
        spec = self._specs.get(group)
        if spec is None:
            unknown = f"this session is not a member of group {group}"
            raise OperationFailed(self._refusals.get(group, unknown))
        return spec

    def submit(
        self, task: Collective, inputs: Sequence[InFlight | Lent], outputs: Sequence[InFlight]
    ) -> None:
        """Carry out a collective; each of its outputs always gets an array or an error.

        Raises ``OperationFailed``, and ``QuotaExceeded`` if its scratch memory does not fit.
        """
        job = Job(task.sequence, task.call, inputs, outputs, task.outputs)
        if task.group in self._rejected:
            self._members[task.group].submit(job)  # fails it with the reason that was reported
            return
        expected = self._sequences[task.group]
        if task.sequence != expected:
            reason = f"it issued collective {task.sequence}; expected collective {expected}"
            self.reject(task, reason)
            raise OperationFailed(reason)
        spec = self._specs[task.group]
        if spec.engine is not EngineKind.NCCL:  # with NCCL, elements do not pass through the host
            self._scratch[task.group].reserve(task.call, len(spec.addresses), spec.rank)
        self._sequences[task.group] = expected + 1
        self._members[task.group].submit(job)

    def reject(self, task: Collective, reason: str) -> None:
        """Tell the other members that this one cannot carry out a collective."""
        member = self._members.get(task.group)
        if member is not None:
            self._rejected.add(task.group)
            member.reject(min(task.sequence, self._sequences[task.group]), reason)

    def leave(self, task: LeaveGroup) -> None:
        """Leave a group once the collectives submitted before are done."""
        self._leave(task.group, has_session=True)

    def _leave(self, group: int, *, has_session: bool) -> None:
        self._refusals.pop(group, None)
        member = self._members.pop(group, None)
        if member is not None:
            self._rejected.discard(group)
            del self._specs[group], self._sequences[group], self._scratch[group]
            member.leave(has_session=has_session)

    def end(self) -> None:
        """Leave all groups: the session has ended."""
        for group in [*self._members]:
            self._leave(group, has_session=False)
