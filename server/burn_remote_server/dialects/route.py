"""A WebSocket route of a dialect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_server.hosting.host import Device

__all__ = ["Route", "Serve"]

# serve(link, device, token, address): serves one connection until it ends. ``token`` is the one in
# the path; ``address`` is the one by which the client called this server, with the route.
Serve = Callable[[AsyncLink, Device, str | None, str], Awaitable[None]]


class Route(NamedTuple):
    """How to serve the connections of one path."""

    serve: Serve
    # Peers keep their connections open for the next tensor, so these do not end with the sessions.
    is_for_peers: bool = False
