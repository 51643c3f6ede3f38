"""Which tensors has a peer been sent that may not have reached it?"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from burn_remote_protocol.errors import ProtocolViolation, QuotaExceeded
from burn_remote_protocol.messages import FetchRequest
from burn_remote_server.backends.interface import Loan
from burn_remote_server.execution.exposed import Exposed, Transfers

__all__ = ["Sending"]

# Tensors from this size on are lent to who can borrow. Larger: middling ones go through the host's
# memory for nothing. Smaller: opening memory may take longer than sending the bytes.
LENT_BYTES: Final = 2**20

# How long a peer may take to copy what it is lent. Larger: one that gave up without a word holds
# memory for longer. Smaller: one that was stopped meanwhile, and goes on, copies what was written
# over; so it is longer than a connection lives whose other end is silent.
LOAN_SECONDS: Final = 600.0

# What one connection may be lent at once; a tensor beyond it goes through the socket, and one alone
# may have any size. Larger: a peer that fetches and never says that it has copied holds more of the
# device's memory, which no session's quota counts. Smaller: many moves at once go through the
# host's memory.
MAX_LOANS: Final = 64
MAX_LENT_BYTES: Final = 4 * 2**30


@dataclass(frozen=True, slots=True, eq=False)
class _Begun:
    transfer: bytes
    exposed: Exposed
    since: float
    loan: Loan | None = None


class Sending:
    """The fetches of one connection between servers, until the peer says that it has all.

    A fetch uses up the tensor's count when it begins. If the connection breaks under it, the tensor
    is exposed once more, so that the peer can ask for the rest.
    """

    def __init__(
        self, transfers: Transfers, dialect: str, seconds: float, *, borrower: object = None
    ) -> None:
        # What the peer says of whose memory it can open; it is no more than what it says.
        self._borrower = borrower
        self._transfers: Final = transfers
        self._dialect: Final = dialect
        self._seconds: Final = seconds
        self._begun: dict[int, _Begun] = {}
        self._lent: dict[int, _Begun] = {}
        self._making: list[Exposed] = []
        self._idle: Final = asyncio.Event()
        self._idle.set()

    def begin(self, request: FetchRequest, exposed: Exposed) -> None:
        """Remember a tensor that is being sent. Raises ``ProtocolViolation`` for an odd offset."""
        if exposed.failure is not None:
            return
        if request.offset > exposed.spec.nbytes or self._find(request) is not None:
            raise ProtocolViolation(f"a fetch from byte {request.offset:,} of {exposed.spec}")
        now = time.monotonic()
        # A peer that gave up without a word must not hold tensors here for as long as it stays.
        _expire(self._begun, now - self._seconds)
        self._begun[request.request] = _Begun(request.transfer, exposed, now)
        self._idle.clear()

    def may_lend(self, request: FetchRequest, exposed: Exposed) -> bool:
        """Whether a tensor shall go to the peer as memory that it copies from."""
        lends_to = exposed.backend.lends_to if self._borrower is not None else None
        return (
            lends_to is not None
            and lends_to == self._borrower
            and not request.offset
            and exposed.spec.nbytes >= LENT_BYTES
            and self._has_room_for(exposed)
        )

    def _has_room_for(self, exposed: Exposed) -> bool:
        held = [*self._making, *(begun.exposed for begun in self._lent.values())]
        lent_bytes = sum(other.spec.nbytes for other in held)
        return not held or (
            len(held) < MAX_LOANS and lent_bytes + exposed.spec.nbytes <= MAX_LENT_BYTES
        )

    @contextlib.contextmanager
    def making_loan(self, exposed: Exposed) -> Iterator[None]:
        """Count a loan while it is made."""
        self._making.append(exposed)
        try:
            yield
        finally:
            self._making.remove(exposed)

    def lend(self, request: FetchRequest, exposed: Exposed, loan: Loan) -> bool:
        """Keep what the peer is lent until it says that it has copied all.

        ``False`` where it said so before the loan was made: nobody would end it.
        """
        begun = self._begun.get(request.request)
        if begun is None or begun.exposed is not exposed:
            return False
        del self._begun[request.request]
        now = time.monotonic()
        self._lent[request.request] = _Begun(request.transfer, exposed, now, loan)
        return True

    def expire(self) -> None:
        """End the loans of which nothing was heard for too long."""
        _expire(self._lent, time.monotonic() - LOAN_SECONDS)
        self._look_whether_idle()

    def declined(self, request: FetchRequest) -> Exposed | None:
        """Return a tensor whose loan the peer cannot use, for which it asks once more."""
        begun = self._lent.get(request.request)
        if begun is None or (request.transfer, request.offset) != (begun.transfer, 0):
            return None
        self._begun[request.request] = _Begun(begun.transfer, begun.exposed, time.monotonic())
        del self._lent[request.request]
        self._borrower = None  # the next one it could not use either
        return begun.exposed

    def arrived(self, request: FetchRequest) -> bool:
        """Whether this says that a tensor has arrived whole, which is then forgotten."""
        begun = self._find(request)
        if begun is None or (begun.loan is not None and not request.offset):
            return False
        if (request.transfer, request.offset) != (begun.transfer, begun.exposed.spec.nbytes):
            raise ProtocolViolation(f"fetch {request.request} was begun before")
        self._forget(request.request)
        return True

    def give_up(self, request: FetchRequest) -> None:
        """Forget a tensor that could not be sent."""
        self._forget(request.request)

    async def finished(self) -> None:
        """Wait until the peer has all that it was being sent."""
        await self._idle.wait()

    def _find(self, request: FetchRequest) -> _Begun | None:
        return self._begun.get(request.request) or self._lent.get(request.request)

    def _forget(self, request: int) -> None:
        self._begun.pop(request, None)
        self._lent.pop(request, None)
        self._look_whether_idle()

    def _look_whether_idle(self) -> None:
        if not self._begun and not self._lent:
            self._idle.set()

    def expose_again(self) -> None:
        """Let what did not arrive be fetched once more, for a while: the connection has ended."""
        for begun in (*self._begun.values(), *self._lent.values()):
            with contextlib.suppress(QuotaExceeded):
                self._transfers.expose(
                    (self._dialect, begun.transfer),
                    replace(begun.exposed, loan=begun.loan),
                    owner=self,
                    count=1,
                    expires_seconds=self._seconds,
                    is_secret=False,
                )
        self._begun.clear()
        self._lent.clear()


def _expire(begun: dict[int, _Begun], before: float) -> None:
    """Forget what was begun before; the first are the oldest."""
    while begun and begun[first := next(iter(begun))].since < before:
        del begun[first]
