"""WebSocket frame headers and masking (RFC 6455, section 5)."""

from __future__ import annotations

from typing import Final

import numpy as np

try:
    from websockets.speedups import apply_mask
except ImportError:  # this platform has no compiled wheel
    from websockets.utils import apply_mask

__all__ = [
    "BINARY",
    "CLOSE",
    "CONTINUATION",
    "CONTROL_BIT",
    "FINAL_BIT",
    "LENGTH_16",
    "LENGTH_16_LIMIT",
    "LENGTH_64",
    "MASK_BIT",
    "MAX_OPCODE",
    "OPCODE_BITS",
    "PING",
    "RESERVED_BITS",
    "TEXT",
    "apply_mask",
    "frame_header",
    "unmask_in_place",
]

# The first byte: one bit for the last fragment, three reserved bits, four bits of opcode.
FINAL_BIT: Final = 0x80
RESERVED_BITS: Final = 0x70
OPCODE_BITS: Final = 0x0F

CONTINUATION: Final = 0x00
TEXT: Final = 0x01
BINARY: Final = 0x02
CLOSE: Final = 0x08
PING: Final = 0x09
CONTROL_BIT: Final = 0x08  # set in the opcodes of close, ping and pong
MAX_OPCODE: Final = 0x0A

# The second byte: the mask bit and seven bits of length. Two lengths say that the real one follows
# in 16 or 64 bits.
MASK_BIT: Final = 0x80
LENGTH_16: Final = 126
LENGTH_64: Final = 127
LENGTH_16_LIMIT: Final = 2**16


def frame_header(first: int, length: int, mask_bit: int = 0) -> bytes:
    """Return a frame's header up to its length; a masked frame's key follows it."""
    if length < LENGTH_16:
        return bytes((first, mask_bit | length))
    if length < LENGTH_16_LIMIT:
        return bytes((first, mask_bit | LENGTH_16)) + length.to_bytes(2, "big")
    return bytes((first, mask_bit | LENGTH_64)) + length.to_bytes(8, "big")


def unmask_in_place(payload: memoryview, key: bytes) -> None:
    """Apply a masking key to writable bytes, as ``apply_mask`` does to a copy of them."""
    elements = np.frombuffer(payload, np.uint8)
    # NumPy is seven times as slow on unaligned words.
    start = min(len(payload), -elements.ctypes.data % 8)
    middle = (len(payload) - start) // 8 * 8
    elements[:start] ^= np.frombuffer(2 * key, np.uint8)[:start]
    turned = (key[start % 4 :] + key[: start % 4]) * 2
    words = elements[start : start + middle].view(np.uint64)
    words ^= np.frombuffer(turned, np.uint64)
    rest = elements[start + middle :]
    rest ^= np.frombuffer(turned, np.uint8)[: len(rest)]
