"""A device is opened with credentials that can be, or refused before anything is dialed."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Final

import pytest

import burn_remote
from support.servers import server

br: Final[Any] = burn_remote


def test_a_token_that_is_no_text_is_refused_without_being_shown() -> None:
    with pytest.raises(br.ArgumentMismatch, match="a token is text, not of type int") as caught:
        br.RemoteDevice("ws://127.0.0.1:1", token=20406080)
    assert "20406080" not in str(caught.value)


def test_a_token_of_nothing_but_white_space_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_trust_in_a_certificate_needs_an_address_that_has_one(tls: object) -> None:
    with pytest.raises(br.UsageError, match="for an address that starts with wss://, not for ws:"):
        br.RemoteDevice("ws://127.0.0.1:1", tls=tls)


def test_it_is_not_forgotten_where_a_session_without_tls_is_open() -> None:
    with (
        server() as running,
        br.RemoteDevice(running.address),
        pytest.raises(br.UsageError, match="wss://"),
    ):
        br.RemoteDevice(running.address, tls="ca.pem")


def test_the_time_to_connect_goes_by_its_whole_name() -> None:
    with pytest.raises(
        br.ArgumentMismatch, match="timeout=; in burn_remote: connect_timeout_seconds="
    ):
        br.RemoteDevice("ws://127.0.0.1:1", timeout=5)
    with pytest.raises(
        br.ArgumentMismatch, match="connect_timeout_seconds must be a number, not 'a'"
    ):
        br.RemoteDevice("ws://127.0.0.1:1", connect_timeout_seconds="a")
