"""The devices of one process, their sessions, and the transfers between them."""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from burn_remote_protocol.bounded_threads import BoundedThread
from burn_remote_protocol.errors import (
    HandshakeRefused,
    OperationFailed,
    TransferFailed,
    UsageError,
)
from burn_remote_protocol.links.transport_interface import KeyedListener
from burn_remote_protocol.loop_calls import Signal, recover
from burn_remote_protocol.messages import Fetch
from burn_remote_server.access.admission import NOBODY, Access, Grant
from burn_remote_server.access.data_files import DataFiles
from burn_remote_server.access.peer_rules import PeerRules
from burn_remote_server.access.quota import Pool, Quota
from burn_remote_server.access.tls import ServerTls
from burn_remote_server.backends.interface import Backend
from burn_remote_server.backends.numpy.memory_limits import host_memory_bytes
from burn_remote_server.collectives.groups import Groups, group_engines
from burn_remote_server.collectives.peer_links import Dialler
from burn_remote_server.custom import NO_OPERATIONS, CustomOperations
from burn_remote_server.execution.decoding_turns import DecodingTurns
from burn_remote_server.execution.engine import Engine
from burn_remote_server.execution.engine_interfaces import Outbox
from burn_remote_server.execution.interpreter import Interpreter
from burn_remote_server.execution.interpreter_turns import InterpreterTurns
from burn_remote_server.execution.sessions import SESSION_BYTES, Session
from burn_remote_server.fusion.counts import KernelCounts
from burn_remote_server.fusion.fusing_backend import FusionBackend
from burn_remote_server.hosting.lost_tasks import LostTasks
from burn_remote_server.hosting.open_sessions import OpenSessions
from burn_remote_server.hosting.waiting_peers import WaitingPeers
from burn_remote_server.settings.server_settings import Settings
from burn_remote_server.telemetry.counters import CounterRegistry, Counters
from burn_remote_server.telemetry.logs import get_logger
from burn_remote_server.tensors.exposed_tensors import (
    Exposed,
    ExposeLimits,
    Key,
    Transfers,
    burn_domain,
    transfer_key,
)
from burn_remote_server.tensors.kept_tensors import KeptTensors, OwnKeptTensors
from burn_remote_server.tensors.slots import InFlight
from burn_remote_server.transfers.burn_peer_fetches import is_expected
from burn_remote_server.transfers.download_scheduler import DownloadScheduler
from burn_remote_server.transfers.event_loop_queues import BatchedCalls
from burn_remote_server.transfers.local_fetches import LocalFetches
from burn_remote_server.transfers.outgoing_transfers import OutgoingTransfers
from burn_remote_server.transfers.peer_fetches import Peers

__all__ = ["NATIVE_TRANSFERS", "Device", "Host", "hand_over", "new_interpreter"]

# The domain of native transfer ids, which are 32 random bytes.
NATIVE_TRANSFERS: Final = "native"

logger = get_logger(__name__)

# The longest delay before an expired tensor is freed; also how often an idle server wakes up.
EXPIRE_EVERY_SECONDS: Final = 1.0

# Sessions beyond this number are refused while the memory pool is full. These few are not, so that
# a client can still look at a server whose memory is full.
NEVER_REFUSED_SESSIONS: Final = 8

# An operation counts as lost only after this multiple of ``max_operation_seconds``. An operation
# that returns earlier, but after ``max_operation_seconds``, fails without ending its session.
LOST_OPERATION_FACTOR: Final = 2

# The bytes allowed for a device's sessions, divided by this number, are the most freed memory that
# is kept for reuse.
KEPT_DIVISOR: Final = 8

# The tasks of connections that have ended are cancelled in turns, about 20 µs each.
CANCELLED_AT_ONCE: Final = 64


def new_interpreter(
    backend: Backend,
    settings: Settings,
    outbox: Outbox,
    pool: Pool | None = None,
    custom: CustomOperations = NO_OPERATIONS,
    reply_pool: Pool | None = None,
) -> Interpreter:
    """Create an interpreter with the quota of one session.

    ``reply_pool`` is the pool of host memory for elements read from a device with its own memory.
    """
    memory = backend.memory_bytes()
    allowed = settings.session_bytes(memory)
    on_host = None if reply_pool is None else Quota(allowed, 0, None, reply_pool)
    quota = Quota(
        allowed, settings.max_session_tensors, settings.tensor_bytes(memory), pool, on_host
    )
    return Interpreter(
        backend,
        quota,
        outbox.failed,
        max_operation_cost=settings.max_operation_cost,
        max_operation_seconds=settings.max_operation_seconds,
        max_fetches=settings.max_session_transfers,
        custom=custom,
        reply_quota=on_host,
    )


def hand_over(exposed: Exposed, task: Fetch, slot: InFlight, backend: Backend) -> None:
    """Deliver an exposed tensor of this process to another session of this process.

    Shared arrays are never changed in place, so sessions of one backend share the array itself.
    """
    try:
        if exposed.failure is not None:
            raise exposed.failure.with_traceback(None)
        if task.spec is not None and not is_expected(task.spec, exposed.spec):
            raise TransferFailed(f"the source exposed {exposed.spec}, expected {task.spec}")
        slot.spec = exposed.spec
        if exposed.backend is backend:
            slot.complete(exposed.array)
        else:
            slot.complete(backend.import_shared(exposed.array, exposed.spec, exposed.backend))
    except OperationFailed as error:
        slot.fail(error)
    except MemoryError:
        slot.fail(TransferFailed(f"the target does not have enough memory for {exposed.spec}"))


class Device:
    """One device of a process, at the path ``/index`` (the first one also at ``/``)."""

    def __init__(self, index: int, backend: Backend, host: Host) -> None:
        self.index: Final = index
        self.backend: Final = backend
        self.host: Final = host
        self.pool: Final = Pool(host.settings.total_bytes(backend.memory_bytes()))
        self.kept: Final = KeptTensors(
            self.pool,
            host.settings.content_bytes(backend.memory_bytes()),
            host.settings.content_seconds,
        )
        self._reply_pool: Final = None if backend.reads_in_place else host.reply_pool
        # Counts messages while they arrive and while they wait for execution.
        self.host_memory: Final = self.pool if backend.reads_in_place else host.reply_pool

    @property
    def peer_address(self) -> str:
        """The address at which other servers fetch this device's tensors."""
        return self.host.peer_address(self.index)

    def open_session(
        self,
        identifier: int,
        outbox: Outbox,
        transfer_domain: str,
        grant: Grant = NOBODY,
    ) -> Session:
        """Open a session that replies through ``outbox``, within the limits of its token.

        Raises ``HandshakeRefused`` if the device is lost, or if the memory pool is full.
        """
        self.backend.examine()
        if self.backend.failure is not None:
            raise HandshakeRefused(self.backend.failure)
        is_refusable = len(self.host.sessions) >= NEVER_REFUSED_SESSIONS
        if is_refusable and not self.host_memory.can_have_room(SESSION_BYTES):
            reason = self.host_memory.refusal(SESSION_BYTES).reason
            raise HandshakeRefused(f"no memory for another session: {reason}")
        settings = self.host.settings.limited(grant.limits)
        interpreter = new_interpreter(
            self.backend, settings, outbox, self.pool, self.host.custom, self._reply_pool
        )
        if settings.seed is not None:
            interpreter.seed(settings.seed)
        # Without tokens, anybody on the machine may be a client, so no session counts for another.
        # No token's name contains a space.
        party = grant.name or f"session {identifier}"
        groups = self.host.groups.session(
            self.backend,
            interpreter.reply_quota,
            is_staged=interpreter.reply_quota is not interpreter.quota,
            party=party,
        )
        engine = Engine(
            interpreter,
            self.host.transfers,
            outbox,
            transfer_domain=transfer_domain,
            exposes=ExposeLimits(
                settings.max_session_transfers,
                interpreter.quota.max_bytes,
                settings.transfer_expiry_seconds,
            ),
            groups=groups,
            files=self.host.files,
            kept=OwnKeptTensors(self.kept, grant.name, interpreter.quota.max_bytes),
        )
        self.host.open_fetches(outbox, party)
        session = Session(
            identifier,
            engine,
            interpreter,
            self.host.counter_registry.open(),
            inline_cost=settings.inline_cost_limit,
            stop_fetching=partial(self.host.end_fetches, outbox),
            memory=self.host_memory,
            own_bytes=SESSION_BYTES,
            decoding_lock=self.host.decoding.thread_lock,
            turns=self.host.turns,
            operation_lost_seconds=max(
                settings.operation_lost_seconds,
                LOST_OPERATION_FACTOR * settings.max_operation_seconds,
            ),
        )
        # A weak reference, because members of groups must not keep the session's tensors alive.
        groups.describe_session = partial(_described, weakref.ref(session))
        session.token = grant.name
        self.host.counters.sessions_opened += 1
        self.host.sessions.add(session)
        return session


def _described(session: weakref.ref[Session]) -> str:
    found = session()
    return "its session has ended" if found is None else found.describe_work()


def _raise(error: UsageError) -> None:
    raise error.with_traceback(None)


class Host:
    """The state that all connections of one process share. Belongs to the event loop's thread."""

    def __init__(
        self,
        settings: Settings,
        backends: list[Backend],
        tasks: asyncio.TaskGroup,
        custom: CustomOperations = NO_OPERATIONS,
    ) -> None:
        self.settings: Final = settings
        self.custom: Final = custom
        self.counter_registry: Final = CounterRegistry()
        self.counters: Final = self.counter_registry.open()
        self.transfers: Final = Transfers()
        self.outgoing_transfers: Final[set[OutgoingTransfers]] = set()
        self.downloads: Final = DownloadScheduler(tasks)
        self.decoding: Final = DecodingTurns()
        self.turns: Final = InterpreterTurns()
        self.sessions: Final = OpenSessions(settings.max_sessions)
        self.access: Final = Access(settings)
        self.files: Final = DataFiles(settings.data_dir)
        self.tls: Final = ServerTls(settings)
        self.peer_rules: Final = PeerRules(settings.peer, needs_tls=settings.peer_ca is not None)
        # Host memory for elements read from devices with their own memory.
        self.reply_pool: Final = Pool(settings.total_bytes(host_memory_bytes()))
        self.devices: Final = [
            Device(index, backend, self) for index, backend in enumerate(backends)
        ]
        self.peers: Final = Peers(
            settings,
            self.peer_rules,
            tasks,
            self.counters,
            # All devices of a process have the same backend.
            borrows_from=backends[0].lends_to if settings.cuda_ipc else None,
            memory=self.devices[0].host_memory,
            iroh=lambda: self.iroh,
            decoding=self.decoding,
        )
        self.groups: Final = Groups(
            Dialler(settings, self.peer_rules, asyncio.get_running_loop()),
            self.is_own,
            self.counter_registry,
            group_engines(settings, backends[0]),
        )
        self.draining: Final = Signal()
        # Set when the server drains and the last session has ended. After that, only fetches by
        # peers remain.
        self.sessions_ended: Final = Signal()
        self.port = settings.port
        # The listener over Iroh, while the server has one.
        self.iroh: KeyedListener | None = None
        self._loop: Final = asyncio.get_running_loop()
        # The number of reloads that were requested, and the last one whose files are in use.
        self._reloads = 0
        self._reloaded: Final[dict[str, int]] = {}
        seconds = settings.fetch_timeout_seconds
        self.waiting_peers: Final = WaitingPeers(
            self.sessions,
            self.transfers,
            self.outgoing_transfers,
            seconds,
            min(pool.max_bytes for pool in self.memory_pools),
        )
        # Cancels the tasks of connections that have ended.
        self.cancellations: Final = BatchedCalls(self._loop, CANCELLED_AT_ONCE)
        # The parties of sessions that may fetch, by their outboxes.
        self._parties: Final[dict[object, str]] = {}
        self._local_fetches: Final = LocalFetches(
            self.transfers,
            seconds,
            self.waiting_peers.not_exposed,
            may_come=self.waiting_peers.may_come,
            is_open=self.sessions.__contains__,
        )
        for backend in backends:
            # Memory that is kept for reuse counts in no quota.
            allowed = settings.total_bytes(backend.memory_bytes())
            backend.begin_recycling(allowed // KEPT_DIVISOR)
        self._lost_tasks: Final = LostTasks()
        self._expired_at = time.monotonic()
        self._expiry: asyncio.TimerHandle | None = None
        self._expire()

    @property
    def memory_pools(self) -> list[Pool]:
        """The pools that count host memory of all sessions."""
        return [*{self.reply_pool, *(device.host_memory for device in self.devices)}]

    def _expire(self) -> None:
        """Free expired exposes, loans and cached memory; check devices and operations; repeat.

        Cached memory expires when it is not reused.
        """
        now = time.monotonic()
        # If the process was suspended, that time must not count as time of the operations.
        self.sessions.give_up_stuck(min(now - self._expired_at, 2 * EXPIRE_EVERY_SECONDS))
        self._expired_at = now
        try:
            self._expire_transfers()
            for sending in self.outgoing_transfers:
                sending.expire()
            for device in self.devices:
                device.kept.expire()
                device.backend.expire_memory()
                device.backend.examine()
        finally:  # also after an unexpected error, which the event loop logs
            if self._expiry is not None:
                self._expiry.cancel()  # ``examine_loop`` may come before a timer that is only late
            if not self.draining.is_set():
                self._expiry = self._loop.call_later(EXPIRE_EVERY_SECONDS, self._expire)

    def examine_loop(self) -> None:
        """Recover what the event loop has lost for lack of memory; call this each second."""
        self.sessions.end_dead()
        recover(self._loop)
        self._lost_tasks.examine()
        lateness = time.monotonic() - self._expired_at
        if lateness > 5 * EXPIRE_EVERY_SECONDS and not self.draining.is_set():
            self._expire()  # its timer is lost, or late

    def _expire_transfers(self) -> None:
        """Free expired exposes, a bounded number in each iteration of the event loop."""
        if self.transfers.expire():
            self._loop.call_soon(self._expire_transfers)

    def reload(self) -> None:
        """Reload tokens and certificates; if that fails, log the reason and keep the old ones.

        A thread reads the files, because a disk or a pipe may block it for any time. In that case,
        the next call reads them again.
        """
        self._reloads += 1
        try:
            BoundedThread(target=self._read_again, args=(self._reloads,), name="reload").start()
        except (RuntimeError, MemoryError) as error:
            reason = str(error) or "the system has no memory for a thread"
            logger.error("not reloaded", what="tokens and certificate", reason=reason)

    def _read_again(self, number: int) -> None:
        """Read the files in a thread, and use them on the event loop."""
        sources: tuple[tuple[str, Access | ServerTls], ...] = (
            ("tokens", self.access), ("certificate", self.tls)
        )  # fmt: skip
        for what, source in sources:
            try:
                use = source.prepare_reload()
            except UsageError as error:
                use = partial(_raise, error)
            # The event loop may have closed; nobody needs the files then.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._use_reloaded, number, what, use)

    def _use_reloaded(self, number: int, what: str, use: Callable[[], None]) -> None:
        if number < self._reloaded.get(what, 0):
            return  # a later reload was faster
        self._reloaded[what] = number
        try:
            use()
        except UsageError as error:
            logger.error("not reloaded", what=what, reason=str(error))
        else:
            logger.info("reloaded", what=what)
        for device in self.devices:
            device.kept.forget_others(self.access.names)

    def draw_session_id(self, grant: Grant) -> int:
        """Return an id for a new session. Raises ``HandshakeRefused`` if too many are open."""
        identifier = self.sessions.draw_id()
        allowed = grant.limits.get("max_sessions")
        if allowed is not None:
            seen = self.sessions.count_of(grant.name)
            if seen >= allowed:
                raise HandshakeRefused(
                    f"sessions of the token {grant.name!r}: {seen:,} are open, {allowed:,} are "
                    "allowed; close one, or wait until one ends"
                )
        return identifier

    def end_session(self, session: Session) -> None:
        """End a session, free its memory, and add its counters to the totals."""
        self.sessions.remove(session)
        session.count()
        # The session's worker is still freeing tensors. Count them as freed already.
        session.counters.tensors = session.counters.tensor_bytes = 0
        self.counter_registry.close(session.counters)
        self.counters.sessions_closed += 1
        self._local_fetches.end_source(session.identifier)
        self.waiting_peers.end_source(session.identifier)

    def total(self) -> Counters:
        """Return the counters of all sessions, open and ended."""
        for session in self.sessions:
            session.count()
        self.counters.operations_lost = self.sessions.lost_operations
        self.counters.operations_stuck = self.sessions.stuck
        self.counters.transfers_open = len(self.transfers)
        self.counters.transfers_exposed = self.transfers.exposed
        self.counters.transfers_served = self.transfers.served
        self.counters.transfers_expired = self.transfers.expired
        counts = self._kernel_counts()
        self.counters.kernels_compiled = sum(each.compiled for each in counts)
        self.counters.kernels_evicted = sum(each.evicted for each in counts)
        self.counters.kernel_compile_seconds = sum(each.seconds for each in counts)
        return self.counter_registry.total()

    def _kernel_counts(self) -> list[KernelCounts]:
        """Return the counts of the devices' compilers; several devices may share a compiler."""
        backends = [device.backend for device in self.devices]
        compilers = {
            backend.fusion_runtime.compiler
            for backend in backends
            if isinstance(backend, FusionBackend)
        }
        return [compiler.counts for compiler in compilers if compiler is not None]

    def peer_address(self, index: int) -> str:
        """Return the address at which other servers reach the device with this index."""
        return self.settings.peer_address(self.port, index)

    def is_own(self, address: str) -> bool:
        """Whether an address is that of one of this process's devices."""
        return any(address.rstrip("/") == device.peer_address for device in self.devices)

    def iroh_addresses(self) -> list[str]:
        """Return the address of each device over Iroh; none if the server does not listen there."""
        if self.iroh is None:
            return []
        return [
            replace(self.iroh.address, path=f"/{index}" if index else "").uri
            for index in range(len(self.devices))
        ]

    def open_fetches(self, owner: object, party: str = "") -> None:
        """Let a session begin fetches; ``owner`` is its outbox.

        Connections to peers, waiting fetches and lookups of names are divided among *parties*. A
        party is a token with all its sessions, or one session of a server without tokens.
        ``party`` is its name.
        """
        self._parties[owner] = party
        self._local_fetches.open(owner)
        self.downloads.open(owner)

    def end_fetches(self, owner: object) -> None:
        """Fail all fetches of a session that has ended."""
        self._parties.pop(owner, None)
        self._local_fetches.end(owner)
        self.downloads.end(owner)

    def close_fetches(self) -> None:
        """Fail the fetches of all sessions: the server stops."""
        self._local_fetches.close()
        self.downloads.close()

    def start_fetch(self, owner: object, backend: Backend, task: Fetch, slot: InFlight) -> None:
        """Start a fetch, from another session of this process or from a peer. Thread-safe.

        ``owner`` is the outbox of the session that fetches.
        """
        if not self.is_own(task.address):
            slot.note_progress(0)
            fetch = partial(self._fetch_from_peer, owner, backend, task, slot)
            self.downloads.begin(owner, slot, fetch)
            return

        is_number = isinstance(task.transfer, int)
        domain = burn_domain(task.address) if is_number else NATIVE_TRANSFERS
        key = transfer_key(domain, task.transfer)
        self.start_local_fetch(owner, backend, task, slot, key)

    def start_local_fetch(
        self, owner: object, backend: Backend, task: Fetch, slot: InFlight, key: Key
    ) -> None:
        """Start a fetch of a tensor that a session of this process exposes under a key."""

        def deliver(exposed: Exposed) -> None:
            if exposed.failure is not None or exposed.backend is backend:
                hand_over(exposed, task, slot, backend)
                return
            # A copy between devices would delay the session that exposed the tensor.
            copy = partial(asyncio.to_thread, hand_over, exposed, task, slot, backend)
            self.downloads.begin(owner, slot, copy)

        self._local_fetches.begin(owner, slot, key, deliver, self._parties.get(owner, ""))

    async def _fetch_from_peer(
        self, owner: object, backend: Backend, task: Fetch, slot: InFlight
    ) -> None:
        note_progress = partial(self.waiting_peers.note_progress, slot)
        try:
            party = self._parties.get(owner, "")
            slot.complete(await self.peers.fetch(owner, backend, task, note_progress, party))
        except OperationFailed as error:
            slot.fail(error)
        except MemoryError:
            slot.fail(TransferFailed("the target does not have enough memory for the tensor"))
