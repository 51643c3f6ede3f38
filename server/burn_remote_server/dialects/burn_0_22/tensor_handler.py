"""The source's end of a stream over which another server fetches one tensor, over Iroh."""

from __future__ import annotations

import asyncio

from burn_remote_protocol.dialects.burn_0_21_responses import encode_data
from burn_remote_protocol.dialects.burn_0_22_iroh import (
    bound_transfer,
    decode_tensor_request,
    encode_denial,
)
from burn_remote_protocol.errors import BurnRemoteError, ConnectionLost, OperationFailed
from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_protocol.tensors import TensorData
from burn_remote_server.dialects.burn_0_21.socket_handlers import POLICY_VIOLATION
from burn_remote_server.hosting.host import Device, Host
from burn_remote_server.telemetry.logs import get_logger
from burn_remote_server.tensors.exposed_tensors import BURN
from burn_remote_server.transfers.throughput_watchdog import watch_reader

__all__ = ["serve_tensor"]

logger = get_logger(__name__)


async def serve_tensor(link: AsyncLink, device: Device, _token: str | None, _address: str) -> None:
    """Answer one request. No token is needed: the capability is secret and bound to a key."""
    host = device.host
    try:
        async with asyncio.timeout(host.settings.handshake_timeout_seconds):
            capability = decode_tensor_request(await link.receive())
        transfer = bound_transfer(capability, bytes.fromhex(link.peer_host))
        try:
            await _send(link, host, transfer)
        except OperationFailed as error:
            await link.send(encode_denial(str(error)))
    except ConnectionLost:
        pass  # the other server has given up
    except (BurnRemoteError, TimeoutError) as error:
        reason = str(error) or "no request arrived in time"
        logger.warning("transfer refused", peer=link.peer, reason=reason)
        await link.close(POLICY_VIOLATION, reason)


async def _send(link: AsyncLink, host: Host, transfer: int) -> None:
    """Wait for the tensor and send it. Raises ``OperationFailed`` if there will be none."""
    exposed = await host.waiting_peers.exposed((BURN, transfer), peer_host=link.peer_host)
    if exposed.failure is not None:
        raise exposed.failure.with_traceback(None)
    spec = exposed.spec
    elements = await asyncio.to_thread(exposed.backend.to_bytes, exposed.array, spec.dtype)
    buffers = encode_data(TensorData(elements, spec.shape, spec.dtype))
    sending = asyncio.ensure_future(link.send_buffers(buffers))
    try:
        await watch_reader(
            sending, link.peer, host.settings.fetch_timeout_seconds, lambda: link.sent_bytes
        )
        sending.result()
        host.counters.peer_sent_bytes += sum(map(len, buffers))
    finally:
        sending.cancel()
        await asyncio.wait([sending])
        if not sending.cancelled():
            sending.exception()  # mark as retrieved; asyncio logs unretrieved exceptions
