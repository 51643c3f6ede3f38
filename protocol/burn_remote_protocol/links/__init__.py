"""Links carry whole frames between two ends; what is in a frame, they do not know.

``interface`` has the two contracts. ``websocket_blocking`` and ``memory`` serve threads,
``websocket_asyncio`` and ``memory`` serve event loops.
"""

from burn_remote_protocol.links.interface import AsyncLink, BlockingLink

__all__ = ["AsyncLink", "BlockingLink"]
