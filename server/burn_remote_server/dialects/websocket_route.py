"""A WebSocket route of a dialect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_server.hosting.host import Device

__all__ = ["Route", "Serve"]

# serve(link, device, token, address): serves one connection until it ends. ``token`` is the token
# in the path; ``address`` is the address at which the client reached this server, without the
# route.
Serve = Callable[[AsyncLink, Device, str | None, str], Awaitable[None]]


class Route(NamedTuple):
    """The handler of one path's connections."""

    serve: Serve
    # Peers keep their connections open for later tensors, so these connections outlive sessions.
    is_for_peers: bool = False
