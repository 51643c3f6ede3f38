"""Addresses as a program types them, their normal form, and the integers that name them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

import burn_remote as br
from burn_remote.devices.addresses import (
    DEFAULT_ADDRESS,
    address_to_id,
    default_address,
    id_to_address,
    normal_address,
    with_token,
)
from burn_remote_protocol.errors import ConnectionFailed, UsageError
from burn_remote_protocol.links.addresses import parse_address, parse_device_path
from support.waiting import PATIENCE_SECONDS

HOSTS = st.sampled_from(["gpu-box", "10.0.0.7", "[::1]", "GPU-Box.example.org", "bücher"])
PORTS = st.none() | st.integers(1, 65_535)
PATHS = st.sampled_from(["", "/", "/1", "/1/", "/prefix/2"])
TOKENS = st.text("abcXYZ019._~+/-", min_size=1, max_size=30)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("gpu-box", "ws://gpu-box:3000"),
        ("gpu-box:4000", "ws://gpu-box:4000"),
        ("gpu-box/1", "ws://gpu-box:3000/1"),
        ("10.0.0.7:4000/1/", "ws://10.0.0.7:4000/1"),
        ("[::1]", "ws://[::1]:3000"),
        ("[::1]:4000/1", "ws://[::1]:4000/1"),
        (" ws://gpu-box:4000\n", "ws://gpu-box:4000"),
        ("WSS://GPU-Box/", "wss://gpu-box:3000"),
        ("ws://gpu-box:", "ws://gpu-box:3000"),
        ("ws://gpu-box/0", "ws://gpu-box:3000"),
        ("gpu-box:4000/0/", "ws://gpu-box:4000"),
        ("ws://gpu-box/token/secret/0", "ws://gpu-box:3000/token/secret"),
        ("ws://gpu-box/prefix/0", "ws://gpu-box:3000/prefix/0"),
        ("ws://gpu-box/10", "ws://gpu-box:3000/10"),
        ("wss-box", "ws://wss-box:3000"),
        ("ws://ws", "ws://ws:3000"),
        ("ws://gpu-box/token/one%2Ftwo/1", "ws://gpu-box:3000/token/one%2Ftwo/1"),
    ],
)
def test_an_address_gets_a_scheme_and_a_port(text: str, normal: str) -> None:
    assert normal_address(text) == normal


@given(HOSTS, PORTS, PATHS, st.sampled_from(["", "ws://", "wss://", "WS://"]))
def test_a_normal_address_stays_the_same_and_names_the_same_server(
    host: str, port: int | None, path: str, scheme: str
) -> None:
    text = f"{scheme}{host}" + ("" if port is None else f":{port}") + path
    normal = normal_address(text)
    assert normal_address(normal) == normal
    assert parse_address(normal) == parse_address(text if scheme else f"ws://{text}")


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("", "write ws://host:3000"),
        (" ", "write ws://host:3000"),
        ("http://gpu-box:3000", "write ws://gpu-box:3000"),
        ("https://gpu-box", "write wss://gpu-box"),
        ("http:gpu-box", "write ws://gpu-box"),
        ("ws:/gpu-box", "write ws://gpu-box"),
        ("WS:/gpu-box", "write ws://gpu-box"),
        ("ws:gpu-box:3000", "write ws://gpu-box:3000"),
        ("wss:gpu-box", "write wss://gpu-box"),
        ("//gpu-box:3000", "write ws://gpu-box:3000"),
        ("gpu-box:0", "from 1 to 65535"),
        ("gpu-box:65536", "from 1 to 65535"),
        ("gpu-box:-1", "from 1 to 65535"),
        ("gpu-box:http", "from 1 to 65535"),
        ("gpu-box:\uff13000", "from 1 to 65535"),
        ("gpu-box: 3000", "from 1 to 65535"),
        ("gpu box", "not a host name"),
        ("gpu\nbox", "control characters; write ws://gpubox"),
        ("ws://gpu-box:3000\t/1", "control characters; write ws://gpu-box:3000/1"),
        ("::1", "names no host"),
        (":3000", "names no host"),
        ("/1", "names no host"),
        ("[::1", "write ws://"),
        ("gpu-box?token=x", "write ws://gpu-box"),
        ("gpu-box#1", "write ws://gpu-box"),
        ("gpu-box/a b", "its path"),
        ("gpu-box" + "/1" * 2000, "at most 2,048 characters"),
    ],
)
def test_what_is_no_address_is_refused_with_what_to_write_instead(text: str, advice: str) -> None:
    with pytest.raises(ConnectionFailed) as caught:
        normal_address(text)
    assert advice in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_refused_with_one_line(text: str) -> None:
    try:
        normal = normal_address(text)
    except ConnectionFailed as error:
        assert str(error).isprintable()
    else:
        assert parse_address(normal).uri == normal


@pytest.mark.parametrize(
    "text",
    [
        "me:secret@gpu-box",
        ":secret@gpu-box",
        "ws://me:secret@gpu-box",
        "ws://:secret@gpu-box",
        "http://me:secret@gpu-box",
        "ws:/me:secret@gpu-box",
        "ws://me:secret@",
        "ws://me:secret@[::1",
        "ws://me:secret@gpu-box:port",
        "gpu-box/token/secret?x=1",
        "http://gpu-box/token/secret",
        "gpu-box?token=secret",
    ],
)
def test_the_error_for_an_address_repeats_no_password_and_no_token(text: str) -> None:
    with pytest.raises(ConnectionFailed) as caught:
        br.RemoteDevice(text)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("value", [3000, b"ws://gpu-box", ["ws://gpu-box"], True])
def test_an_address_that_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match=r"an address is text such as ws://127\.0\.0\.1:3000"):
        normal_address(value)  # type: ignore[arg-type]


def test_the_default_address_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BURN_REMOTE_ADDRESS", raising=False)
    assert default_address() == DEFAULT_ADDRESS == "ws://127.0.0.1:3000"
    monkeypatch.setenv("BURN_REMOTE_ADDRESS", "")
    assert default_address() == DEFAULT_ADDRESS
    monkeypatch.setenv("BURN_REMOTE_ADDRESS", "gpu-box")
    assert normal_address(default_address()) == "ws://gpu-box:3000"


@given(TOKENS.filter(lambda token: all(n not in ("", ".", "..") for n in token.split("/"))))
def test_a_server_finds_the_token_and_the_device_in_the_path(token: str) -> None:
    for device in (0, 7):
        address = normal_address(f"gpu-box/{device}" if device else "gpu-box")
        called = normal_address(with_token(address, token))
        assert parse_device_path(parse_address(called).path) == (token, device)


# -- names ------------------------------------------------------------------------------------


def test_every_spelling_of_an_address_has_one_name() -> None:
    name = address_to_id("naming-a")
    for text in ("naming-a:3000", "ws://naming-a", " WS://Naming-A:3000/ "):
        assert address_to_id(text) == name
    assert id_to_address(name) == "ws://naming-a:3000"
    others = [address_to_id(text) for text in ("naming-a/1", "wss://naming-a", "naming-a:3001")]
    assert len({name, *others}) == 4
    assert [id_to_address(one) for one in others] == [
        "ws://naming-a:3000/1",
        "wss://naming-a:3000",
        "ws://naming-a:3001",
    ]


def test_names_count_up_and_a_refused_address_takes_none() -> None:
    first = address_to_id("naming-b")
    with pytest.raises(ConnectionFailed):
        address_to_id("http://naming-c")
    assert address_to_id("naming-d") == first + 1


def test_threads_that_name_addresses_at_once_agree() -> None:
    together = threading.Barrier(8)
    addresses = [f"naming-e{number}" for number in range(50)]

    def name_all(turn: int) -> dict[str, int]:
        together.wait(PATIENCE_SECONDS)
        return {address: address_to_id(address) for address in addresses[turn:] + addresses[:turn]}

    with ThreadPoolExecutor(8) as pool:
        first, *others = pool.map(name_all, range(8))
    assert all(other == first for other in others)
    assert len(set(first.values())) == len(addresses)
    assert all(id_to_address(name) == f"ws://{address}:3000" for address, name in first.items())


@pytest.mark.parametrize("name", [-1, 10**9, 2**70])
def test_a_name_that_was_not_given_is_refused(name: int) -> None:
    with pytest.raises(UsageError, match=f"no address has the id {name}; "):
        id_to_address(name)
