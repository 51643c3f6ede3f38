"""A proof is valid only for one key, one role and one connection."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace

import pytest

from burn_remote_protocol.peer_proofs import (
    FetchSigner,
    Transcript,
    fetch_signer,
    find_key,
    peer_key,
    source_proof,
    target_proof,
)

KEY = peer_key("what-servers-show-each-other")
OTHER = peer_key("another-token-of-somebody")
AGREED = Transcript((1, 2), 2, b"s" * 32, b"t" * 32, "ws://node-b:3000")


def test_the_proof_is_the_hmac_that_the_specification_writes_out() -> None:
    covered = (
        bytes.fromhex("0002 0002 0001 0002") + b"s" * 32 + b"t" * 32 + b"\x00\x10ws://node-b:3000"
    )
    key = hashlib.sha256(b"what-servers-show-each-other").digest()
    expected = hmac.new(key, b"burn-remote peer 1 target\0" + covered, hashlib.sha256)
    assert target_proof(KEY, AGREED) == expected.digest()
    expected = hmac.new(key, b"burn-remote peer 1 source\0" + covered, hashlib.sha256)
    assert source_proof(KEY, AGREED) == expected.digest()


def test_a_proof_for_one_role_is_invalid_for_the_other() -> None:
    assert find_key([KEY], AGREED, source_proof(KEY, AGREED)) is None
    assert find_key([KEY], AGREED, target_proof(KEY, AGREED)) == KEY


@pytest.mark.parametrize(
    "changed",
    [
        {"offered": (1,)},
        {"offered": (1, 2, 3)},
        {"version": 1},
        {"challenge": b"S" * 32},
        {"nonce": b"T" * 32},
        {"challenge": b"t" * 32, "nonce": b"s" * 32},
        {"address": "ws://node-b:3001"},
        {"address": "wss://node-b:3000"},
    ],
)
def test_a_proof_holds_for_no_other_transcript(changed: dict[str, object]) -> None:
    other = replace(AGREED, **changed)  # type: ignore[arg-type]
    assert find_key([KEY], other, target_proof(KEY, AGREED)) is None
    assert source_proof(KEY, other) != source_proof(KEY, AGREED)


def test_every_key_is_compared_even_after_a_match(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    really_compare = hmac.compare_digest

    def compare(a: bytes, b: bytes) -> bool:
        compared.append(len(b))
        return really_compare(a, b)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert find_key([KEY, OTHER, OTHER], AGREED, target_proof(KEY, AGREED)) == KEY
    assert find_key([OTHER, OTHER, KEY], AGREED, target_proof(KEY, AGREED)) == KEY
    assert find_key([OTHER], AGREED, target_proof(KEY, AGREED)) is None
    assert find_key([], AGREED, target_proof(KEY, AGREED)) is None
    assert compared == [32] * 7


def test_a_tag_holds_for_one_fetch_of_one_connection() -> None:
    signer = fetch_signer(KEY, AGREED)
    tag = signer.tag(1, b"i" * 32, 0)
    assert signer.accepts(tag, 1, b"i" * 32, 0)
    assert not signer.accepts(tag, 2, b"i" * 32, 0)
    assert not signer.accepts(tag, 1, b"j" * 32, 0)
    assert not signer.accepts(tag, 1, b"i" * 32, 1)
    assert not signer.accepts(b"", 1, b"i" * 32, 0)
    assert not fetch_signer(KEY, replace(AGREED, nonce=b"u" * 32)).accepts(tag, 1, b"i" * 32, 0)
    assert not fetch_signer(OTHER, AGREED).accepts(tag, 1, b"i" * 32, 0)


def test_a_signer_does_not_show_its_key() -> None:
    signer = FetchSigner(b"a-secret-key")
    assert "secret" not in repr(signer)
