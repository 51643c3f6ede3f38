"""The tensors of a process that may be fetched, and the fetches that wait for them.

One registry serves a whole process: its sessions expose tensors, its peers and its own sessions
fetch them. A fetch that comes before its expose waits. Arrays are never changed in place, so a
fetch inside the process hands over the array itself.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count as counter
from itertools import islice
from typing import Any, Final

from burn_remote_protocol.errors import OperationFailed, QuotaExceeded, TransferFailed
from burn_remote_protocol.ids import is_secret
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.backends.interface import Backend, Loan
from burn_remote_server.execution.plans import memory_bytes

__all__ = ["BURN", "ExposeLimits", "Exposed", "Key", "Transfers", "burn_domain", "transfer_key"]

# Fetches that wait for their expose. Larger: a peer that guesses ids holds more memory. Smaller: a
# burst of moves between two servers whose sessions run at different speeds is refused.
MAX_WAITING: Final = 65_536

# Entries withdrawn under one hold of the lock: about 0.3 ms, during which nobody else can fetch.
WITHDRAWN_AT_ONCE: Final = 256

# Expired entries removed by one call, about 1 ms: many sessions' tensors may expire at one moment.
EXPIRED_AT_ONCE: Final = 512


# Compared by identity: ``==`` of arrays is no bool. Weak references tell when one is gone.
@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Exposed:
    """A tensor that may be fetched: the shared array, its device, and what it is; or why it
    failed."""

    array: Any
    spec: TensorSpec
    backend: Backend
    failure: OperationFailed | None = None
    # What a peer may still be reading that was lent it before the connection to it broke.
    loan: Loan | None = None

    @property
    def nbytes(self) -> int:
        """Memory that it holds, also after its session dropped it."""
        return 0 if self.failure is not None else memory_bytes(self.spec)


@dataclass(frozen=True, slots=True)
class ExposeLimits:
    """How many tensors one session may have exposed, of how many bytes, and for how long."""

    count: int = 16_384
    bytes: int = 2**62
    seconds: float = 86_400.0


@dataclass(slots=True)
class _Owned:
    """What one session exposes: its entries with their keys, and their bytes."""

    entries: dict[_Entry, Key] = field(default_factory=dict)
    bytes: int = 0


@dataclass(slots=True, eq=False)
class _Entry:
    exposed: Exposed | None  # until it is removed: deadlines outlive entries
    owner: object
    remaining: int


Key = tuple[str, bytes | int]

# The domain of the numbers that are secrets.
BURN: Final = "burn-0.21"


def burn_domain(address: str) -> str:
    """Return the domain of Burn's small transfer ids, which all of its clients count from 0.

    ``address`` is the one by which a client calls this server, and by which it tells others to:
    ``ws://gpu-box:3000/token/SECRET/1``. Clients that use different ones, with tokens of their own
    for example, never get each other's tensors.
    """
    called = address.partition("://")[2].rstrip("/")
    authority, slash, path = called.partition("/")
    return f"{BURN} {authority.lower().removesuffix(':80')}{slash}{path.lstrip('/')}"


def transfer_key(domain: str, transfer: bytes | int) -> Key:
    """Return where a tensor is found that is exposed under this id in a domain.

    Whoever knows a secret number was told it, wherever it comes from.
    """
    if isinstance(transfer, int) and is_secret(transfer):
        return BURN, transfer
    return domain, transfer


class Transfers:
    """A registry of exposed tensors and of the fetches that wait for one. Thread-safe.

    A key names a domain beside the id, so that Burn's small ids never open a native transfer.
    Several tensors under one id are fetched in the order in which they were exposed. A step on one
    entry or one waiting fetch takes constant time, however many others share its id or its owner.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Ordered dictionaries, because the oldest entry must be found, and any entry removed, in
        # constant time: a plain dictionary walks over the places of removed keys first.
        self._entries: dict[Key, OrderedDict[_Entry, None]] = {}
        # When each expires, soonest first; the number keeps equal times in their order.
        self._deadlines: list[tuple[float, int, Key, _Entry]] = []
        self._waiting: dict[Key, OrderedDict[int, Callable[[Exposed], None]]] = {}
        self._waiting_count = 0  # of all keys
        self._tickets = counter(1)
        self._owned: dict[object, _Owned] = {}
        self._over = 0  # at most so many deadlines are of entries that were removed
        # How many exposes, fetches served, and exposes that nobody fetched in time there were.
        self.exposed = 0
        self.served = 0
        self.expired = 0

    def expose(
        self,
        key: Key,
        exposed: Exposed,
        *,
        owner: object,
        count: int,
        expires_seconds: float,
        limits: ExposeLimits = ExposeLimits(),
        is_secret: bool = True,
    ) -> None:
        """Let ``count`` fetches have a tensor until it expires.

        Raises ``QuotaExceeded`` for too many, and ``TransferFailed`` for an id that is in use and
        is a secret: ids that are none (Burn's) may come again.
        """
        if count < 1:
            return
        with self._lock:
            self._expire()
            if is_secret and key in self._entries:
                raise TransferFailed("this transfer id is already in use")
            remaining = count - len(self._waiting.get(key, ()))
            if remaining > 0:
                entry = _Entry(exposed, owner, remaining)
                self._own(entry, key, limits)
                self._entries.setdefault(key, OrderedDict())[entry] = None
                expires = time.monotonic() + min(expires_seconds, limits.seconds)
                heapq.heappush(self._deadlines, (expires, self.exposed, key, entry))
            callbacks = self._end_waiting(key, count)
            self.exposed += 1
            self.served += len(callbacks)
        for callback in callbacks:
            callback(exposed)

    def fetch(self, key: Key, callback: Callable[[Exposed], None]) -> int:
        """Call ``callback(exposed)`` once, now or when the tensor is exposed, in that thread.

        Returns a ticket; whoever stops waiting must ``forget`` it. Raises ``TransferFailed`` when
        too many wait.
        """
        with self._lock:
            self._expire()
            ticket = next(self._tickets)
            entries = self._entries.get(key)
            if entries is None:
                if self._waiting_count >= MAX_WAITING:
                    raise TransferFailed(f"{MAX_WAITING:,} fetches wait for their tensor already")
                self._waiting.setdefault(key, OrderedDict())[ticket] = callback
                self._waiting_count += 1
                return ticket
            self.served += 1
            entry = next(iter(entries))
            exposed = entry.exposed
            assert exposed is not None  # removed entries do not stay in the dictionary
            entry.remaining -= 1
            if entry.remaining == 0:
                self._remove(key, entry)
        callback(exposed)
        return ticket

    def fail(self, key: Key, exposed: Exposed) -> None:
        """Tell those who wait for a tensor that it was not exposed, and why."""
        with self._lock:
            callbacks = self._end_waiting(key, self._waiting_count)
        for callback in callbacks:
            callback(exposed)

    def forget(self, key: Key, ticket: int) -> None:
        """Stop waiting for a tensor. Does nothing for a fetch that has been served."""
        with self._lock:
            waiting = self._waiting.get(key)
            if waiting is not None and waiting.pop(ticket, None) is not None:
                self._waiting_count -= 1
                if not waiting:
                    del self._waiting[key]

    def withdraw(self, owner: object) -> None:
        """Free what a session exposed and nobody fetched.

        Takes the lock in slices, so that other sessions and the event loop get in between.
        """
        while True:
            with self._lock:
                owned = self._owned.get(owner)
                if owned is None:
                    return
                for entry, key in [*islice(owned.entries.items(), WITHDRAWN_AT_ONCE)]:
                    self._remove(key, entry)

    def exposed_by(self, owner: object) -> int:
        """Return how many tensors a session has exposed that were not fetched."""
        owned = self._owned.get(owner)
        return 0 if owned is None else len(owned.entries)

    def expire(self) -> bool:
        """Free some of what was exposed for too long; return whether there may be more of it."""
        with self._lock:
            return self._expire()

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    def _end_waiting(self, key: Key, count: int) -> list[Callable[[Exposed], None]]:
        """Remove and return up to ``count`` callbacks that wait under a key, oldest first."""
        waiting = self._waiting.get(key)
        if waiting is None:
            return []
        ended = [waiting.popitem(last=False)[1] for _ in range(min(count, len(waiting)))]
        self._waiting_count -= len(ended)
        if not waiting:
            del self._waiting[key]
        return ended

    def _expire(self) -> bool:
        """Remove expired entries, a bounded number; return whether that number was reached."""
        now = time.monotonic()
        for _ in range(EXPIRED_AT_ONCE):
            if not self._deadlines:
                return False
            expires, _, key, entry = self._deadlines[0]
            if expires > now and entry.remaining:
                return False
            heapq.heappop(self._deadlines)
            if entry.remaining:
                self.expired += 1
                self._remove(key, entry)
        return True

    def _remove(self, key: Key, entry: _Entry) -> None:
        entry.remaining = 0
        entries = self._entries[key]
        del entries[entry]
        if not entries:
            del self._entries[key]
        owned = self._owned[entry.owner]
        del owned.entries[entry]
        owned.bytes -= entry.exposed.nbytes if entry.exposed is not None else 0
        if not owned.entries:
            del self._owned[entry.owner]
        # Its deadline may lie far ahead; the array must not wait for that.
        entry.exposed = None
        self._over += 1
        if self._over > 64 and 2 * self._over > len(self._deadlines):
            self._deadlines = [deadline for deadline in self._deadlines if deadline[3].remaining]
            heapq.heapify(self._deadlines)
            self._over = 0

    def _own(self, entry: _Entry, key: Key, limits: ExposeLimits) -> None:
        """Count an entry against its owner's limits. Raises ``QuotaExceeded``, counting nothing."""
        owned = self._owned.get(entry.owner) or _Owned()
        count = len(owned.entries)
        size = entry.exposed.nbytes if entry.exposed is not None else 0
        if count >= limits.count:
            raise QuotaExceeded(
                f"exposed tensors of a session: {count + 1:,} would be exposed, "
                f"{limits.count:,} are allowed; wait until some were fetched, or raise "
                "max_session_transfers on the server"
            )
        if owned.bytes + size > limits.bytes:
            raise QuotaExceeded(
                f"exposed bytes of a session: {owned.bytes + size:,} would be held, "
                f"{limits.bytes:,} are allowed; wait until some were fetched, or raise "
                "max_session_bytes on the server"
            )
        owned.entries[entry] = key
        owned.bytes += size
        self._owned[entry.owner] = owned
