"""Proofs by which two servers show each other that both hold the same peer token.

The target, which dials, and the source, which is dialled, each draw a nonce. Each side then sends
an HMAC-SHA256 under a key derived from the token, over everything that the two have agreed on:

- both nonces, so that a recorded proof is worthless on any other connection;
- a label per role, so that a proof cannot be sent back to the side that made it;
- the versions offered and the version chosen, so that neither can be changed on the way;
- the address that the target dialled, against a man in the middle: the source refuses a proof that
  names another server's address.

Both sides also derive a key from the exchange, under which the target signs each fetch with its
transfer id. A man in the middle that relays an authenticated connection can therefore not insert
fetches.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

__all__ = [
    "NONCE_BYTES",
    "PROOF",
    "PROOF_BYTES",
    "PROOF_SETTING",
    "TAG_BYTES",
    "FetchSigner",
    "Transcript",
    "fetch_signer",
    "find_key",
    "peer_key",
    "source_proof",
    "target_proof",
]

# Setting in ``Hello``: the target offers to prove its peer token.
PROOF_SETTING: Final = "peer_proof"
PROOF: Final = "hmac-sha256"

NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
# 128 bits are enough: an attacker has one attempt per connection.
TAG_BYTES: Final = 16

_TARGET: Final = b"burn-remote peer 1 target\0"
_SOURCE: Final = b"burn-remote peer 1 source\0"
_FETCH: Final = b"burn-remote peer 1 fetch\0"

_TAGGED: Final = struct.Struct(">QQ")


@dataclass(frozen=True, slots=True)
class Transcript:
    """The values that both sides of a peer connection have agreed on, and that the proofs cover.

    ``challenge`` is the source's nonce, ``nonce`` the target's. ``address`` is the address that the
    target dialled, in the form of ``Address.uri``.
    """

    offered: tuple[int, ...]
    version: int
    challenge: bytes
    nonce: bytes
    address: str

    def encoded(self) -> bytes:
        """Return the bytes that proofs cover; different transcripts give different bytes."""
        address = self.address.encode()
        numbers = (self.version, len(self.offered), *self.offered)
        return b"".join(
            (
                struct.pack(f">{len(numbers)}H", *numbers),
                self.challenge,
                self.nonce,
                struct.pack(">H", len(address)),
                address,
            )
        )


@dataclass(frozen=True, slots=True)
class FetchSigner:
    """The key under which a target signs the fetches of one connection."""

    _key: bytes = field(repr=False)

    def tag(self, request: int, transfer: bytes, offset: int) -> bytes:
        """Return the signature of one fetch."""
        message = _TAGGED.pack(request, offset) + transfer
        return hmac.digest(self._key, message, "sha256")[:TAG_BYTES]

    def accepts(self, tag: bytes, request: int, transfer: bytes, offset: int) -> bool:
        """Check a fetch's signature in constant time."""
        return hmac.compare_digest(tag, self.tag(request, transfer, offset))


def peer_key(token: str) -> bytes:
    """Derive the key of a token. It grants the same access as the token: keep it secret."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def target_proof(key: bytes, transcript: Transcript) -> bytes:
    """Return the proof that the target, the dialling server, sends."""
    return hmac.digest(key, _TARGET + transcript.encoded(), "sha256")


def source_proof(key: bytes, transcript: Transcript) -> bytes:
    """Return the proof that the source, the dialled server, sends."""
    return hmac.digest(key, _SOURCE + transcript.encoded(), "sha256")


def fetch_signer(key: bytes, transcript: Transcript) -> FetchSigner:
    """Return the signer of the fetches on the connection that a transcript describes."""
    return FetchSigner(hmac.digest(key, _FETCH + transcript.encoded(), "sha256"))


def find_key(keys: Iterable[bytes], transcript: Transcript, proof: bytes) -> bytes | None:
    """Return the key with which a target made its proof, or ``None`` if it used none of them.

    Tries every key, each in constant time, so that the duration does not reveal which one matches.
    """
    found: bytes | None = None
    for key in keys:
        if hmac.compare_digest(proof, target_proof(key, transcript)):
            found = key
    return found
