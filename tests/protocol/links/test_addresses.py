"""Addresses that users type are parsed, refused with advice, and shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burn_remote_protocol.errors import ConnectionFailed
from burn_remote_protocol.links.addresses import (
    Address,
    decoded_token,
    named_address,
    names_scheme,
    parse_address,
    parse_device_path,
    without_token,
)


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


def test_a_route_is_appended_to_the_path_prefix() -> None:
    joined = parse_address("ws://gpu-box/1").joined("/session")
    assert joined.uri == "ws://gpu-box:3000/1/session"
    assert str(joined) == "ws://gpu-box:3000/1", "messages show what the program wrote"
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
        ("ws//gpu-box:3000", "write ws://gpu-box:3000"),
        ("https//gpu-box", "write wss://gpu-box"),
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
        ("ws://gpu\nbox:3000", "write ws://gpubox:3000"),
        ("ws://gpu-box:\t3000", "write ws://gpu-box:3000"),
        ("ws://gpu-box/\x00", "write ws://gpu-box/"),
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


@pytest.mark.parametrize(
    "text",
    [
        "ws://me:secret@gpu-box",
        "ws://:secret@gpu-box",
        "http://me:secret@gpu-box",
        "me:secret@gpu-box",
        "ws:/me:secret@gpu-box",
        "ws://me:secret@",
        "ws://me:secret@[::1",
        "ws://me:secret@gpu-box:port",
        "ws://me:secret@gpu\nbox",
    ],
)
def test_a_password_in_an_address_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(ConnectionFailed, match="token=") as caught:
        parse_address(text)
    assert "secret" not in str(caught.value)


def test_an_address_that_is_too_long_is_refused_without_repeating_it() -> None:
    with pytest.raises(ConnectionFailed, match=r"at most 2,048 characters, not 5,005"):
        parse_address("ws://" + "a" * 5000)


def test_an_address_shows_its_token_only_as_the_uri_that_is_dialled() -> None:
    address = parse_address("ws://gpu-box:3000/token/my-secret%3D/1").joined("/data")
    assert str(address) == "ws://gpu-box:3000/token/…/1"
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


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ws://gpu-box/token/my-secret/1", "ws://gpu-box:3000/token/…/1"),
        ("ws://me:my-secret@gpu-box", "an invalid address"),
        ("my-secret\nINFO forged line", "an invalid address"),
    ],
)
def test_an_address_in_a_log_is_one_line_without_secrets(text: str, name: str) -> None:
    assert named_address(text) == name


@given(st.text(max_size=60))
def test_any_text_is_an_address_or_refused_with_one_line(text: str) -> None:
    try:
        address = parse_address(text)
    except ConnectionFailed as error:
        assert str(error).isprintable()
    else:
        assert parse_address(address.uri) == address


@pytest.mark.parametrize(
    ("path", "token", "device"),
    [
        ("", None, 0),
        ("/0", None, 0),
        ("/1", None, 1),
        ("/9999", None, 9999),
        ("/token/abc", "abc", 0),
        ("/token/abc/2", "abc", 2),
        ("/token/a%2Bb%2Fc%3D%3D/2", "a+b/c==", 2),
        ("/token/1", "1", 0),
    ],
)
def test_the_path_of_a_device_has_a_token_and_a_number(
    path: str, token: str | None, device: int
) -> None:
    assert parse_device_path(path) == (token, device)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "1",
        "/10000",
        "/-1",
        "/1/2",
        "/\u0661",
        "/1/",
        "/1\n",
        "/token",
        "/token/",
        "/token//1",
        "/token/abc/x",
        "/token/a b",
        "/token/..%2f..%2fadmin",
        "/token/%2e%2e",
        "/token/.",
        "/token/a%2F%2Fb",
        "/token/%2Fa",
        "/token/a%2F",
        "/token/a%00",
        "/token/%ff",
        "/token/%",
        "/token/a%252Fb",
        "/token/" + "a" * 513,
        "/other/1",
    ],
)
def test_a_path_of_no_device_is_refused(path: str) -> None:
    assert parse_device_path(path) is None


def test_a_token_is_decoded_once() -> None:
    assert decoded_token("a%2Db") == "a-b"
    assert decoded_token("a%252Db") is None
    assert decoded_token("a" * 512) == "a" * 512


def test_schemes_that_people_confuse_with_ours_are_known_by_name() -> None:
    assert all(map(names_scheme, ["ws", "WSS", "http", "https", "tcp", "grpc"]))
    assert not any(map(names_scheme, ["", "gpu-box", "ws:", "wss-box"]))


NODE = "ae58ff8833241ac82d6ff7611046ed67b5072d142c588d0063e942d9a75502b6"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (f"iroh://{NODE}", Address("iroh", NODE, 0)),
        (f"iroh://{NODE.upper()}/1/", Address("iroh", NODE, 0, "/1")),
        (
            f"iroh://{NODE}?addr=127.0.0.1:4433",
            Address("iroh", NODE, 0, direct=("127.0.0.1:4433",)),
        ),
        (
            f"iroh://{NODE}/1?addr=10.0.0.7:1&addr=[2001:db8:0::7]:2&addr=10.0.0.7:1",
            Address("iroh", NODE, 0, "/1", direct=("10.0.0.7:1", "[2001:db8::7]:2")),
        ),
        (
            f"iroh://{NODE}?relay=https://relay.example.com",
            Address("iroh", NODE, 0, relay="https://relay.example.com"),
        ),
    ],
)
def test_an_iroh_address_names_a_key_and_the_ways_to_it(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(address.uri) == address
    assert address.secure


def test_a_route_of_an_iroh_address_comes_before_the_ways_to_it() -> None:
    joined = parse_address(f"iroh://{NODE}/1?addr=10.0.0.7:1").joined("/session")
    assert joined.uri == f"iroh://{NODE}/1/session?addr=10.0.0.7:1"
    assert str(joined) == f"iroh://{NODE}/1?addr=10.0.0.7:1"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("iroh://gpu-box", "64 hexadecimal digits"),
        (f"iroh://{NODE}0", "64 hexadecimal digits"),
        ("iroh://", "64 hexadecimal digits"),
        (f"iroh://{NODE}:3000", "has no port"),
        (f"iroh://{NODE}@10.0.0.7:1", "has no @"),
        (f"iroh://{NODE}?addr=gpu-box:1", "not a numeric address"),
        (f"iroh://{NODE}?addr=10.0.0.7", "not a numeric address"),
        (f"iroh://{NODE}?addr=10.0.0.7:0", "not a numeric address"),
        (f"iroh://{NODE}?addr=10.0.0.7:65536", "not a numeric address"),
        (f"iroh://{NODE}?addr=10.0.0.7:²", "not a numeric address"),
        (f"iroh://{NODE}?addr", "not addr="),
        (f"iroh://{NODE}?port=7", "port=7 is not"),
        (f"iroh://{NODE}?relay=ws://relay", "relay=ws://relay is not"),
        (f"iroh://{NODE}?relay=https://a&relay=https://b", "more than one relay="),
        (f"iroh://{NODE}?" + "&".join(f"addr=10.0.0.7:{n}" for n in range(1, 10)), "more than 8"),
        (f"iroh://{NODE}#x", "# part"),
    ],
)
def test_a_malformed_iroh_address_is_explained_with_the_form(text: str, problem: str) -> None:
    with pytest.raises(ConnectionFailed) as caught:
        parse_address(text)
    assert problem in str(caught.value)
    assert "write iroh://NODE-ID?addr=192.0.2.7:4433" in str(caught.value)


def test_the_error_of_a_malformed_iroh_address_contains_no_secret() -> None:
    for text in (f"iroh://me:hunter2@{NODE}", f"iroh://{NODE}:1/token/hunter2"):
        with pytest.raises(ConnectionFailed) as caught:
            parse_address(text)
        assert "hunter2" not in str(caught.value)
    address = parse_address(f"iroh://{NODE}/token/hunter2/1?addr=10.0.0.7:1")
    assert "hunter2" not in f"{address} {address!r}"
    assert "hunter2" in address.uri


@given(st.text(max_size=40))
def test_any_text_after_the_scheme_is_an_address_or_an_explained_error(text: str) -> None:
    for prefix in ("iroh://", f"iroh://{NODE}", f"iroh://{NODE}?addr="):
        try:
            address = parse_address(prefix + text)
        except ConnectionFailed:
            continue
        assert parse_address(address.uri) == address
