"""Fetches from servers that speak Burn 0.22 over Iroh.

Each fetch has a connection of its own, on which the source sees this server's key: it gives a
tensor only to the server that its client named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from burn_remote_protocol.dialects.burn_0_22_iroh import (
    decode_tensor_response,
    encode_tensor_request,
)
from burn_remote_protocol.errors import BurnRemoteError, TransferFailed
from burn_remote_protocol.links.addresses import Address, named_address
from burn_remote_protocol.links.interface import Memory
from burn_remote_protocol.links.transport_interface import KeyedListener
from burn_remote_protocol.links.transport_registry import connect_async
from burn_remote_protocol.messages import Fetch
from burn_remote_protocol.tensors import TensorData
from burn_remote_server.access.fair_places import FairPlaces
from burn_remote_server.access.peer_rules import PeerRules
from burn_remote_server.backends.interface import Backend
from burn_remote_server.telemetry.counters import Counters
from burn_remote_server.transfers.burn_peer_fetches import MESSAGE_OVERHEAD_BYTES
from burn_remote_server.transfers.throughput_watchdog import receive_watched

__all__ = ["IrohFetches"]

# Most fetches at the same time. Further fetches wait.
MAX_FETCHES: Final = 128


class IrohFetches:
    """All fetches over Iroh of one process. Belongs to the event loop's thread."""

    def __init__(
        self,
        rules: PeerRules,
        listener: Callable[[], KeyedListener | None],
        connect_seconds: float,
        stall_seconds: float,
        counters: Counters,
        memory: Memory | None,
    ) -> None:
        self._rules: Final = rules
        self._listener: Final = listener
        self._connect_seconds: Final = connect_seconds
        self._stall_seconds: Final = stall_seconds
        self._counters: Final = counters
        self._memory: Final = memory
        self._places: Final = FairPlaces(MAX_FETCHES)
        self._ended: Final = asyncio.Condition()

    async def fetch(
        self, backend: Backend, task: Fetch, max_tensor_bytes: int, party: str = ""
    ) -> Any:
        """Fetch a tensor and return its array. Raises ``TransferFailed``."""
        target = self._rules.check_iroh(task.address)
        listener = self._listener()
        if listener is None:
            raise TransferFailed(
                f"this server cannot fetch from {target}, because it does not listen on Iroh "
                "itself; start it with --iroh-port"
            )
        await self._begin(party)
        try:
            data = await self._ask(target, listener, int(task.transfer), max_tensor_bytes)
        except TransferFailed:
            raise
        except (BurnRemoteError, TimeoutError) as error:
            source = named_address(task.address)
            reason = str(error) or "it did not answer in time"
            raise TransferFailed(f"cannot fetch from {source}: {reason}") from error
        finally:
            await self._end(party)
        return await asyncio.to_thread(backend.to_device, data)

    async def _begin(self, party: str) -> None:
        async with self._ended:
            await self._ended.wait_for(lambda: self._places.take(party))

    async def _end(self, party: str) -> None:
        self._places.give_back(party)
        async with self._ended:
            self._ended.notify_all()

    async def _ask(
        self, target: Address, listener: KeyedListener, transfer: int, max_tensor_bytes: int
    ) -> TensorData:
        max_message_bytes = max_tensor_bytes + MESSAGE_OVERHEAD_BYTES
        link = await connect_async(
            target.uri,
            "/tensor",
            timeout_seconds=self._connect_seconds,
            max_message_bytes=max_message_bytes,
            speaks_burn=True,
            identity=listener,
        )
        try:
            if self._memory is not None:
                link.count_received(self._memory, self._stall_seconds)
            await link.send(encode_tensor_request(transfer))
            frame = await receive_watched(link, self._stall_seconds, max_message_bytes)
        finally:
            await link.close()
        self._counters.peer_received_bytes += len(frame)
        return decode_tensor_response(frame)
