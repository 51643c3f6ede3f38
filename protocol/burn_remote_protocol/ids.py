"""Which things have identifiers, who draws them, and how large are they?"""

from __future__ import annotations

import secrets
from typing import Final, NewType

__all__ = [
    "MAX_ID",
    "PayloadId",
    "RequestId",
    "SessionId",
    "TensorId",
    "TransferId",
    "new_transfer_id",
]

# Drawn by the client, counted up, private to its session (u64).
TensorId = NewType("TensorId", int)
# Drawn by the client for each question that wants an answer (u64).
RequestId = NewType("RequestId", int)
# Drawn by whoever sends a payload in chunks: a tensor id going up, a request id coming down (u64).
PayloadId = NewType("PayloadId", int)
# Drawn by the server in the native dialect, by the client in Burn's (u64).
SessionId = NewType("SessionId", int)
# Drawn by the client. Whoever knows it may fetch the tensor: 32 random bytes cannot be guessed.
TransferId = NewType("TransferId", bytes)

MAX_ID: Final = 2**64 - 1
TRANSFER_ID_BYTES: Final = 32


def new_transfer_id() -> TransferId:
    """Draw a transfer id: 256 bits from the operating system's random source."""
    return TransferId(secrets.token_bytes(TRANSFER_ID_BYTES))
