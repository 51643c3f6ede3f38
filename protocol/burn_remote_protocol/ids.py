"""Identifiers: their types, who creates them, and their sizes."""

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

# Counted up by the client; private to its session (u64).
TensorId = NewType("TensorId", int)
# Counted up by the client for each request that has a reply (u64).
RequestId = NewType("RequestId", int)
# Set by the sender of chunks: a tensor id in an upload, a request id in a reply (u64).
PayloadId = NewType("PayloadId", int)
# Drawn by the server in the native dialect, by the client in Burn's dialect (u64).
SessionId = NewType("SessionId", int)
# Drawn by the client. Whoever knows it may fetch the tensor: 32 random bytes cannot be guessed.
TransferId = NewType("TransferId", bytes)

MAX_ID: Final = 2**64 - 1
TRANSFER_ID_BYTES: Final = 32

# Burn's servers identify transfers by numbers. Burn 0.21's client counts them up from 0. That of
# Burn 0.22, and ours, draw them at random. A client that counts does not reach this number in years
# of moves, and only one of 16 million random numbers of 64 bits is smaller.
SECRET_NUMBERS: Final = 2**40

# Servers of earlier versions of this project take only such numbers for random ones.
DRAWN_NUMBERS: Final = 2**63


def new_transfer_id() -> TransferId:
    """Draw a transfer id: 256 bits from the operating system's random source."""
    return TransferId(secrets.token_bytes(TRANSFER_ID_BYTES))


def new_transfer_number() -> int:
    """Draw a transfer id for servers that speak Burn 0.21: 63 random bits."""
    return DRAWN_NUMBERS + secrets.randbits(63)


def is_secret(transfer: bytes | int) -> bool:
    """Whether a transfer id was drawn at random, so that nobody can guess it."""
    return not isinstance(transfer, int) or transfer >= SECRET_NUMBERS
