"""The routes of the native dialect: ``/session`` for clients and ``/transfer`` for peers."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_server.dialects.native.attachments import Attachments
from burn_remote_server.dialects.native.peer_pump import serve_peer
from burn_remote_server.dialects.native.session_pump import serve_session
from burn_remote_server.dialects.route import Route
from burn_remote_server.hosting.host import Device

__all__ = ["native_routes"]


def native_routes() -> Mapping[str, Route]:
    """Return the native routes of one process, with a registry of its native sessions."""
    attachments = Attachments()

    def serve_client(
        link: AsyncLink, device: Device, token: str | None, _address: str
    ) -> Awaitable[None]:
        def admitted() -> None:
            link.limit_messages(device.host.settings.max_message_bytes)
            link.count_received(device.host_memory, device.host.settings.fetch_timeout_seconds)
            link.keep_alive(device.host.settings.heartbeat_seconds)

        return serve_session(link, device, attachments, token, admitted)

    def serve_transfer(
        link: AsyncLink, device: Device, _token: str | None, _address: str
    ) -> Awaitable[None]:
        # Detects a peer that stops responding: its fetch would keep the exposed tensor in memory.
        link.keep_alive(device.host.settings.peer_beat_seconds)
        return serve_peer(link, device.host)

    return {
        "session": Route(serve_client),
        "transfer": Route(serve_transfer, is_for_peers=True),
    }
