"""The tensors that a device keeps beyond their sessions: contents by digest, and named tensors.

Both belong to a token: sessions with another token can neither find nor replace them, even if they
know the digest or the name. Sessions share an array without a copy, because a kernel overwrites an
input only if nothing else references it.

A content may be freed at any time: after a while without use, when the limit for contents is
reached (least recently used first), or when sessions need its memory. A named tensor stays until it
is removed. Kept arrays count in the device's pool. A session that opens one also counts it in its
own quota.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from burn_remote_protocol.errors import OperationFailed, QuotaExceeded
from burn_remote_protocol.kept_tensors import MAX_PUBLISHED
from burn_remote_protocol.tensors import TensorSpec
from burn_remote_server.access.quota import TENSOR_BYTES, HeldCopies, Pool

__all__ = ["KeptTensor", "KeptTensors", "OwnKeptTensors"]


class KeptTensor(NamedTuple):
    """A shared array, its spec, and the bytes of memory that it keeps alive."""

    shared: Any
    spec: TensorSpec
    nbytes: int


@dataclass(slots=True)
class _Content:
    tensors: Sequence[KeptTensor]
    nbytes: int
    used: float


@dataclass(slots=True)
class _Published:
    """The named tensors of one token, and their bytes."""

    tensors: dict[str, KeptTensor] = field(default_factory=dict)
    nbytes: int = 0


class KeptTensors:
    """The kept tensors of one device. Thread-safe."""

    def __init__(
        self,
        pool: Pool,
        max_content_bytes: int,
        idle_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create an empty store.

        ``max_content_bytes`` bounds all contents together, each of which is freed
        ``idle_seconds`` after its last use.
        """
        self.max_content_bytes: Final = max_content_bytes
        self._pool: Final = pool
        self._idle_seconds: Final = idle_seconds
        self._clock: Final = clock
        # Never held during a call of the pool, because the pool may call ``free_contents``.
        self._lock: Final = threading.Lock()
        self._contents: Final[OrderedDict[tuple[str, bytes], _Content]] = OrderedDict()
        self._content_bytes = 0
        self._published: Final[dict[str, _Published]] = {}
        # The tokens that still exist; ``None`` until one is removed. Sessions of a removed token
        # continue but keep no more tensors, because no session could open or remove these.
        self._owners: frozenset[str] | None = None
        pool.reclaim = self.free_contents

    @property
    def content_bytes(self) -> int:
        """Bytes of all contents."""
        return self._content_bytes

    @property
    def published_bytes(self) -> int:
        """Bytes of all named tensors."""
        with self._lock:
            return sum(own.nbytes for own in self._published.values())

    # -- contents -----------------------------------------------------------------------------

    def keep_content(
        self,
        owner: str,
        digest: bytes,
        tensors: Sequence[KeptTensor],
        copies: HeldCopies | None = None,
    ) -> bool:
        """Keep a content; return whether it fits within the limits.

        ``copies`` are the copies that a session made of some of these tensors.
        """
        size = _counted(tensors)
        if size > self.max_content_bytes:
            return False
        key = owner, digest
        with self._lock:
            if key in self._contents:
                return True
        self._free(lambda: self._content_bytes + size > self.max_content_bytes)
        if not self._take(size, copies):
            return False
        # Another session may have kept this content in the meantime, or used up the limit.
        with self._lock:
            is_known = key in self._contents
            fits = self._content_bytes + size <= self.max_content_bytes and self._exists(owner)
            if fits and not is_known:
                self._contents[key] = _Content(tensors, size, self._clock())
                self._content_bytes += size
        if is_known or not fits:
            self._pool.give_back(size)
        return is_known or fits

    def open_content(self, owner: str, digest: bytes) -> Sequence[KeptTensor] | None:
        """Return the tensors of a content of this token, or ``None``."""
        key = owner, digest
        with self._lock:
            found = self._contents.get(key)
            if found is None:
                return None
            found.used = self._clock()
            self._contents.move_to_end(key)
            return found.tensors

    def free_contents(self, size: int) -> bool:
        """Free contents of at least ``size`` bytes, or all; return whether any was freed."""
        target = self._content_bytes - size
        return self._free(lambda: self._content_bytes > target)

    def expire(self) -> None:
        """Free the contents that have not been used for a while."""
        oldest = self._clock() - self._idle_seconds
        self._free(lambda: next(iter(self._contents.values())).used <= oldest)

    def _free(self, is_due: Callable[[], bool]) -> bool:
        """Free the least recently used contents as long as ``is_due()``."""
        freed: list[_Content] = []
        with self._lock:
            while self._contents and is_due():
                content = self._contents.popitem(last=False)[1]
                self._content_bytes -= content.nbytes
                freed.append(content)
        for content in freed:
            self._pool.give_back(content.nbytes)
        return bool(freed)

    # -- named tensors ------------------------------------------------------------------------

    def publish(
        self,
        owner: str,
        name: str,
        tensor: KeptTensor,
        max_bytes: int,
        copies: HeldCopies | None = None,
    ) -> None:
        """Keep a tensor under a name; it replaces the tensor that has the name.

        ``max_bytes`` bounds the named tensors of this token. ``copies`` is the tensor's copy, if a
        session made one. Raises ``QuotaExceeded``, and ``OperationFailed`` for a token that was
        removed. After an error, the name keeps its tensor.
        """
        size = _counted([tensor])
        if not self._take(size, copies):
            raise self._pool.refusal(size)
        freed = size
        try:
            with self._lock:
                if not self._exists(owner):
                    raise OperationFailed(
                        f"the token {owner!r} was removed from the server, so no session could "
                        "open the tensor; open the device again with another token"
                    )
                own = self._published.get(owner) or _Published()
                old = own.tensors.get(name)
                old_size = 0 if old is None else _counted([old])
                if old is None and len(own.tensors) >= MAX_PUBLISHED:
                    raise QuotaExceeded(
                        f"names of one token: {MAX_PUBLISHED + 1} would be published, "
                        f"{MAX_PUBLISHED} are allowed; unpublish some (list_published lists them)"
                    )
                total = own.nbytes - old_size + size
                if total > max_bytes:
                    raise QuotaExceeded(
                        f"published bytes of one token: {total:,} would be held, {max_bytes:,} are "
                        "allowed; unpublish tensors (list_published lists them), or raise "
                        "max_session_bytes on the server"
                    )
                own.tensors[name] = tensor
                own.nbytes = total
                self._published[owner] = own
                freed = old_size
        finally:
            self._pool.give_back(freed)

    def unpublish(self, owner: str, name: str) -> bool:
        """Remove a name; return whether there was one."""
        with self._lock:
            own = self._published.get(owner)
            tensor = None if own is None else own.tensors.pop(name, None)
            if own is None or tensor is None:
                return False
            own.nbytes -= _counted([tensor])
            if not own.tensors:
                del self._published[owner]
        self._pool.give_back(_counted([tensor]))
        return True

    def published(self, owner: str) -> dict[str, KeptTensor]:
        """Return a token's named tensors."""
        with self._lock:
            own = self._published.get(owner)
            return {} if own is None else dict(own.tensors)

    def forget_others(self, owners: Iterable[str]) -> None:
        """Free the tensors of tokens that are not in ``owners``: no session could open them."""
        known = frozenset(owners)
        freed = 0
        with self._lock:
            self._owners = known
            for key in [key for key in self._contents if key[0] not in known]:
                content = self._contents.pop(key)
                self._content_bytes -= content.nbytes
                freed += content.nbytes
            for owner in {*self._published} - known:
                freed += self._published.pop(owner).nbytes
        if freed:
            self._pool.give_back(freed)

    def _take(self, size: int, copies: HeldCopies | None) -> bool:
        """Reserve bytes in the pool; return whether they were available.

        The bytes that ``copies`` have reserved remain reserved. If they were returned first,
        another session could take them before the copies are freed.
        """
        passed = 0 if copies is None else copies.pass_to(self._pool)
        if self._pool.take(size - passed):
            return True
        self._pool.give_back(passed)
        return False

    def _exists(self, owner: str) -> bool:
        return self._owners is None or owner in self._owners


class OwnKeptTensors(NamedTuple):
    """The kept tensors of one token; ``max_bytes`` bounds its named tensors."""

    kept: KeptTensors
    owner: str
    max_bytes: int

    def keep_content(
        self, digest: bytes, tensors: Sequence[KeptTensor], copies: HeldCopies | None = None
    ) -> bool:
        """Keep a content; see ``KeptTensors.keep_content``."""
        return self.kept.keep_content(self.owner, digest, tensors, copies)

    def open_content(self, digest: bytes) -> Sequence[KeptTensor] | None:
        """Return the tensors of a content, or ``None``."""
        return self.kept.open_content(self.owner, digest)

    def publish(self, name: str, tensor: KeptTensor, copies: HeldCopies | None = None) -> None:
        """Keep a tensor under a name; see ``KeptTensors.publish``."""
        self.kept.publish(self.owner, name, tensor, self.max_bytes, copies)

    def unpublish(self, name: str) -> bool:
        """Remove a name; return whether there was one."""
        return self.kept.unpublish(self.owner, name)

    def published(self) -> dict[str, KeptTensor]:
        """Return the named tensors."""
        return self.kept.published(self.owner)


def _counted(tensors: Iterable[KeptTensor]) -> int:
    return sum(TENSOR_BYTES + one.nbytes for one in tensors)
