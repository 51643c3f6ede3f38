"""A server notifies systemd when it is ready and when it stops."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from burn_remote_server.command_line.health_check import Target, check
from burn_remote_server.command_line.systemd import READY, notify
from support.servers import server


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """The socket of a service manager, and its name in the environment variable."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(30)
        listening.bind(name.replace("@", "\0"))
        yield name, listening


def test_a_server_notifies_its_start_and_its_stop(
    manager: tuple[str, socket.socket],
) -> None:
    name, listening = manager
    with server(NOTIFY_SOCKET=name) as running:
        assert listening.recv(1000).decode() == f"READY=1\nSTATUS=ready at {running.address}"
        assert check(Target("127.0.0.1", running.port)) is None
        assert running.stop() == 0
        assert listening.recv(1000).decode() == "STOPPING=1\nSTATUS=draining"


def test_a_missing_service_manager_does_not_stop_the_server(tmp_path: Path) -> None:
    with server(NOTIFY_SOCKET=str(tmp_path / "nobody")) as running:
        assert check(Target("127.0.0.1", running.port)) is None


def test_without_a_service_manager_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    monkeypatch.setattr(socket, "socket", lambda *arguments: opened.append(arguments))
    notify(READY, "ready")
    assert not opened
