"""The routes of Burn 0.21: ``/request`` and ``/response`` for clients, ``/data`` for peers."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Mapping

from burn_remote_protocol.errors import HandshakeRefused
from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_server.dialects.burn_0_21.idle_connections import IdleConnections
from burn_remote_server.dialects.burn_0_21.socket_handlers import (
    serve_data,
    serve_request,
    serve_response,
)
from burn_remote_server.dialects.burn_0_21.two_socket_sessions import (
    BurnSessions,
    urgent_bytes,
)
from burn_remote_server.dialects.websocket_route import Route
from burn_remote_server.hosting.host import Device

__all__ = ["burn_0_21_routes"]


def burn_0_21_routes() -> Mapping[str, Route]:
    """Return the Burn 0.21 routes of one process, with a registry of its Burn sessions."""
    sessions = BurnSessions()
    idle = IdleConnections()

    def serve_requests(
        link: AsyncLink, device: Device, token: str | None, address: str
    ) -> Awaitable[None]:
        # Burn's client sends its first tensors right after its Init, so large messages are allowed
        # before the session opens, but only to clients with a valid token.
        with contextlib.suppress(HandshakeRefused):
            device.host.access.admit(token)
            link.limit_messages(device.host.settings.max_message_bytes)
            link.count_received(
                device.host_memory,
                device.host.settings.fetch_timeout_seconds,
                urgent_bytes(device.host_memory),
            )
        return serve_request(link, device, sessions, token, address)

    def serve_responses(
        link: AsyncLink, device: Device, token: str | None, address: str
    ) -> Awaitable[None]:
        return serve_response(link, device, sessions, token, address)

    def serve_peer(
        link: AsyncLink, device: Device, token: str | None, address: str
    ) -> Awaitable[None]:
        link.count_received(device.host_memory, device.host.settings.fetch_timeout_seconds)
        return serve_data(link, device, token, address, idle)

    return {
        "request": Route(serve_requests),
        "response": Route(serve_responses),
        "data": Route(serve_peer, is_for_peers=True),
    }
