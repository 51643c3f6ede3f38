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
    "is_secret",
    "new_transfer_id",
    "new_transfer_number",
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

# Burn 0.21 names transfers by numbers, which its own client counts up from 0. Those that we draw
# for a move to or from such a server are not below this, and cannot be guessed.
SECRET_NUMBERS: Final = 2**63


def new_transfer_id() -> TransferId:
    """Draw a transfer id: 256 bits from the operating system's random source."""
    return TransferId(secrets.token_bytes(TRANSFER_ID_BYTES))


def new_transfer_number() -> int:
    """Draw a transfer id for servers that speak Burn 0.21: 63 random bits."""
    return SECRET_NUMBERS + secrets.randbits(63)


def is_secret(transfer: bytes | int) -> bool:
    """Whether a transfer id was drawn at random, so that whoever knows it was told."""
    return not isinstance(transfer, int) or transfer >= SECRET_NUMBERS
