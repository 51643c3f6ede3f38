"""Addresses are formatted for clients and for sockets."""

from __future__ import annotations

import pytest

from burn_remote_server.settings.listen_address import (
    http_authority,
    is_wildcard,
    reachable_host,
    websocket_address,
)


@pytest.mark.parametrize(
    ("listens", "reached_at"),
    [("0.0.0.0", "127.0.0.1"), ("", "127.0.0.1"), ("::", "::1"), ("10.0.0.7", "10.0.0.7")],
)
def test_a_server_on_every_interface_is_reached_over_loopback(
    listens: str, reached_at: str
) -> None:
    assert reachable_host(listens) == reached_at
    assert is_wildcard(listens) == (listens != "10.0.0.7")


def test_an_ipv6_address_stands_in_brackets() -> None:
    assert http_authority("::1", 3000) == "[::1]:3000"
    assert http_authority("node-a", 3000) == "node-a:3000"


def test_every_device_but_the_first_has_a_path() -> None:
    assert websocket_address("node-a", 3000) == "ws://node-a:3000"
    assert websocket_address("node-a", 3000, 2, secure=True) == "wss://node-a:3000/2"
