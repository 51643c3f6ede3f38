"""The daemon in its own process: start, HTTP requests, signals, configuration errors."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import trustme

from burn_remote_server.command_line.health_check import Target, check, target
from support.servers import server
from support.waiting import PATIENCE_SECONDS


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    command = [sys.executable, "-m", "burn_remote_server", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def get(port: int, path: str) -> tuple[int, str]:
    """Send an HTTP GET request."""
    url = f"http://127.0.0.1:{port}{path}"
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_running_server_responds_to_http_requests() -> None:
    with server() as running:
        assert check(Target("127.0.0.1", running.port)) is None
        assert get(running.port, "/readyz") == (200, "ready\n")
        assert "burn_remote_sessions 0.0" in get(running.port, "/metrics")[1]
        status, text = get(running.port, "/")
        assert status == 426
        assert "burn-remote-server" in text


def test_only_the_ready_line_is_written_to_standard_output() -> None:
    with server() as running:
        assert running.stop() == 0
        assert running.process.stdout is not None
        assert running.process.stdout.read() == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_that_is_told_to_stop_exits_with_0(number: signal.Signals) -> None:
    with server() as running:
        running.process.send_signal(number)
        assert running.process.wait(PATIENCE_SECONDS) == 0


def test_the_health_check_uses_tls_if_the_server_does(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
        str(tmp_path / "server.pem")
    )
    certificate = ("--tls-certificate", str(tmp_path / "server.pem"))
    with server(*certificate) as running:
        assert check(Target("127.0.0.1", running.port, tls=True)) is None
        assert check(Target("127.0.0.1", running.port)) is not None
    for_known_clients = (*certificate, "--tls-client-ca", str(tmp_path / "ca.pem"))
    with server(*for_known_clients) as running:
        assert check(target([*for_known_clients, "--port", str(running.port)], {})) is None


def test_a_port_in_use_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run("--port", str(port))
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr == (
        f"burn-remote-server: 127.0.0.1:{port} is in use by another program; stop that program, "
        "or choose another port with --port (0 takes any free port)\n"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--backend", "abacus"], "unknown backend 'abacus'; known are "),
        (["--backend", "cuda"], "write cupy for an NVIDIA GPU"),
        (["--host", "203.0.113.1"], "203.0.113.1:3000 is not an address of this machine; "),
        (["--host", "no.such.host.invalid"], "no.such.host.invalid"),
    ],
)
def test_a_server_that_cannot_start_says_why(
    tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    (tmp_path / "tokens").write_text("alice a-token-of-sixteen-characters\n")
    # Beyond loopback a server needs tokens; without them it would report that error instead.
    ended = run(*arguments, "--token-file", str(tmp_path / "tokens"))
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert sentence in ended.stderr
