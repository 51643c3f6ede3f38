"""Which tensors has a peer been sent that may not have reached it?"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Final

from burn_remote_protocol.errors import ProtocolViolation, QuotaExceeded
from burn_remote_protocol.messages import FetchRequest
from burn_remote_server.transfers.exposed import Exposed, Transfers

__all__ = ["Sending"]


class Sending:
    """The fetches of one connection between servers, until the peer says that it has all.

    A fetch uses up the tensor's count when it begins. If the connection breaks under it, the tensor
    is exposed once more, so that the peer can ask for the rest.
    """

    def __init__(self, transfers: Transfers, dialect: str, seconds: float) -> None:
        self._transfers: Final = transfers
        self._dialect: Final = dialect
        self._seconds: Final = seconds
        self._begun: dict[int, tuple[bytes, Exposed, float]] = {}
        self._idle: Final = asyncio.Event()
        self._idle.set()

    def begin(self, request: FetchRequest, exposed: Exposed) -> None:
        """Remember a tensor that is being sent. Raises ``ProtocolViolation`` for an odd offset."""
        if exposed.failure is not None:
            return
        if request.offset > exposed.spec.nbytes or request.request in self._begun:
            raise ProtocolViolation(f"a fetch from byte {request.offset:,} of {exposed.spec}")
        now = time.monotonic()
        # A peer that gave up without a word must not hold tensors here for as long as it stays.
        for first in [*self._begun][:2]:
            if self._begun[first][2] < now - self._seconds:
                del self._begun[first]
        self._begun[request.request] = (request.transfer, exposed, now)
        self._idle.clear()

    def arrived(self, request: FetchRequest) -> bool:
        """Whether this says that a tensor has arrived whole, which is then forgotten."""
        begun = self._begun.get(request.request)
        if begun is None:
            return False
        transfer, exposed, _ = begun
        if (request.transfer, request.offset) != (transfer, exposed.spec.nbytes):
            raise ProtocolViolation(f"fetch {request.request} was begun before")
        self._forget(request.request)
        return True

    def give_up(self, request: FetchRequest) -> None:
        """Forget a tensor that could not be sent."""
        self._forget(request.request)

    async def finished(self) -> None:
        """Wait until the peer has all that it was being sent."""
        await self._idle.wait()

    def _forget(self, request: int) -> None:
        self._begun.pop(request, None)
        if not self._begun:
            self._idle.set()

    def expose_again(self) -> None:
        """Let what did not arrive be fetched once more, for a while: the connection has ended."""
        for transfer, exposed, _ in self._begun.values():
            with contextlib.suppress(QuotaExceeded):
                self._transfers.expose(
                    (self._dialect, transfer),
                    exposed,
                    owner=self,
                    count=1,
                    expires_seconds=self._seconds,
                    is_secret=False,
                )
        self._begun.clear()
