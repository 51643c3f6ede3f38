"""Where is the fastest masking of WebSocket payloads that this installation has?"""

from __future__ import annotations

try:
    from websockets.speedups import apply_mask
except ImportError:  # no compiled wheel for this platform
    from websockets.utils import apply_mask

__all__ = ["apply_mask"]
