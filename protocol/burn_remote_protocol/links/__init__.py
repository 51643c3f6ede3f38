"""Links: connections that carry whole frames between two ends, whatever the frames contain.

``interface`` defines links for threads and links for event loops. ``transports`` opens them by
address scheme, ``websocket`` implements both, and ``checked`` adds checksums to them.
"""

from burn_remote_protocol.links.interface import AsyncLink, BlockingLink

__all__ = ["AsyncLink", "BlockingLink"]
