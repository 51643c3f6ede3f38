"""Does what another server sends come fast enough, or is it given up?

A tensor may take as long as it takes while its connection carries enough; so what several tensors
share is not held against each of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from burn_remote_protocol.errors import TransferFailed

__all__ = ["Moment", "Turns", "paced"]

# What a peer must send once its answer has begun, on average over each stall time. Larger: tensors
# over slow networks are given up. Smaller: a peer that trickles is kept for longer.
SLOWEST_BYTES_PER_SECOND: Final = 64 * 2**10

# What a tensor may be behind in its turns: a chunk, and what was on its way of others that nobody
# wants any more. Larger: a tensor that its source forgot, among others that come, is found later.
# Smaller: one is given up behind the buffers of a fast network.
BEHIND_BYTES: Final = 16 * 2**20


async def paced(
    done: asyncio.Future[Any],
    peer: str,
    stall_seconds: float,
    *,
    has_begun: Callable[[], bool],
    arrived: Callable[[], int],
    allowed: Callable[[], int],
) -> None:
    """Wait until ``done``, for any time while the peer keeps the pace.

    ``has_begun`` tells whether the answer has, ``arrived`` how many bytes the connection has
    brought, and ``allowed`` how many it may have brought by now.

    Raises ``TransferFailed`` when no answer begins within the stall time, when less than
    ``SLOWEST_BYTES_PER_SECOND`` comes in one of those that follow, and when more has come than is
    allowed: pings, or nothing of the tensor.
    """
    within = f"from {peer} within {stall_seconds:g} seconds"
    floor = SLOWEST_BYTES_PER_SECOND * stall_seconds
    first = arrived()
    await asyncio.wait([done], timeout=stall_seconds)
    if not done.done() and not has_begun():
        raise TransferFailed(f"nothing arrived {within}")
    while not done.done():
        seen = arrived()
        if seen > allowed():
            raise TransferFailed(f"{seen - first:,} bytes came from {peer} without the tensor")
        # A whole interval: the answer may have begun at any time of the one before.
        await asyncio.wait([done], timeout=stall_seconds)
        came = arrived() - seen
        if done.done():
            return
        if not came:
            raise TransferFailed(f"nothing arrived {within}")
        if came < floor:
            raise TransferFailed(
                f"too little arrived {within}: {came:,} bytes, {floor:,.0f} expected"
            )


class Moment(NamedTuple):
    """What has come over a connection by now, and of one of its tensors; how many tensors are on
    their way, and how many have been since it opened."""

    arrived: int
    received: int
    running: int
    begun: int


class Turns:
    """How much a connection may bring while one of its tensors gets its turns.

    A source sends a chunk of each in turns. So of ``n`` tensors each has got an ``n``-th of what
    came, but for what it may be behind; half of that is asked for.
    """

    def __init__(self) -> None:
        self._since: Moment | None = None

    def allowed(self, now: Moment) -> int:
        """Return how many bytes the connection may have brought by now."""
        since = self._since
        if since is None or now.received - since.received >= BEHIND_BYTES:
            self._since = since = now
        sharing = since.running + now.begun - since.begun
        return since.arrived + 2 * sharing * (now.received - since.received + BEHIND_BYTES)
