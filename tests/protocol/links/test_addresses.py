"""Addresses that people type: how they are read, refused and shown."""

from __future__ import annotations

import pytest

from burn_remote_protocol.errors import ConnectionFailed
from burn_remote_protocol.links.addresses import Address, parse_address, without_token


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("ws://gpu-box:4000", Address("ws", "gpu-box", 4000)),
        ("ws://gpu-box", Address("ws", "gpu-box", 3000)),
        ("wss://gpu-box", Address("wss", "gpu-box", 3000)),
        ("WS://GPU-Box:4000/", Address("ws", "gpu-box", 4000)),
        (" ws://gpu-box:4000/1\n", Address("ws", "gpu-box", 4000, "/1")),
        ("ws://10.0.0.7:4000/a/b/", Address("ws", "10.0.0.7", 4000, "/a/b")),
        ("ws://[::1]:4000", Address("ws", "::1", 4000)),
        ("ws://[::1]", Address("ws", "::1", 3000)),
        ("ws://bücher", Address("ws", "xn--bcher-kva", 3000)),
    ],
)
def test_a_good_address_is_read(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["ws://gpu-box:3000", "wss://10.0.0.7:4000/1", "ws://[2001:db8::7]:3000/a/b"]
)
def test_an_address_is_written_as_it_is_read(text: str) -> None:
    assert str(parse_address(text)) == text


def test_a_route_goes_below_the_prefix() -> None:
    assert str(parse_address("ws://gpu-box/1").joined("/session")) == "ws://gpu-box:3000/1/session"
    assert str(parse_address("ws://gpu-box").joined("")) == "ws://gpu-box:3000"


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("gpu-box:3000", "write ws://gpu-box:3000"),
        ("gpu-box", "write ws://gpu-box"),
        ("10.0.0.7:3000/1", "write ws://10.0.0.7:3000/1"),
        ("http://gpu-box:3000", "write ws://gpu-box:3000"),
        ("https://gpu-box:3000", "write wss://gpu-box:3000"),
        ("ws:/gpu-box", "write ws://gpu-box"),
        ("ws:gpu-box:3000", "write ws://gpu-box:3000"),
        ("wss:/gpu-box", "write wss://gpu-box"),
        ("", "write ws://host:3000"),
        ("://", "write ws://host:3000"),
        ("ws://", "write ws://host:3000"),
        ("ws:///1", "write ws://host:3000"),
        ("ws://:3000", "write ws://host:3000"),
        ("ws://gpu-box:http", "from 1 to 65535"),
        ("ws://gpu-box:0", "from 1 to 65535"),
        ("ws://gpu-box:65536", "from 1 to 65535"),
        ("ws://gpu-box:3000?token=1", "write ws://gpu-box:3000"),
        ("ws://gpu-box:3000#1", "write ws://gpu-box:3000"),
        ("ws://gpu box", "not a host name"),
        ("ws://gpu-box/a b", "its path"),
        ("ws://gpu-box/ä", "its path"),
        ("ws://::1:3000", "write ws://"),
        ("ws://[::1", "write ws://host:3000"),
        ("ws://[nonsense]", "write ws://host:3000"),
        ("ws://" + "ä" * 70, "not a host name"),
    ],
)
def test_a_bad_address_is_refused_with_what_to_write_instead(text: str, advice: str) -> None:
    with pytest.raises(ConnectionFailed) as caught:
        parse_address(text)
    assert advice in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_password_in_an_address_is_refused_without_repeating_it() -> None:
    with pytest.raises(ConnectionFailed, match="token=") as caught:
        parse_address("ws://me:secret@gpu-box")
    assert "secret" not in str(caught.value)


def test_an_address_that_is_too_long_is_refused_without_repeating_it() -> None:
    with pytest.raises(ConnectionFailed, match=r"at most 2,048 characters, not 5,005"):
        parse_address("ws://" + "a" * 5000)


def test_an_address_shows_its_token_only_as_the_uri_that_is_dialled() -> None:
    address = parse_address("ws://gpu-box:3000/token/my-secret%3D/1").joined("/data")
    assert str(address) == "ws://gpu-box:3000/token/…/1/data"
    assert "secret" not in repr(address)
    assert address.uri == "ws://gpu-box:3000/token/my-secret%3D/1/data"


@pytest.mark.parametrize(
    "text",
    [
        "ftp://gpu-box/token/my-secret",
        "ws://gpu-box/token/my-secret?x=1",
        "ws://gpu-box/?token=my-secret",
        "ws://gpu-box/1?a=b&token=my-secret#x",
        "gpu-box/token/my-secret/1",
    ],
)
def test_the_error_for_a_malformed_address_repeats_no_token(text: str) -> None:
    with pytest.raises(ConnectionFailed) as caught:
        parse_address(text)
    assert "my-secret" not in str(caught.value)


def test_tokens_are_taken_out_of_every_address_in_a_text() -> None:
    text = "from ws://a:1/token/one/data to 'ws://b:2/token/two', see ws://c/?token=three."
    shown = "from ws://a:1/token/…/data to 'ws://b:2/token/…', see ws://c/?token=…"
    assert without_token(text) == shown
