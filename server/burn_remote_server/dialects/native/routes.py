"""The routes of the native dialect: ``/session`` for clients and ``/transfer`` for peers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from burn_remote_protocol.dialects.burn_0_22 import is_burn_frame
from burn_remote_protocol.errors import BurnRemoteError
from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_server.dialects.native.handshake import receive_first, refuse
from burn_remote_server.dialects.native.peer_handler import serve_peer
from burn_remote_server.dialects.native.session_attachments import Attachments
from burn_remote_server.dialects.native.session_handler import serve_session
from burn_remote_server.dialects.websocket_route import Route
from burn_remote_server.hosting.host import Device

__all__ = ["URGENT_CHUNK_BYTES", "native_routes"]

# Messages of up to this size find room in a full pool: those with a chunk of an upload, for whose
# elements the pool has reserved memory.
URGENT_CHUNK_BYTES: Final = 4 * 2**20


# serve(link, device, token, address, first): serves a session whose first frame is not of the
# native dialect.
ServeForeign = Callable[[AsyncLink, Device, str | None, str, bytes], Awaitable[None]]


def native_routes(serve_foreign: ServeForeign | None = None) -> Mapping[str, Route]:
    """Return the native routes of one process, with a registry of its native sessions.

    Clients of Burn 0.22 use the path ``/session`` too; ``serve_foreign`` serves them.
    """
    attachments = Attachments()

    async def serve_client(
        link: AsyncLink, device: Device, token: str | None, address: str
    ) -> None:
        try:
            first = await receive_first(link, device.host)
        except BurnRemoteError as error:
            device.host.counters.sessions_refused += 1
            await refuse(link, error)
            return
        if serve_foreign is not None and is_burn_frame(first):
            await serve_foreign(link, device, token, address, first)
            return

        def admitted() -> None:
            link.limit_messages(device.host.settings.max_message_bytes)
            stall_seconds = device.host.settings.fetch_timeout_seconds
            link.count_received(device.host_memory, stall_seconds, URGENT_CHUNK_BYTES)
            link.keep_alive(device.host.settings.heartbeat_seconds)

        await serve_session(link, device, attachments, token, admitted, first)

    def serve_transfer(
        link: AsyncLink, device: Device, _token: str | None, _address: str
    ) -> Awaitable[None]:
        # Pings detect a peer that stops responding, whose fetch would keep the exposed tensor in
        # memory.
        link.keep_alive(device.host.settings.peer_beat_seconds)
        return serve_peer(link, device.host)

    return {
        "session": Route(serve_client),
        "transfer": Route(serve_transfer, is_for_peers=True),
    }
