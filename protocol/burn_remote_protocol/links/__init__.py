"""Links: connections that carry whole frames between two ends, whatever the frames contain.

``interface`` defines links for threads and links for event loops. ``transport_registry`` opens them
by address scheme, ``websocket`` implements both, and ``checksummed_links`` adds checksums to them.
"""

from burn_remote_protocol.links.interface import AsyncLink, BlockingLink

__all__ = ["AsyncLink", "BlockingLink"]
