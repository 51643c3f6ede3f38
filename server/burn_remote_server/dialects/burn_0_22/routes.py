"""The sessions of Burn 0.22, which have no route of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_server.dialects.burn_0_22.local_groups import LocalGroups
from burn_remote_server.dialects.burn_0_22.local_transfers import LocalClients
from burn_remote_server.dialects.burn_0_22.session_handler import serve_burn_session
from burn_remote_server.hosting.host import Device

__all__ = ["burn_0_22_sessions"]


def burn_0_22_sessions() -> Callable[[AsyncLink, Device, str | None, str, bytes], Awaitable[None]]:
    """Return the handler of the Burn 0.22 sessions of one process.

    ``serve(link, device, token, address, first)`` serves a connection whose first frame has
    arrived.
    """
    clients, groups = LocalClients(), LocalGroups()

    def serve(
        link: AsyncLink, device: Device, token: str | None, address: str, first: bytes
    ) -> Awaitable[None]:
        return serve_burn_session(link, device.host, clients, groups, token, address, first)

    return serve
