"""Tokens open sessions and name their holder; a server reachable from a network needs them."""

from __future__ import annotations

import hmac
from pathlib import Path

import pytest
from pydantic import SecretStr

from burn_remote_protocol.errors import HandshakeRefused
from burn_remote_protocol.links.addresses import parse_device_path
from burn_remote_protocol.peer_proofs import peer_key
from burn_remote_server.access.admission import (
    Access,
    OpenToNetwork,
    is_loopback_only,
    token_in_path,
)
from burn_remote_server.access.tokens import InvalidTokens
from burn_remote_server.settings.server_settings import Settings

ALICE = "alice-has-this-token-1"
BOB = "bob-has-this-other-one"
PEERS = "what-servers-show-each-other"


def settings(**values: object) -> Settings:
    secrets = {"tokens", "peer_token"}
    return Settings(
        **{name: SecretStr(str(v)) if name in secrets else v for name, v in values.items()}
    )


def with_two() -> Access:
    return Access(settings(tokens=f"alice:{ALICE}, bob:{BOB}"))


def test_each_token_says_who_connects() -> None:
    assert with_two().admit(ALICE).name == "alice"
    assert with_two().admit(BOB).name == "bob"


@pytest.mark.parametrize(
    "token", ["", "a", ALICE[:-1], ALICE + "x", BOB.upper(), "\udcff", "é" * 99]
)
def test_any_other_token_is_refused_with_what_to_check(token: str) -> None:
    with pytest.raises(HandshakeRefused, match="does not know this token; check"):
        with_two().admit(token)


def test_no_token_is_refused_with_what_to_pass() -> None:
    with pytest.raises(HandshakeRefused, match=r"requires a token; pass .*BURN_REMOTE_TOKEN"):
        with_two().admit(None)


def test_a_refusal_repeats_no_token() -> None:
    with pytest.raises(HandshakeRefused) as caught:
        with_two().admit("my-secret-of-elsewhere")
    assert "my-secret" not in str(caught.value)
    assert ALICE not in str(caught.value)


def test_each_attempt_compares_every_token_in_constant_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[tuple[int, int]] = []
    really_compare = hmac.compare_digest

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return really_compare(a, b)

    access = with_two()
    monkeypatch.setattr(hmac, "compare_digest", compare)
    access.admit(ALICE)
    with pytest.raises(HandshakeRefused):
        access.admit("x")
    # Digests have equal lengths, so the time reveals neither a token's length nor its position.
    assert compared == [(32, 32)] * 4


def test_a_loopback_server_without_tokens_admits_everybody() -> None:
    access = Access(settings())
    assert access.admit(None).name == ""
    assert access.peer_keys() == ()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.7", "2001:db8::1"])
def test_any_other_host_needs_tokens_and_says_what_to_set(host: str) -> None:
    with pytest.raises(OpenToNetwork, match=r"BURN_REMOTE_TOKENS.*--token-file.*127.0.0.1"):
        Access(settings(host=host))
    Access(settings(host=host, tokens=f"a:{ALICE}"))


@pytest.mark.parametrize("relays", ["public", "https://relay.site"])
def test_a_loopback_server_with_relays_needs_tokens(relays: str) -> None:
    with pytest.raises(OpenToNetwork, match=r"anyone who knows the node id.*BURN_REMOTE_TOKENS"):
        Access(settings(iroh_port=0, iroh_relays=relays))
    Access(settings(iroh_port=0, iroh_relays=relays, tokens=f"a:{ALICE}"))
    Access(settings(iroh_port=0))


def test_an_unresolvable_host_is_reported_before_missing_tokens() -> None:
    with pytest.raises(OpenToNetwork, match=r"--host '999\.1\.1\.1' is not a name or address of"):
        Access(settings(host="999.1.1.1"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_all_names_of_loopback_are_recognized(host: str) -> None:
    assert is_loopback_only(settings(host=host).host)


def test_a_name_that_is_not_a_loopback_address_counts_as_exposed() -> None:
    assert not is_loopback_only("192.0.2.7")


def test_peers_prove_the_token_of_peers_or_that_of_a_client() -> None:
    access = Access(settings(tokens=f"alice:{ALICE}", peer_token=PEERS))
    assert set(access.peer_keys()) == {peer_key(PEERS), peer_key(ALICE)}


def test_the_token_of_peers_opens_no_session() -> None:
    access = Access(settings(tokens=f"alice:{ALICE}", peer_token=PEERS))
    with pytest.raises(HandshakeRefused):
        access.admit(PEERS)


def test_small_transfer_ids_are_served_to_known_tokens_and_allowed_addresses_only() -> None:
    access = Access(settings(tokens=f"alice:{ALICE}", peer_token=PEERS))
    assert access.serves_small_ids(ALICE, is_allowed_peer=False)
    assert access.serves_small_ids(PEERS, is_allowed_peer=False)
    assert access.serves_small_ids(None, is_allowed_peer=True)
    assert not access.serves_small_ids(None, is_allowed_peer=False)
    assert not access.serves_small_ids("guess", is_allowed_peer=False)
    # A server without tokens knows no token.
    assert not Access(settings()).serves_small_ids("guess", is_allowed_peer=False)


@pytest.mark.parametrize(
    ("target", "path", "token"),
    [
        ("/session", "/session", None),
        ("/token/abc/request", "/request", "abc"),
        ("/token/abc/1/response", "/1/response", "abc"),
        ("/token/a%2Bb%3D/data", "/data", "a+b="),
        ("/request?token=abc", "/request", "abc"),
        ("/token/abc", "/", "abc"),
        ("/token/a%2Fb/request", "/request", "a/b"),
    ],
)
def test_a_token_in_the_path_is_taken_out_of_it(target: str, path: str, token: str | None) -> None:
    assert token_in_path(target) == (path, token)


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "..",
        "%2e%2e",
        "..%2f..%2fadmin",
        "..%2F",
        "%2Fadmin",
        "abc%2F",
        "abc%2F%2Fdef",
        "abc%2F.%2Fdef",
        "%252e%252e",
        "abc%252Fdef",
        "abc%00",
        "abc%20def",
        "abc%C3%A9",
        "abc\u00e9",
        "abc%",
        "abc%5cdef",
        "a;b",
        "x" * 513,
        "%78" * 513,
    ],
)
def test_a_path_that_could_be_normalized_to_another_names_no_route(token: str) -> None:
    path = f"/token/{token}/transfer"
    assert token_in_path(path) == (path, None)
    assert parse_device_path(f"/token/{token}") is None


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_file_of_lines_has_a_name_and_a_token_in_each(tmp_path: Path) -> None:
    file = write(tmp_path / "tokens", f"# who may\nalice {ALICE}\n\nbob\t{BOB} # until May\n")
    access = Access(settings(token_file=file))
    assert (access.admit(ALICE).name, access.admit(BOB).name) == ("alice", "bob")


def test_a_toml_file_gives_each_token_limits_of_its_own(tmp_path: Path) -> None:
    file = write(
        tmp_path / "tokens.toml",
        f'alice = "{ALICE}"\n'
        f'[bob]\ntoken = "{BOB}"\nmax_session_bytes = "1GiB"\nmax_sessions = 2\n',
    )
    access = Access(settings(token_file=file))
    assert access.admit(ALICE).limits == {}
    assert access.admit(BOB).limits == {"max_session_bytes": 2**30, "max_sessions": 2}
    assert settings().limited(access.admit(BOB).limits).max_sessions == 2


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("t", "alice\n", "line 1: expected a name and a token"),
        ("t", "", "contains no tokens"),
        ("t", "alice short\n", "must have 16 to 512 characters, but this one has 5"),
        ("t", "alice has'quotes-and-more\n", "letters, digits"),
        ("t", f"a/b {ALICE}\n", "a name must be 1 to 64 characters"),
        ("t", f"a {ALICE}\na {BOB}\n", "two tokens have the name 'a'"),
        ("t", f"a {ALICE}\nb {ALICE}\n", "'b' repeats another entry's token"),
        ("t.toml", "alice = 7\n", "letters, digits"),
        ("t.toml", "alice\n", "is not valid TOML"),
        ("t.toml", f'[a]\ntoken = "{ALICE}"\nport = 7\n', "a token cannot set 'port'"),
        ("t.toml", f'[a]\ntoken = "{ALICE}"\nmax_sessions = 0\n', "max_sessions"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_without_its_secrets(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    with pytest.raises(InvalidTokens, match=problem) as caught:
        Access(settings(token_file=write(tmp_path / name, text)))
    assert ALICE not in str(caught.value)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidTokens, match="none cannot be read"):
        Access(settings(token_file=tmp_path / "none"))


def test_reloading_the_file_revokes_and_grants_access(tmp_path: Path) -> None:
    file = write(tmp_path / "tokens", f"alice {ALICE}\n")
    access = Access(settings(token_file=file))
    write(file, f"bob {BOB}\n")
    access.reload()
    assert access.admit(BOB).name == "bob"
    with pytest.raises(HandshakeRefused):
        access.admit(ALICE)


def test_a_file_that_became_unusable_leaves_access_as_it_was(tmp_path: Path) -> None:
    file = write(tmp_path / "tokens", f"alice {ALICE}\n")
    access = Access(settings(token_file=file))
    write(file, "broken\n")
    with pytest.raises(InvalidTokens):
        access.reload()
    assert access.admit(ALICE).name == "alice"


def test_a_token_with_its_name_in_front_gets_a_hint() -> None:
    with pytest.raises(HandshakeRefused, match="as in name:token, is not part of the token"):
        with_two().admit(f"alice:{ALICE}")
    with pytest.raises(HandshakeRefused, match="as in name:token, is not part of the token"):
        with_two().admit(f"alice {ALICE}\n")  # the line of a file of tokens
