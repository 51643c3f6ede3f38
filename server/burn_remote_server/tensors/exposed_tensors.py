"""The exposed tensors of a process, and the fetches that wait for one.

One registry serves the whole process: sessions expose tensors; peers and other sessions fetch them.
An *expose* makes one tensor available. A fetch that arrives before its expose waits for it. Exposed
arrays are never changed in place, so a fetch within the process shares the array itself.
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
from burn_remote_server.access.fair_places import FairPlaces
from burn_remote_server.backends.interface import Backend, Loan
from burn_remote_server.tensors.allocations import memory_bytes

__all__ = [
    "BURN",
    "MAX_WAITING",
    "ExposeLimits",
    "Exposed",
    "Key",
    "Transfers",
    "burn_domain",
    "transfer_key",
]

# Most fetches that wait for their tensor to be exposed. This bounds the memory that a peer can
# occupy by guessing ids, and suffices for bursts of moves between sessions of different speeds.
MAX_WAITING: Final = 131_072

# Entries withdrawn per acquisition of the lock: about 0.3 ms, during which no fetch can start.
WITHDRAWN_AT_ONCE: Final = 256

# Most expired entries removed by one call, which takes about 1 ms: many tensors may expire at the
# same time.
EXPIRED_AT_ONCE: Final = 512


# Compared by identity, because ``==`` of arrays returns an array. Weak references show when an
# object is no longer used.
@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Exposed:
    """An exposed tensor: the shared array with its spec and backend, or the failure."""

    array: Any
    spec: TensorSpec
    backend: Backend
    failure: OperationFailed | None = None
    # Memory lent to a peer before its connection broke; the peer may still be copying it.
    loan: Loan | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that this object keeps alive, even after its session dropped the tensor."""
        return 0 if self.failure is not None else memory_bytes(self.spec)


@dataclass(frozen=True, slots=True)
class ExposeLimits:
    """Limits of one session's exposed tensors: number, bytes and lifetime."""

    count: int = 16_384
    bytes: int = 2**62
    seconds: float = 86_400.0


@dataclass(slots=True)
class _Owned:
    """One session's exposed entries with their keys, and their bytes."""

    entries: dict[_Entry, Key] = field(default_factory=dict)
    bytes: int = 0


@dataclass(slots=True, eq=False)
class _Entry:
    exposed: Exposed | None  # None once removed: the heap of deadlines may still contain the entry
    owner: object
    remaining: int


Key = tuple[str, bytes | int]

# The domain of the integer ids of Burn's dialect that are secrets.
BURN: Final = "burn-0.21"


def burn_domain(address: str) -> str:
    """Return the domain of Burn's small transfer ids, which each client counts from 0.

    ``address`` is the address of this server that a client uses and passes to other servers, such
    as ``ws://gpu-box:3000/token/SECRET/1``. Clients that use different addresses, for example
    because they have different tokens, never receive each other's tensors.
    """
    location = address.partition("://")[2].rstrip("/")
    authority, slash, path = location.partition("/")
    return f"{BURN} {authority.lower().removesuffix(':80')}{slash}{path.lstrip('/')}"


def transfer_key(domain: str, transfer: bytes | int) -> Key:
    """Return the registry key of a transfer id in a domain.

    A secret id is sufficient authorization, so all secret ids share one domain.
    """
    if isinstance(transfer, int) and is_secret(transfer):
        return BURN, transfer
    return domain, transfer


class Transfers:
    """A registry of exposed tensors and of the fetches that wait for one. Thread-safe.

    A key is a domain and an id, so Burn's small ids never match a native transfer. Tensors with the
    same id are fetched in the order of their exposes. Adding or removing one entry or waiting fetch
    takes constant time, however many others have the same id or owner.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # OrderedDict finds the oldest entry in constant time. A plain dictionary scans the slots of
        # removed keys first.
        self._entries: dict[Key, OrderedDict[_Entry, None]] = {}
        # A heap by expiry time; the number keeps entries with equal times in order.
        self._deadlines: list[tuple[float, int, Key, _Entry]] = []
        self._waiting: dict[Key, OrderedDict[int, tuple[Callable[[Exposed], None], str]]] = {}
        self._places = FairPlaces(MAX_WAITING)  # of the fetches that wait, of all keys
        self._tickets = counter(1)
        self._owned: dict[object, _Owned] = {}
        self._stale_deadlines = 0  # an upper bound: deadlines whose entry was removed
        # Totals for the metrics: exposes, served fetches, and exposes that expired.
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
        """Make a tensor available to ``count`` fetches until it expires.

        Raises ``QuotaExceeded`` beyond the limits, and ``TransferFailed`` for a secret id that is
        already in use. Ids that are not secret (Burn's) may be reused.
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

    def fetch(self, key: Key, callback: Callable[[Exposed], None], party: str = "") -> int:
        """Call ``callback(exposed)`` once: now, or in the thread that exposes the tensor.

        ``party`` is the token or the host that fetches. Returns a ticket; a caller that stops
        waiting must ``forget`` it. Raises ``TransferFailed`` if too many fetches of the party wait.
        """
        with self._lock:
            self._expire()
            ticket = next(self._tickets)
            entries = self._entries.get(key)
            if entries is None:
                places = self._places
                if not places.take(party):
                    raise TransferFailed(
                        f"{places.taken(party):,} fetches of this client, and {places.total:,} of "
                        "all, already wait for their tensor; try again later"
                    )
                self._waiting.setdefault(key, OrderedDict())[ticket] = callback, party
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
        """Deliver a failure to the fetches that wait for a tensor."""
        with self._lock:
            callbacks = self._end_waiting(key, self._places.total)
        for callback in callbacks:
            callback(exposed)

    def is_waiting(self, key: Key, ticket: int) -> bool:
        """Return whether a fetch still waits for its tensor."""
        return ticket in self._waiting.get(key, ())

    def forget(self, key: Key, ticket: int) -> None:
        """Stop waiting for a tensor. Does nothing for a fetch that has been served."""
        with self._lock:
            waiting = self._waiting.get(key)
            ended = None if waiting is None else waiting.pop(ticket, None)
            if ended is not None:
                self._places.give_back(ended[1])
                if not waiting:
                    del self._waiting[key]

    def withdraw(self, owner: object) -> None:
        """Remove a session's tensors that were not fetched.

        Releases the lock after each few entries, so that other sessions and the event loop can
        proceed.
        """
        while True:
            with self._lock:
                owned = self._owned.get(owner)
                if owned is None:
                    return
                for entry, key in [*islice(owned.entries.items(), WITHDRAWN_AT_ONCE)]:
                    self._remove(key, entry)

    def exposed_by(self, owner: object) -> int:
        """Return the number of a session's exposed tensors that were not fetched."""
        owned = self._owned.get(owner)
        return 0 if owned is None else len(owned.entries)

    def expire(self) -> bool:
        """Remove a bounded number of expired entries; return whether there may be more."""
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
        for _, party in ended:
            self._places.give_back(party)
        if not waiting:
            del self._waiting[key]
        return [callback for callback, _ in ended]

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
        # The heap keeps the entry until its deadline, which may be far in the future. Free the
        # array now.
        entry.exposed = None
        self._stale_deadlines += 1
        if self._stale_deadlines > 64 and 2 * self._stale_deadlines > len(self._deadlines):
            self._deadlines = [deadline for deadline in self._deadlines if deadline[3].remaining]
            heapq.heapify(self._deadlines)
            self._stale_deadlines = 0

    def _own(self, entry: _Entry, key: Key, limits: ExposeLimits) -> None:
        """Count an entry against its owner's limits. Raises ``QuotaExceeded``, counting nothing."""
        owned = self._owned.get(entry.owner) or _Owned()
        count = len(owned.entries)
        size = entry.exposed.nbytes if entry.exposed is not None else 0
        if count >= limits.count:
            raise QuotaExceeded(
                f"exposed tensors of a session: {count + 1:,} would be exposed, "
                f"{limits.count:,} are allowed; wait until some are fetched, or raise "
                "max_session_transfers on the server"
            )
        if owned.bytes + size > limits.bytes:
            raise QuotaExceeded(
                f"exposed bytes of a session: {owned.bytes + size:,} would be held, "
                f"{limits.bytes:,} are allowed; wait until some are fetched, or raise "
                "max_session_bytes on the server"
            )
        owned.entries[entry] = key
        owned.bytes += size
        self._owned[entry.owner] = owned
