"""Credentials are valid, or refused before anything is dialed."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Final

import pytest
import trustme

import burn_remote
from burn_remote.devices.credentials import checked_token, trusted_context
from support.servers import server

br: Final[Any] = burn_remote


def test_a_token_that_is_not_text_is_refused_and_not_shown() -> None:
    with pytest.raises(br.ArgumentMismatch, match="a token is text, not of type int") as caught:
        br.RemoteDevice("ws://127.0.0.1:1", token=20406080)
    assert "20406080" not in str(caught.value)


def test_a_token_of_only_white_space_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for token in ("", "\n"):
        with pytest.raises(br.UsageError, match=r"token=… is empty; omit it if"):
            br.RemoteDevice("ws://127.0.0.1:1", token=token)
    monkeypatch.setenv("BURN_REMOTE_TOKEN", "\n")
    with pytest.raises(br.UsageError, match=r"\$BURN_REMOTE_TOKEN is empty"):
        br.RemoteDevice("ws://127.0.0.1:1")
    monkeypatch.setenv("BURN_REMOTE_TOKEN", "")
    with pytest.raises(br.ConnectionFailed):
        br.RemoteDevice("ws://127.0.0.1:1")


@pytest.mark.parametrize("tls", [ssl.create_default_context(), "ca.pem", Path("ca.pem")])
def test_tls_is_refused_for_an_address_without_tls(tls: object) -> None:
    with pytest.raises(br.UsageError, match="an address that starts with wss://, not ws:"):
        br.RemoteDevice("ws://127.0.0.1:1", tls=tls)


def test_tls_is_refused_even_if_a_session_without_tls_is_open() -> None:
    with (
        server() as running,
        br.RemoteDevice(running.address),
        pytest.raises(br.UsageError, match="wss://"),
    ):
        br.RemoteDevice(running.address, tls="ca.pem")


def test_timeout_is_refused_with_the_full_name_of_the_keyword() -> None:
    with pytest.raises(
        br.ArgumentMismatch, match="timeout=; in burn_remote: connect_timeout_seconds="
    ):
        br.RemoteDevice("ws://127.0.0.1:1", timeout=5)
    with pytest.raises(
        br.ArgumentMismatch, match="connect_timeout_seconds must be a number, not 'a'"
    ):
        br.RemoteDevice("ws://127.0.0.1:1", connect_timeout_seconds="a")


@pytest.mark.parametrize("value", [b"text", True, ["text"], Path("text")])
def test_a_token_is_text(value: object) -> None:
    with pytest.raises(br.ArgumentMismatch, match="a token is text, not of type"):
        checked_token(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("token", ["abc", "abc\n", " abc\r\n", "\tabc "])
def test_white_space_around_a_token_is_removed(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked_token(token) == "abc"
    monkeypatch.setenv("BURN_REMOTE_TOKEN", token)
    assert checked_token(None) == "abc"


def test_a_given_token_counts_before_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BURN_REMOTE_TOKEN", "other")
    assert checked_token("abc") == "abc"
    monkeypatch.delenv("BURN_REMOTE_TOKEN")
    assert checked_token(None) is None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with files that a program could name as its authority."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.private_key_pem.write_to_path(tmp_path / "key.pem")
    (tmp_path / "empty.pem").touch()
    (tmp_path / "binary.pem").write_bytes(bytes(range(256)))
    return tmp_path


def test_without_tls_the_trust_of_the_system_counts() -> None:
    assert trusted_context(None, "wss://gpu-box:3000") is None
    assert trusted_context(None, "ws://gpu-box:3000") is None


def test_a_context_is_used_as_it_is() -> None:
    context = ssl.create_default_context()
    assert trusted_context(context, "wss://gpu-box:3000") is context


@pytest.mark.parametrize("kind", [str, Path])
def test_a_file_is_the_only_authority_and_host_names_are_checked(
    folder: Path, kind: type[Any]
) -> None:
    context = trusted_context(kind(folder / "ca.pem"), "wss://gpu-box:3000")
    assert context is not None
    assert len(context.get_ca_certs()) == 1
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing.pem", "No such file"),
        (".", "Is a directory"),
        ("empty.pem", "no certificate in PEM text"),
        ("binary.pem", "no certificate in PEM text"),
        ("key.pem", "no certificate in PEM text"),
        ("ca\0.pem", "null byte"),
    ],
)
def test_a_file_without_a_certificate_is_refused_with_its_name(
    folder: Path, name: str, reason: str
) -> None:
    with pytest.raises(br.UsageError, match=reason) as caught:
        trusted_context(f"{folder}/{name}", "wss://gpu-box:3000")
    assert repr(f"{folder}/{name}") in str(caught.value)


def test_an_empty_path_does_not_stand_for_the_trust_of_the_system() -> None:
    with pytest.raises(br.UsageError, match=r"tls=… is empty; omit it to trust"):
        trusted_context("", "wss://gpu-box:3000")


@pytest.mark.parametrize("value", [True, 1, b"ca.pem", ["ca.pem"]])
def test_what_is_neither_a_context_nor_a_path_is_refused(value: object) -> None:
    with pytest.raises(br.ArgumentMismatch, match="the path of a PEM file"):
        trusted_context(value, "wss://gpu-box:3000")  # type: ignore[arg-type]


def test_a_refused_tls_names_the_address_without_its_token() -> None:
    with pytest.raises(br.UsageError, match="wss://") as caught:
        trusted_context("ca.pem", "ws://gpu-box:3000/token/secret/1")
    assert "secret" not in str(caught.value)
