"""Fetches from servers that speak Burn 0.21, over their ``/data`` route.

A connection carries one request and one response at a time. Burn reuses transfer ids, so each
session sends its requests to an address in order; sessions do not wait for each other. These
connections send no pings, because Burn's server does not survive one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit

from burn_remote_protocol.dialects.bounded_unpacking import Steps
from burn_remote_protocol.dialects.burn_0_21_responses import (
    decode_data,
    decode_data_in_steps,
    encode_data_request,
)
from burn_remote_protocol.errors import BurnRemoteError, TransferFailed
from burn_remote_protocol.links.addresses import named_address
from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_protocol.messages import Fetch
from burn_remote_protocol.tensors import TensorData, TensorSpec
from burn_remote_server.backends.interface import Backend
from burn_remote_server.telemetry.counters import Counters
from burn_remote_server.transfers.throughput_watchdog import receive_watched

__all__ = ["MESSAGE_OVERHEAD_BYTES", "BurnPeers", "Decoding", "is_expected"]

T = TypeVar("T")

# Upper bound of a message's size in addition to the tensor's elements.
MESSAGE_OVERHEAD_BYTES: Final = 4096

# Most connections: one per pair of a fetching session and an address. A party may open another one
# only while it has fewer than are free, so one party has at most half of them.
MAX_CONNECTIONS: Final = 512

# How long an unused connection stays open. Opening a new one takes about a millisecond.
IDLE_SECONDS: Final = 10.0

# Longer messages are decoded in turns, as long frames of sessions are.
LONG_MESSAGE_BYTES: Final = 64 * 1024

# dial(address, route, max_message_bytes, party): opens a link for the clients of a party.
Dial = Callable[[str, str, int, str], Awaitable[AsyncLink]]


class Decoding(Protocol):
    """Turns of all sessions of a process for long decoding on the event loop."""

    async def run(self, steps: Steps[T]) -> T:
        """Wait for a turn, run the steps with pauses, and return their result."""
        ...


class _PeerLink:
    """The connection of one session to one address, for one fetch at a time."""

    def __init__(self, party: str) -> None:
        self.party: Final = party  # that of the session
        self.lock: Final = asyncio.Lock()
        self.users = 0
        self.link: AsyncLink | None = None
        self.idle: asyncio.TimerHandle | None = None


class BurnPeers:
    """All connections to ``/data`` of other servers. Belongs to the event loop's thread."""

    def __init__(
        self,
        dial: Dial,
        stall_seconds: float,
        counters: Counters,
        decoding: Decoding | None = None,
    ) -> None:
        """Without ``decoding``, long messages are decoded at once."""
        self._decoding: Final = decoding
        self._dial: Final = dial
        self._stall_seconds: Final = stall_seconds
        self._counters: Final = counters
        self._links: dict[tuple[int, str], _PeerLink] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def fetch(
        self, owner: object, backend: Backend, task: Fetch, max_tensor_bytes: int, party: str = ""
    ) -> Any:
        """Fetch a tensor that a peer exposes, in the order of the owner's fetches.

        ``party`` is that of ``Host.open_fetches``.

        Raises ``TransferFailed``.
        """
        address = _with_port(task.address)
        key = (id(owner), address)
        peer_link = self._links.get(key)
        if peer_link is None:
            own = sum(link.party == party for link in self._links.values())
            if own >= MAX_CONNECTIONS - len(self._links):
                raise TransferFailed(
                    f"{len(self._links)} connections to Burn servers are open, of "
                    f"{MAX_CONNECTIONS} at most, and this client may open no more; "
                    "try again later"
                )
            peer_link = self._links[key] = _PeerLink(party)
        peer_link.users += 1
        try:
            async with peer_link.lock:
                data = await self._ask(peer_link, address, int(task.transfer), max_tensor_bytes)
        except TransferFailed:
            raise
        except TimeoutError:
            source = named_address(task.address)
            raise TransferFailed(f"{source} did not answer in time") from None
        except BurnRemoteError as error:
            source = named_address(task.address)
            raise TransferFailed(f"cannot fetch from {source}: {error}") from error
        finally:
            peer_link.users -= 1
            self._retire(key, peer_link)
        if task.spec is not None and not is_expected(task.spec, data.spec):
            raise TransferFailed(f"the source exposed {data.spec}, expected {task.spec}")
        return await asyncio.to_thread(backend.to_device, data)

    async def _ask(
        self, peer_link: _PeerLink, address: str, transfer: int, max_tensor_bytes: int
    ) -> TensorData:
        # Removed while in use: after a failure, a late response could be mistaken for the response
        # to the next request.
        link, peer_link.link = peer_link.link, None
        max_message_bytes = max_tensor_bytes + MESSAGE_OVERHEAD_BYTES
        if link is None:
            link = await self._dial(address, "/data", max_message_bytes, peer_link.party)
        try:
            await link.send(encode_data_request(transfer))
            frame = await receive_watched(link, self._stall_seconds, max_message_bytes)
            if self._decoding is not None and len(frame) > LONG_MESSAGE_BYTES:
                data = await self._decoding.run(decode_data_in_steps(frame))
            else:
                data = decode_data(frame)
        except BaseException:
            self._close(link)
            raise
        self._counters.peer_received_bytes += len(frame)
        peer_link.link = link
        return data

    def _retire(self, key: tuple[int, str], peer_link: _PeerLink) -> None:
        """Schedule the close of a connection that is no longer in use."""
        if peer_link.idle is not None:
            peer_link.idle.cancel()
            peer_link.idle = None
        if peer_link.users:
            return
        if peer_link.link is None:
            self._links.pop(key, None)
            return

        def end() -> None:
            self._links.pop(key, None)
            if peer_link.link is not None:
                self._close(peer_link.link)

        peer_link.idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, end)

    def _close(self, link: AsyncLink) -> None:
        closing = asyncio.ensure_future(link.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all connections."""
        links, self._links = self._links, {}
        for peer_link in links.values():
            if peer_link.idle is not None:
                peer_link.idle.cancel()
            if peer_link.link is not None:
                self._close(peer_link.link)
        if self._closing:
            await asyncio.wait([*self._closing])


def is_expected(expected: TensorSpec, seen: TensorSpec) -> bool:
    """Whether a tensor has the expected shape and dtype; all bool dtypes are equivalent."""
    both_bools = expected.dtype.is_bool and seen.dtype.is_bool
    return expected.shape == seen.shape and (expected.dtype is seen.dtype or both_bools)


def _with_port(address: str) -> str:
    """Return an address with its port; without one, with the default port of Burn's client."""
    parts = urlsplit(address)
    try:
        if parts.port is not None or not parts.hostname:
            return address
    except ValueError:
        return address  # malformed; refused when it is parsed
    port = 443 if parts.scheme == "wss" else 80
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port}{parts.path}"
