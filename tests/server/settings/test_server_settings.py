"""Settings are validated on construction, immutable, and independent of their source."""

from __future__ import annotations

import ast
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import burn_remote_server
from burn_remote_server.settings.server_settings import Settings


def test_a_server_listens_to_this_machine_only_unless_told_otherwise() -> None:
    assert (Settings().host, Settings().port) == ("127.0.0.1", 3000)


def test_settings_read_no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BURN_REMOTE_PORT", "4000")
    assert Settings().port == 3000


def test_a_log_level_may_be_in_capitals() -> None:
    assert Settings.model_validate({"log_level": "WARNING"}).log_level == "warning"


def test_settings_cannot_be_changed() -> None:
    settings = Settings()
    with pytest.raises(ValidationError, match="frozen"):
        settings.port = 1  # type: ignore[misc]  # must raise


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", 65_536),
        ("port", -1),
        ("device_count", 0),
        ("seed", -1),
        ("seed", 2**64),
        ("lease_seconds", 0),
        ("lease_seconds", float("inf")),
        ("lease_seconds", float("nan")),
        ("max_message_bytes", "64KiB"),
        ("max_sessions", 0),
        ("log_level", "loud"),
        ("advertise_address", "http://node-a:3000"),
        ("advertise_address", "ws://"),
        ("unknown", 1),
    ],
)
def test_an_invalid_value_is_refused(name: str, value: object) -> None:
    settings: dict[str, Any] = {name: value}
    with pytest.raises(ValidationError, match=name):
        Settings(**settings)


def test_every_default_is_a_value_that_may_be_given() -> None:
    given = {name: value for name, value in Settings().model_dump().items() if value is not None}
    assert Settings(**given) == Settings()


def test_peers_reach_a_server_where_it_listens() -> None:
    assert Settings(host="10.0.0.7").peer_address(3000) == "ws://10.0.0.7:3000"
    assert Settings(host="[::1]").peer_address(3000, 1) == "ws://[::1]:3000/1"


def test_peers_reach_a_server_on_every_interface_by_its_host_name() -> None:
    name = socket.gethostname()
    assert Settings(host="0.0.0.0").peer_address(3000) == f"ws://{name}:3000"


def test_peers_reach_a_server_behind_a_proxy_at_the_address_it_advertises() -> None:
    settings = Settings(advertise_address="node-a:80/")
    assert settings.peer_address(3000) == "ws://node-a:80"
    assert settings.peer_address(3000, 2) == "ws://node-a:80/2"


def test_a_session_may_hold_most_of_the_memory_unless_told_otherwise() -> None:
    assert Settings().session_bytes(1000) == 800
    assert Settings(max_session_bytes=50).session_bytes(1000) == 50


def test_one_tensor_may_be_as_large_as_its_session_allows() -> None:
    assert Settings(max_session_bytes=50).tensor_bytes(1000) == 50
    assert Settings(max_session_bytes=50, max_tensor_bytes=10).tensor_bytes(1000) == 10
    assert Settings(max_session_bytes=50, max_tensor_bytes=90).tensor_bytes(1000) == 50


def test_a_token_replaces_limits_and_leaves_the_rest() -> None:
    settings = Settings(port=0)
    assert settings.limited({}) is settings
    assert settings.limited({"max_sessions": 1}) == Settings(port=0, max_sessions=1)


def test_a_key_without_a_certificate_is_refused() -> None:
    with pytest.raises(ValidationError, match="tls_key needs tls_certificate"):
        Settings(tls_key="key.pem")


def test_settings_of_iroh_without_a_port_for_it_are_refused() -> None:
    for setting in ({"iroh_key_file": "node.key"}, {"iroh_relays": "public"}):
        with pytest.raises(ValidationError, match="needs iroh_port, which is not set"):
            Settings(**setting)
    assert Settings(iroh_port=0, iroh_relays="https://relay.site").uses_relays
    assert not Settings(iroh_port=0).uses_relays


@pytest.mark.parametrize("relays", ["off", "relay.site", "ws://relay.site", ""])
def test_relays_are_disabled_public_or_an_address(relays: str) -> None:
    with pytest.raises(ValidationError, match="expected disabled, public or an address"):
        Settings(iroh_port=0, iroh_relays=relays)


def strings_of_the_server() -> Iterator[str]:
    """Iterate over the texts in the server's code that are not docstrings or comments."""
    for path in Path(burn_remote_server.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_errors_name_settings_that_exist() -> None:
    advised = {
        name
        for text in strings_of_the_server()
        for name in re.findall(r"\braise ([a-z]+(?:_[a-z]+)+) on the server", text)
    }
    assert "max_tensor_bytes" in advised
    assert advised <= Settings.model_fields.keys()
