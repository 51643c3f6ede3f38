"""The exchange in which two servers prove the peer token to each other, over an open link.

The target, which dialled, proves first, so that a source reveals nothing to whoever connects. What
a stranger learns when it is dialled is one HMAC over nonces: enough to test guesses of the token,
which is why tokens are long and random, and of no use anywhere else. ``peer_proofs`` has the
cryptography, docs/wire-native.md the frames.
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
from burn_remote_protocol.links.interface import AsyncLink
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
    link: AsyncLink, address: Address, hello: Hello, key: bytes | None
) -> FetchSigner | None:
    """Open a connection to another server, and return the signer of its fetches.

    ``address`` is the one that was dialled. With ``key``, both servers prove that they have it;
    without, the connection is open where the source asks for no proof, and nothing is signed.
    Raises what the source answered, ``HandshakeRefused`` where it proves nothing.
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
            "it asks for no proof of the peer token and gives none: it has no peer token, or is "
            f"older than this server; {SAME_TOKEN}, and update the older one"
        )
    if challenge.version not in hello.versions:
        raise VersionMismatch(
            f"the source chose version {challenge.version}, which it was not offered"
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
        raise HandshakeRefused("it skipped its own proof of the peer token")
    if not hmac.compare_digest(confirmation.proof, source_proof(key, transcript)):
        raise HandshakeRefused(f"its proof of the peer token is wrong; {SAME_TOKEN}")
    welcome = accepted(decode_frame(await link.receive()), hello.versions)
    if welcome.version != challenge.version:
        raise ProtocolViolation(
            f"the source changed from version {challenge.version} to {welcome.version}"
        )
    return fetch_signer(key, transcript)


def _refuse_unproven(answer: object, versions: Sequence[int]) -> None:
    """Raise a refusal that came in place of a challenge, with what to do about it."""
    try:
        accepted(answer, versions)
    except HandshakeRefused as error:
        raise HandshakeRefused(
            f"{error}; if they have it, update the source: it is older than this server and wants "
            "the token itself, which no server sends any more"
        ) from error


async def admit_target(
    link: AsyncLink,
    hello: Hello,
    version: int,
    keys: Collection[bytes],
    own_addresses: Collection[str],
    timeout_seconds: float,
) -> FetchSigner | None:
    """Check the server that sent ``hello``, and return the signer of its fetches.

    ``keys`` are those of which it must prove one; without any, everybody is admitted and nothing is
    signed. ``own_addresses`` are those under which other servers reach this one. Sends the
    challenge and this server's proof, not the ``Welcome``. Raises ``HandshakeRefused``.
    """
    if hello.token is not None:
        raise HandshakeRefused(
            "a server sent its peer token in place of a proof, and whoever could read this "
            "connection knows the token now; update that server and choose a new token"
        )
    offers_proof = hello.settings.get(PROOF_SETTING) == PROOF
    if not keys and not offers_proof:
        return None
    if not keys:
        raise HandshakeRefused(f"this server has no peer token; {SAME_TOKEN}")
    if not offers_proof:
        raise HandshakeRefused(f"this server needs a proof of the peer token; {SAME_TOKEN}")
    challenge = PeerChallenge(version, secrets.token_bytes(NONCE_BYTES))
    await link.send(encode_frame(challenge))
    try:
        async with asyncio.timeout(timeout_seconds):
            answer = decode_frame(await link.receive())
    except TimeoutError:
        raise ProtocolViolation(
            f"no proof of the peer token came within {timeout_seconds:g} seconds"
        ) from None
    if not isinstance(answer, PeerProof):
        raise ProtocolViolation(f"a proof was due, not {type(answer).__name__}")
    transcript = Transcript(hello.versions, version, challenge.nonce, answer.nonce, answer.address)
    key = find_key(keys, transcript, answer.proof)
    if key is None:
        raise HandshakeRefused(f"this server does not have the peer token proved; {SAME_TOKEN}")
    # After the proof: only who has the token learns this server's addresses.
    _check_dialled(answer.address, own_addresses)
    await link.send(encode_frame(PeerConfirmation(source_proof(key, transcript))))
    return fetch_signer(key, transcript)


def _check_dialled(address: str, own_addresses: Collection[str]) -> None:
    """Refuse a target that dialled another server, which may be relaying its proof to this one."""
    dialled = _normalized(address)
    if dialled is None or dialled not in map(_normalized, own_addresses):
        raise HandshakeRefused(
            f"the target dialled {dialled or 'a malformed address'}, and this server is "
            f"{', '.join(sorted(own_addresses))}; set --advertise-address to the address under "
            "which other servers reach it"
        )


def _normalized(address: str) -> Address | None:
    try:
        return parse_address(address)
    except ConnectionFailed:
        return None
