"""Tensors that are being sent or lent to a peer, until the peer confirms their arrival."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from burn_remote_protocol.errors import ProtocolViolation, QuotaExceeded
from burn_remote_protocol.loop_calls import Signal
from burn_remote_protocol.messages import FetchRequest
from burn_remote_server.backends.interface import Loan
from burn_remote_server.tensors.exposed_tensors import Exposed, Transfers

__all__ = ["OutgoingTransfers"]

# Smallest tensor whose memory is lent to a peer that can borrow: a server on the same host. For
# smaller tensors, opening the memory may take longer than sending the bytes.
LENT_BYTES: Final = 2**20

# How long a loan lasts without a confirmation. A paused peer could resume and copy memory that has
# been reused, so this is longer than an unresponsive connection stays open.
LOAN_SECONDS: Final = 600.0

# Limits of the loans of one connection. A single loan may have any size; tensors beyond the limits
# are sent instead. No session's quota counts lent memory, so without limits a peer that never
# confirms its copies could occupy any amount.
MAX_LOANS: Final = 64
MAX_LENT_BYTES: Final = 4 * 2**30


@dataclass(frozen=True, slots=True, eq=False)
class _OutgoingTransfer:
    transfer: bytes
    exposed: Exposed
    since: float
    loan: Loan | None = None


class OutgoingTransfers:
    """The fetches of one peer connection, until the peer confirms that the tensors have arrived.

    An exposed tensor can be fetched a limited number of times, and a fetch counts when it begins.
    If the connection breaks, the tensor is exposed again for one fetch more, so that the peer can
    fetch the rest.
    """

    def __init__(
        self, transfers: Transfers, dialect: str, seconds: float, *, borrower: object = None
    ) -> None:
        # The host whose memory the peer claims to be able to open; not verified.
        self._borrower = borrower
        self._transfers: Final = transfers
        self._dialect: Final = dialect
        self._seconds: Final = seconds
        self._begun: dict[int, _OutgoingTransfer] = {}
        self._lent: dict[int, _OutgoingTransfer] = {}
        self._making: list[Exposed] = []
        self._idle: Final = Signal()
        self._idle.set()

    def holds(self, transfer: bytes | int) -> bool:
        """Return whether a tensor is being sent or lent; it may have to be exposed again."""
        begun = itertools.chain(self._begun.values(), self._lent.values())
        return any(one.transfer == transfer for one in begun)

    def begin(self, request: FetchRequest, exposed: Exposed) -> None:
        """Register a tensor that is being sent.

        Raises ``ProtocolViolation`` for an offset beyond its end or a repeated request.
        """
        if exposed.failure is not None:
            return
        if request.offset > exposed.spec.nbytes or self._find(request) is not None:
            raise ProtocolViolation(
                f"fetch {request.request} begins at byte {request.offset:,} of {exposed.spec}, "
                "which is beyond the tensor's end, or its request number is already in use"
            )
        now = time.monotonic()
        # Without an expiry, a peer that abandons fetches without notice would keep the tensors
        # alive as long as it is connected.
        _expire(self._begun, now - self._seconds)
        self._begun[request.request] = _OutgoingTransfer(request.transfer, exposed, now)
        self._idle.clear()

    def may_lend(self, request: FetchRequest, exposed: Exposed) -> bool:
        """Whether to lend the tensor's memory to the peer instead of sending the elements."""
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
    def counting_loan(self, exposed: Exposed) -> Iterator[None]:
        """Count a loan while it is being made."""
        self._making.append(exposed)
        try:
            yield
        finally:
            self._making.remove(exposed)

    def lend(self, request: FetchRequest, exposed: Exposed, loan: Loan) -> bool:
        """Keep lent memory alive until the peer confirms that it has copied the tensor.

        Returns ``False`` if the peer ended the fetch before the loan was made, because no
        confirmation would follow.
        """
        begun = self._begun.get(request.request)
        if begun is None or begun.exposed is not exposed:
            return False
        del self._begun[request.request]
        now = time.monotonic()
        self._lent[request.request] = _OutgoingTransfer(request.transfer, exposed, now, loan)
        return True

    def expire(self) -> None:
        """End the loans that were not confirmed in time."""
        _expire(self._lent, time.monotonic() - LOAN_SECONDS)
        self._check_idle()

    def declined(self, request: FetchRequest) -> Exposed | None:
        """Return a lent tensor that the peer requests again, because it cannot open the memory."""
        begun = self._lent.get(request.request)
        if begun is None or (request.transfer, request.offset) != (begun.transfer, 0):
            return None
        self._begun[request.request] = _OutgoingTransfer(
            begun.transfer, begun.exposed, time.monotonic()
        )
        del self._lent[request.request]
        self._borrower = None  # it could not open later loans either
        return begun.exposed

    def arrived(self, request: FetchRequest) -> bool:
        """Whether the request confirms that a tensor has arrived; if so, forget the tensor."""
        begun = self._find(request)
        if begun is None or (begun.loan is not None and not request.offset):
            return False
        if (request.transfer, request.offset) != (begun.transfer, begun.exposed.spec.nbytes):
            raise ProtocolViolation(f"the request number of fetch {request.request} is in use")
        self._forget(request.request)
        return True

    def give_up(self, request: FetchRequest) -> None:
        """Forget a tensor that could not be sent."""
        self._forget(request.request)

    async def finished(self) -> None:
        """Wait until the peer has received all tensors that are being sent."""
        await self._idle.wait()

    def _find(self, request: FetchRequest) -> _OutgoingTransfer | None:
        return self._begun.get(request.request) or self._lent.get(request.request)

    def _forget(self, request: int) -> None:
        self._begun.pop(request, None)
        self._lent.pop(request, None)
        self._check_idle()

    def _check_idle(self) -> None:
        if not self._begun and not self._lent:
            self._idle.set()

    def expose_again(self) -> None:
        """Expose the unconfirmed tensors again, with an expiry, after the connection has ended."""
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


def _expire(begun: dict[int, _OutgoingTransfer], before: float) -> None:
    """Remove the entries that began before a time; the dictionary has the oldest first."""
    while begun and begun[first := next(iter(begun))].since < before:
        del begun[first]
