"""Tensors that a server keeps for all sessions of a token: their digests, and their names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgpack

from burn_remote_protocol.tensors import TensorSpec

if TYPE_CHECKING:
    from hashlib import _Hash

__all__ = [
    "CONTENT_DIGEST_BYTES",
    "MAX_PUBLISHED",
    "MAX_PUBLISHED_NAME_BYTES",
    "content_hash",
    "is_published_name",
]

CONTENT_DIGEST_BYTES: Final = 32

# The most names of one token: with the longest names and shapes, all fit into one message.
MAX_PUBLISHED: Final = 512
MAX_PUBLISHED_NAME_BYTES: Final = 255  # as in most file systems

_LABEL: Final = b"burn-remote content 1\0"


def content_hash(specs: Iterable[TensorSpec]) -> _Hash:
    """Return a hash object for a content; the caller adds the elements to it, tensor by tensor.

    A content is a sequence of tensors. Its digest is the SHA-256 (FIPS 180-4) of a label, the specs
    in MessagePack as in a ``KeepContent``, and the elements in C order, little-endian. Processors
    have instructions for SHA-256: it reached 1.1 GB/s, and BLAKE2b 0.36 GB/s.
    """
    wire = [[list(spec.shape), spec.dtype.wire] for spec in specs]
    return hashlib.sha256(_LABEL + msgpack.packb(wire))


def is_published_name(name: str) -> bool:
    """Whether a text can name a published tensor: printable, 1 to 255 bytes of UTF-8."""
    return name.isprintable() and 0 < len(name.encode()) <= MAX_PUBLISHED_NAME_BYTES
