"""Servers prove a shared token to each other without sending it; strangers learn nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from burn_remote_protocol.dialects.native import VERSIONS, decode_frame, encode_frame
from burn_remote_protocol.errors import (
    BurnRemoteError,
    ConnectionLost,
    HandshakeRefused,
    ProtocolViolation,
    VersionMismatch,
)
from burn_remote_protocol.handshake import agreed_version
from burn_remote_protocol.links.addresses import parse_address
from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_protocol.messages import (
    Hello,
    PeerChallenge,
    PeerConfirmation,
    PeerProof,
    Refused,
    Welcome,
)
from burn_remote_protocol.peer_proofs import (
    PROOF,
    PROOF_SETTING,
    FetchSigner,
    Transcript,
    peer_key,
    source_proof,
    target_proof,
)
from burn_remote_server.access.peer_authentication import admit_target, prove_to_source
from support.memory_links import async_memory_pair
from support.waiting import PATIENCE_SECONDS

TOKEN = "what-servers-show-each-other"
KEY = peer_key(TOKEN)
OTHER = peer_key("another-token-of-somebody")
SOURCE = "ws://node-b:3000"
STRANGER = "ws://stranger:3000"
HELLO = Hello(VERSIONS, client="a test")
OFFER = Hello(VERSIONS, settings={PROOF_SETTING: PROOF})
WELCOME = Welcome(1, 0, b"", 0.0, {}, {}, SOURCE)


class RecordingLink:
    """An ``AsyncLink`` that records the sent frames."""

    def __init__(self, link: AsyncLink) -> None:
        self._link = link
        self.sent: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    async def send(self, frame: bytes) -> None:
        self.sent.append(frame)
        await self._link.send(frame)


async def serve_source(
    link: AsyncLink, keys: Collection[bytes], own: Collection[str] = (SOURCE,)
) -> FetchSigner | None:
    """Perform the source's part of the handshake; send a refusal to the target."""
    try:
        hello = decode_frame(await link.receive())
        version = agreed_version(hello, VERSIONS)
        signer = await admit_target(link, hello, version, keys, own, PATIENCE_SECONDS)
    except ConnectionLost:
        raise
    except BurnRemoteError as error:
        await link.send(encode_frame(Refused(error)))
        raise
    await link.send(encode_frame(WELCOME))
    return signer


async def exchange(
    target_key: bytes | None,
    source_keys: Collection[bytes],
    *,
    dialled: str = SOURCE,
    own: Collection[str] = (SOURCE,),
) -> tuple[list[Any], list[bytes]]:
    """Run both sides; return the result or exception of each, and all frames."""
    near, far = map(RecordingLink, async_memory_pair())
    async with asyncio.timeout(PATIENCE_SECONDS):
        outcomes = await asyncio.gather(
            prove_to_source(near, parse_address(dialled), HELLO, target_key),
            serve_source(far, source_keys, own),
            return_exceptions=True,
        )
    return list(outcomes), near.sent + far.sent


async def test_both_sides_agree_on_a_signer_and_neither_sends_the_token_or_its_key() -> None:
    (target, source), frames = await exchange(KEY, [OTHER, KEY])
    assert isinstance(target, FetchSigner)
    assert target == source
    wire = b"".join(frames)
    assert TOKEN.encode() not in wire
    assert KEY not in wire


async def test_servers_without_tokens_need_no_proof() -> None:
    outcomes, _ = await exchange(None, [])
    assert outcomes == [None, None]


@pytest.mark.parametrize(("target_key", "source_keys"), [(KEY, [OTHER]), (None, [KEY]), (KEY, [])])
async def test_servers_that_do_not_have_the_same_token_are_told_to_set_it(
    target_key: bytes | None, source_keys: list[bytes]
) -> None:
    (target, source), _ = await exchange(target_key, source_keys)
    for outcome in (target, source):
        assert isinstance(outcome, HandshakeRefused)
        assert "set the same BURN_REMOTE_PEER_TOKEN on both servers" in str(outcome)


@pytest.mark.parametrize(
    ("dialled", "own"),
    [
        ("ws://node-b:3000/", [SOURCE]),
        ("WS://Node-B", [SOURCE]),
        ("ws://node-b:3000/1", [SOURCE, SOURCE + "/1"]),
    ],
)
async def test_the_source_knows_its_own_address_however_it_is_written(
    dialled: str, own: list[str]
) -> None:
    (target, source), _ = await exchange(KEY, [KEY], dialled=dialled, own=own)
    assert target == source
    assert isinstance(target, FetchSigner)


@pytest.mark.parametrize("dialled", [STRANGER, "ws://node-b:3001", "wss://node-b:3000"])
async def test_a_stranger_cannot_relay_the_exchange_to_a_real_source(dialled: str) -> None:
    (target, source), _ = await exchange(KEY, [KEY], dialled=dialled)
    for outcome in (target, source):
        assert isinstance(outcome, HandshakeRefused)
        assert "--advertise-address" in str(outcome)


async def test_whoever_relays_an_exchange_and_changes_the_address_is_refused() -> None:
    near, stranger_near = async_memory_pair()
    stranger_far, far = async_memory_pair()

    async def relay() -> None:
        await stranger_far.send(await stranger_near.receive())
        await stranger_near.send(await stranger_far.receive())
        proof = decode_frame(await stranger_near.receive())
        assert isinstance(proof, PeerProof)
        await stranger_far.send(encode_frame(replace(proof, address=SOURCE)))

    async with asyncio.timeout(PATIENCE_SECONDS):
        target = asyncio.ensure_future(prove_to_source(near, parse_address(STRANGER), HELLO, KEY))
        relaying = asyncio.ensure_future(relay())
        with pytest.raises(HandshakeRefused, match="matches none of the tokens"):
            await serve_source(far, [KEY])
        await relaying
        await stranger_near.close()
        with pytest.raises(ConnectionLost):
            await target


async def target_against(*answers: bytes) -> BaseException:
    """Return what a target with the token raises when a stranger sends these frames."""
    near, stranger = async_memory_pair()
    for answer in answers:
        await stranger.send(answer)
    with pytest.raises(BurnRemoteError) as caught:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await prove_to_source(near, parse_address(STRANGER), HELLO, KEY)
    return caught.value


async def test_a_target_accepts_no_source_that_gives_no_proof() -> None:
    error = await target_against(encode_frame(WELCOME))
    assert isinstance(error, HandshakeRefused)
    assert "neither requested nor offered a proof" in str(error)


async def test_a_target_accepts_no_source_that_skips_its_proof() -> None:
    challenge = encode_frame(PeerChallenge(1, bytes(32)))
    error = await target_against(challenge, encode_frame(WELCOME))
    assert isinstance(error, HandshakeRefused)
    assert "did not send its own proof" in str(error)


async def test_a_target_accepts_no_source_with_a_wrong_proof() -> None:
    challenge = encode_frame(PeerChallenge(1, bytes(32)))
    error = await target_against(challenge, encode_frame(PeerConfirmation(bytes(32))))
    assert isinstance(error, HandshakeRefused)
    assert "wrong" in str(error)


async def test_a_target_accepts_no_version_that_it_did_not_offer() -> None:
    assert isinstance(
        await target_against(encode_frame(PeerChallenge(9, bytes(32)))), VersionMismatch
    )


async def test_a_targets_own_proof_sent_back_to_it_is_refused() -> None:
    near, stranger = async_memory_pair()

    async def reflect() -> None:
        await stranger.receive()
        await stranger.send(encode_frame(PeerChallenge(1, bytes(32))))
        proof = decode_frame(await stranger.receive())
        await stranger.send(encode_frame(PeerConfirmation(proof.proof)))

    async with asyncio.timeout(PATIENCE_SECONDS):
        reflecting = asyncio.ensure_future(reflect())
        with pytest.raises(HandshakeRefused, match="wrong"):
            await prove_to_source(near, parse_address(STRANGER), HELLO, KEY)
        await reflecting


async def test_an_old_source_that_wants_the_token_is_refused_with_what_to_do() -> None:
    refusal = Refused(HandshakeRefused("this server needs a peer token; set the same on both"))
    error = await target_against(encode_frame(refusal))
    assert isinstance(error, HandshakeRefused)
    assert "update the source" in str(error)
    assert "servers no longer send" in str(error)


async def test_an_old_target_that_sends_the_token_is_refused_with_what_to_do() -> None:
    near, far = async_memory_pair()
    await near.send(encode_frame(replace(HELLO, token=TOKEN)))
    with pytest.raises(HandshakeRefused, match="update that server and choose a new token") as it:
        await serve_source(far, [KEY])
    assert TOKEN not in str(it.value)


async def test_a_recorded_proof_opens_no_second_connection() -> None:
    near, far = map(RecordingLink, async_memory_pair())
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(
            prove_to_source(near, parse_address(SOURCE), HELLO, KEY), serve_source(far, [KEY])
        )
    again, source = async_memory_pair()
    for frame in near.sent:
        await again.send(frame)
    with pytest.raises(HandshakeRefused, match="matches none of the tokens"):
        await serve_source(source, [KEY])


async def test_a_message_other_than_a_proof_is_a_violation() -> None:
    near, far = async_memory_pair()
    for message in (OFFER, OFFER):
        await near.send(encode_frame(message))
    with pytest.raises(ProtocolViolation, match="expected PeerProof, received Hello"):
        await serve_source(far, [KEY])


async def test_a_target_that_sends_no_proof_times_out() -> None:
    near, far = async_memory_pair()
    with pytest.raises(ProtocolViolation, match="no proof of the peer token arrived within 0"):
        await admit_target(far, OFFER, 1, [KEY], [SOURCE], timeout_seconds=0.01)
    with suppress(ConnectionLost):
        await near.close()


async def test_only_peers_with_the_token_learn_the_sources_addresses() -> None:
    near, far = async_memory_pair()
    serving = asyncio.ensure_future(serve_source(far, [KEY]))
    await near.send(encode_frame(OFFER))
    challenge = decode_frame(await near.receive())
    transcript = Transcript(VERSIONS, 1, challenge.nonce, b"t" * 32, STRANGER)
    proof = target_proof(OTHER, transcript)
    await near.send(encode_frame(PeerProof(b"t" * 32, STRANGER, proof)))
    with pytest.raises(HandshakeRefused) as caught:
        await serving
    assert SOURCE not in str(caught.value)


async def test_a_source_that_changes_the_version_after_the_proofs_is_refused() -> None:
    near, far = async_memory_pair()

    async def change() -> None:
        await far.receive()
        challenge = PeerChallenge(1, bytes(32))
        await far.send(encode_frame(challenge))
        proof = decode_frame(await far.receive())
        transcript = Transcript((1, 2), 1, challenge.nonce, proof.nonce, proof.address)
        await far.send(encode_frame(PeerConfirmation(source_proof(KEY, transcript))))
        await far.send(encode_frame(replace(WELCOME, version=2)))

    async with asyncio.timeout(PATIENCE_SECONDS):
        changing = asyncio.ensure_future(change())
        with pytest.raises(ProtocolViolation, match="changed from version 1 to 2"):
            await prove_to_source(near, parse_address(SOURCE), Hello((1, 2)), KEY)
        await changing
