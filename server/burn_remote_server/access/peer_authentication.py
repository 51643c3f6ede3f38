"""Mutual authentication of two servers: each proves over the open link that it has the peer token.

The target of a transfer opens the connection and sends its proof first, so a source reveals nothing
to an attacker that connects. A target that connects to an attacker reveals one HMAC over nonces.
With it the attacker can only test guesses of the token, so tokens are long and random. The
cryptography is in ``peer_proofs``, the frames in docs/wire-native.md.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Collection, Sequence
from typing import Final

from burn_remote_protocol.dialects.native import decode_frame, encode_frame
from burn_remote_protocol.errors import (
    ConnectionFailed,
    HandshakeRefused,
    ProtocolViolation,
    VersionMismatch,
)
from burn_remote_protocol.handshake import accepted
from burn_remote_protocol.links.addresses import Address, parse_address
from burn_remote_protocol.links.checksummed_links import AnyAsyncLink
from burn_remote_protocol.messages import Hello, PeerChallenge, PeerConfirmation, PeerProof
from burn_remote_protocol.peer_proofs import (
    NONCE_BYTES,
    PROOF,
    PROOF_SETTING,
    FetchSigner,
    Transcript,
    fetch_signer,
    find_key,
    source_proof,
    target_proof,
)

__all__ = ["admit_target", "prove_to_source"]

SAME_TOKEN: Final = "set the same BURN_REMOTE_PEER_TOKEN on both servers"


async def prove_to_source(
    link: AnyAsyncLink, address: Address, hello: Hello, key: bytes | None
) -> FetchSigner | None:
    """Complete the handshake with a source server; return the signer of its fetches.

    ``address`` is the address that the target dialled. With a ``key``, both servers prove that they
    have it. Without one, the handshake succeeds only if the source requires no proof, and nothing
    is signed. Raises the error that the source sent, ``HandshakeRefused`` if the source proves
    nothing, and ``VersionMismatch`` or ``ProtocolViolation`` for an invalid message.
    """
    if key is None:
        await link.send(encode_frame(hello))
        accepted(decode_frame(await link.receive()), hello.versions)
        return None
    settings = {**hello.settings, PROOF_SETTING: PROOF}
    await link.send(encode_frame(Hello(hello.versions, client=hello.client, settings=settings)))
    challenge = decode_frame(await link.receive())
    if not isinstance(challenge, PeerChallenge):
        _refuse_unproven(challenge, hello.versions)
        raise HandshakeRefused(
            "the other server neither requested nor offered a proof of the peer token: it has no "
            f"peer token, or it is older than this server; {SAME_TOKEN}, and update the older one"
        )
    if challenge.version not in hello.versions:
        raise VersionMismatch(
            f"the source chose version {challenge.version}, which this server did not offer"
        )
    transcript = Transcript(
        hello.versions,
        challenge.version,
        challenge.nonce,
        secrets.token_bytes(NONCE_BYTES),
        address.uri,
    )
    proof = target_proof(key, transcript)
    await link.send(encode_frame(PeerProof(transcript.nonce, transcript.address, proof)))
    confirmation = decode_frame(await link.receive())
    if not isinstance(confirmation, PeerConfirmation):
        accepted(confirmation, hello.versions)  # raises the source's refusal
        raise HandshakeRefused("the other server did not send its own proof of the peer token")
    if not hmac.compare_digest(confirmation.proof, source_proof(key, transcript)):
        raise HandshakeRefused(f"the other server's proof of the peer token is wrong; {SAME_TOKEN}")
    welcome = accepted(decode_frame(await link.receive()), hello.versions)
    if welcome.version != challenge.version:
        raise ProtocolViolation(
            f"the source changed from version {challenge.version} to {welcome.version}"
        )
    return fetch_signer(key, transcript)


def _refuse_unproven(reply: object, versions: Sequence[int]) -> None:
    """Raise the refusal that the source sent instead of a challenge, with advice."""
    try:
        accepted(reply, versions)
    except HandshakeRefused as error:
        raise HandshakeRefused(
            f"{error}; if both have it, update the source: it is older than this server and "
            "expects the token itself, which servers no longer send"
        ) from error


async def admit_target(
    link: AnyAsyncLink,
    hello: Hello,
    version: int,
    keys: Collection[bytes],
    own_addresses: Collection[str],
    timeout_seconds: float,
) -> FetchSigner | None:
    """Authenticate the server that sent ``hello``; return the signer of its fetches.

    It must prove one of ``keys``; without keys, every server is admitted and nothing is signed.
    ``own_addresses`` are the addresses at which other servers reach this one. This function sends
    the challenge and this server's proof, but not the ``Welcome``. Raises ``HandshakeRefused``,
    and ``ProtocolViolation`` if the other server sends no proof or another message.
    """
    if hello.token is not None:
        raise HandshakeRefused(
            "a server sent its peer token instead of a proof, so anyone who could read this "
            "connection now knows the token; update that server and choose a new token"
        )
    offers_proof = hello.settings.get(PROOF_SETTING) == PROOF
    if not keys and not offers_proof:
        return None
    if not keys:
        raise HandshakeRefused(f"this server has no peer token; {SAME_TOKEN}")
    if not offers_proof:
        raise HandshakeRefused(f"this server requires a proof of the peer token; {SAME_TOKEN}")
    challenge = PeerChallenge(version, secrets.token_bytes(NONCE_BYTES))
    await link.send(encode_frame(challenge))
    try:
        async with asyncio.timeout(timeout_seconds):
            reply = decode_frame(await link.receive())
    except TimeoutError:
        raise ProtocolViolation(
            f"no proof of the peer token arrived within {timeout_seconds:g} seconds"
        ) from None
    if not isinstance(reply, PeerProof):
        raise ProtocolViolation(f"expected PeerProof, received {type(reply).__name__}")
    transcript = Transcript(hello.versions, version, challenge.nonce, reply.nonce, reply.address)
    key = find_key(keys, transcript, reply.proof)
    if key is None:
        raise HandshakeRefused(f"the proof matches none of the tokens of this server; {SAME_TOKEN}")
    # Checked after the proof, so only a holder of the token learns this server's addresses.
    _check_dialled(reply.address, own_addresses)
    await link.send(encode_frame(PeerConfirmation(source_proof(key, transcript))))
    return fetch_signer(key, transcript)


def _check_dialled(address: str, own_addresses: Collection[str]) -> None:
    """Refuse a target that dialled another server, which may be relaying the target's proof."""
    dialled = _normalized(address)
    if dialled is None or dialled not in map(_normalized, own_addresses):
        raise HandshakeRefused(
            f"the target dialled {dialled or 'a malformed address'}, but this server is at "
            f"{', '.join(sorted(own_addresses))}; set --advertise-address to the address at which "
            "other servers reach it"
        )


def _normalized(address: str) -> Address | None:
    try:
        return parse_address(address)
    except ConnectionFailed:
        return None
