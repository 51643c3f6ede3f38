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
    "exposing_session",
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
# Drawn by the client in the dialect of Burn 0.21, by the server in the others (u64).
SessionId = NewType("SessionId", int)
# Drawn by the client. Whoever knows it may fetch the tensor. At least 16 bytes of it are random, so
# nobody can guess it.
TransferId = NewType("TransferId", bytes)

MAX_ID: Final = 2**64 - 1
TRANSFER_ID_BYTES: Final = 32

# A transfer id that begins with this label names the session that exposes the tensor: its number
# follows, 8 bytes, big-endian, and 16 random bytes. A random id begins with it once in 2⁶⁴.
SESSION_LABEL: Final = b"session\0"
SESSION_END: Final = len(SESSION_LABEL) + 8

# Burn's servers identify transfers by numbers. Burn 0.21's client counts them up from 0. The
# clients of Burn 0.22 and of this project draw them at random. A client that counts does not reach
# this number in years of moves, and only one of 16 million random numbers of 64 bits is smaller.
SECRET_NUMBERS: Final = 2**40

# Our clients draw numbers that are at least this large: servers of earlier versions of this project
# treat smaller numbers as counted ones.
DRAWN_NUMBERS: Final = 2**63


def new_transfer_id(session: int | None = None) -> TransferId:
    """Draw a transfer id from the operating system's random source.

    ``session`` is the number of the native session that will expose the tensor. Its server then
    fails fetches at once if that session has ended.
    """
    named = b"" if session is None else SESSION_LABEL + session.to_bytes(8, "big")
    return TransferId(named + secrets.token_bytes(TRANSFER_ID_BYTES - len(named)))


def exposing_session(transfer: bytes | int) -> int | None:
    """Return the session that a transfer id names, or ``None``."""
    if isinstance(transfer, int) or not transfer.startswith(SESSION_LABEL):
        return None
    return int.from_bytes(transfer[len(SESSION_LABEL) : SESSION_END], "big")


def new_transfer_number() -> int:
    """Draw a transfer id for servers that speak Burn 0.21: 63 random bits."""
    return DRAWN_NUMBERS + secrets.randbits(63)


def is_secret(transfer: bytes | int) -> bool:
    """Whether a transfer id was drawn at random, so that nobody can guess it."""
    return not isinstance(transfer, int) or transfer >= SECRET_NUMBERS
