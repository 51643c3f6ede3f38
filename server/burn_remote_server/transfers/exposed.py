"""Which tensors may be fetched, by whom, how often and until when?

One registry serves a whole process: its sessions expose tensors, its peers and its own sessions
fetch them. A fetch may come before its expose and waits. Arrays are never changed in place, so a
fetch inside the process hands over the array itself.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
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
    count: int = 0
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
    """Where exposed tensors and the fetches that want them meet. Thread-safe.

    Keys name a domain beside the id: Burn's small ids must not open a native transfer.
    Several tensors under one id are fetched in the order in which they were exposed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[Key, deque[_Entry]] = {}
        # When each expires, soonest first; the number keeps equal times in their order.
        self._deadlines: list[tuple[float, int, Key, _Entry]] = []
        self._waiting: dict[Key, deque[Callable[[Exposed], None]]] = {}
        self._waiting_count = 0  # of all keys
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
            callbacks = [*islice(self._waiting.get(key, ()), count)]
            if len(callbacks) < count:
                self._count(owner, exposed.nbytes, limits)
                entry = _Entry(exposed, owner, count - len(callbacks))
                self._entries.setdefault(key, deque()).append(entry)
                expires = time.monotonic() + min(expires_seconds, limits.seconds)
                heapq.heappush(self._deadlines, (expires, self.exposed, key, entry))
            self._end_waiting(key, callbacks)
            self.exposed += 1
            self.served += len(callbacks)
        for callback in callbacks:
            callback(exposed)

    def fetch(self, key: Key, callback: Callable[[Exposed], None]) -> None:
        """Call ``callback(exposed)`` once, now or when the tensor is exposed, in that thread.

        Whoever stops waiting must ``forget`` the callback. Raises ``TransferFailed`` when too many
        wait.
        """
        with self._lock:
            self._expire()
            entries = self._entries.get(key)
            if entries is None:
                if self._waiting_count >= MAX_WAITING:
                    raise TransferFailed(f"{MAX_WAITING:,} fetches wait for their tensor already")
                self._waiting.setdefault(key, deque()).append(callback)
                self._waiting_count += 1
                return
            self.served += 1
            entry = entries[0]
            exposed = entry.exposed
            assert exposed is not None  # nothing removed stands there
            entry.remaining -= 1
            if entry.remaining == 0:
                self._remove(key, entry)
        callback(exposed)

    def fail(self, key: Key, exposed: Exposed) -> None:
        """Tell those who wait for a tensor that it was not exposed, and why."""
        with self._lock:
            callbacks = [*self._waiting.get(key, ())]
            self._end_waiting(key, callbacks)
        for callback in callbacks:
            callback(exposed)

    def forget(self, key: Key, callback: Callable[[Exposed], None]) -> None:
        """Stop waiting for a tensor."""
        with self._lock:
            if callback in self._waiting.get(key, ()):
                self._end_waiting(key, [callback])

    def withdraw(self, owner: object) -> None:
        """Free what a session exposed and nobody fetched."""
        with self._lock:
            for key, entries in [*self._entries.items()]:
                for entry in [*entries]:
                    if entry.owner is owner:
                        self._remove(key, entry)

    def expire(self) -> None:
        """Free what was exposed for longer than it was meant to be."""
        with self._lock:
            self._expire()

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    def _end_waiting(self, key: Key, callbacks: list[Callable[[Exposed], None]]) -> None:
        """Forget callbacks, which are waiting under a key."""
        for callback in callbacks:
            self._waiting[key].remove(callback)
        self._waiting_count -= len(callbacks)
        if callbacks and not self._waiting[key]:
            del self._waiting[key]

    def _expire(self) -> None:
        now = time.monotonic()
        while self._deadlines and (
            self._deadlines[0][0] <= now or self._deadlines[0][3].remaining == 0
        ):
            _, _, key, entry = heapq.heappop(self._deadlines)
            if entry.remaining:
                self.expired += 1
                self._remove(key, entry)

    def _remove(self, key: Key, entry: _Entry) -> None:
        entry.remaining = 0
        entries = self._entries[key]
        entries.remove(entry)
        if not entries:
            del self._entries[key]
        owned = self._owned[entry.owner]
        owned.count -= 1
        owned.bytes -= entry.exposed.nbytes if entry.exposed is not None else 0
        if not owned.count:
            del self._owned[entry.owner]
        # Its deadline may lie far ahead; the array must not wait for that.
        entry.exposed = None
        self._over += 1
        if self._over > 64 and 2 * self._over > len(self._deadlines):
            self._deadlines = [deadline for deadline in self._deadlines if deadline[3].remaining]
            heapq.heapify(self._deadlines)
            self._over = 0

    def _count(self, owner: object, size: int, limits: ExposeLimits) -> None:
        owned = self._owned.get(owner) or _Owned()
        if owned.count >= limits.count:
            raise QuotaExceeded(
                f"exposed tensors of a session: {owned.count + 1:,} would be exposed, "
                f"{limits.count:,} are allowed; wait until some were fetched, or raise "
                "max_session_transfers on the server"
            )
        if owned.bytes + size > limits.bytes:
            raise QuotaExceeded(
                f"exposed bytes of a session: {owned.bytes + size:,} would be held, "
                f"{limits.bytes:,} are allowed; wait until some were fetched, or raise "
                "max_session_bytes on the server"
            )
        owned.count += 1
        owned.bytes += size
        self._owned[owner] = owned
