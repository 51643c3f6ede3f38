"""Links: connections that carry whole frames between two ends, whatever the frames contain.

``interface`` defines links for threads and links for event loops, ``transport_interface`` how they
are opened and accepted. ``websocket`` and ``iroh`` implement both, ``transport_registry`` chooses
one of them by address scheme, and ``checksummed_links`` adds checksums to any link.
"""

from burn_remote_protocol.links.interface import AsyncLink, BlockingLink

__all__ = ["AsyncLink", "BlockingLink"]
