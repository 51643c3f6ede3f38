"""Links: connections that carry whole frames between two ends, whatever the frames contain.

``interface`` defines the two kinds of link. ``websocket`` implements both; ``memory`` connects two
ends inside one process.
"""

from burn_remote_protocol.links.interface import AsyncLink, BlockingLink

__all__ = ["AsyncLink", "BlockingLink"]
