"""The health check finds the configured server and reports a problem in one sentence."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from burn_remote_server.command_line import health_check as module
from burn_remote_server.command_line.health_check import Target, check, main, target
from support.ports import reserved_port
from support.waiting import PATIENCE_SECONDS


@contextmanager
def answering(*answer: bytes) -> Iterator[Target]:
    """A server that sends some bytes on its only connection and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1024)
                for piece in answer:
                    connection.sendall(piece)

        thread = threading.Thread(target=serve)
        thread.start()
        yield Target("127.0.0.1", listening.getsockname()[1])
        thread.join(PATIENCE_SECONDS)


@pytest.fixture
def unused() -> Iterator[Target]:
    with reserved_port() as port:
        yield Target("127.0.0.1", port)


def test_a_healthy_server_has_no_problem() -> None:
    with answering(b"HTTP/1.1 200 OK\r\n\r\nok\n") as server:
        assert check(server) is None


def test_another_program_on_the_port_is_detected() -> None:
    with answering(b"SSH-2.0-OpenSSH\r\n") as server:
        problem = check(server)
    assert problem is not None
    assert "is not a healthy burn-remote-server: it answered 'SSH-2.0-OpenSSH'" in problem


def test_a_server_that_answers_nothing_may_use_tls() -> None:
    with answering(b"") as server:
        assert check(server) == (
            f"127.0.0.1:{server.port} closed the connection without an answer; if the server uses "
            f"TLS, give --tls-certificate, or --address wss://127.0.0.1:{server.port}"
        )


def test_an_unhealthy_answer_is_repeated() -> None:
    with answering(b"HTTP/1.1 404 Not Found\r\n") as server:
        assert "404 Not Found" in str(check(server))


def test_a_refused_connection_names_the_address(unused: Target) -> None:
    problem = check(unused)
    assert problem == f"127.0.0.1:{unused.port} cannot be reached: Connection refused"


def test_the_check_of_a_silent_server_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = Target("127.0.0.1", listening.getsockname()[1])
        assert "did not answer within 0.05 seconds" in str(check(server))


def test_the_command_answers_with_its_exit_code(
    unused: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(b"HTTP/1.1 200 OK\r\n") as server:
        assert main(["--check", "--port", str(server.port)]) == 0
    assert main(["--check", "--port", str(unused.port)]) == 1
    assert capsys.readouterr().err.startswith("burn-remote-server: 127.0.0.1:")


def test_an_invalid_address_is_reported_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", "--address", "ftp://node-a"]) == 1
    expected = "burn-remote-server: --address is 'ftp://node-a'; expected one such as"
    assert capsys.readouterr().err.startswith(expected)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("ws://node-a:4000", Target("node-a", 4000)),
        ("node-a:4000", Target("node-a", 4000)),
        ("node-a", Target("node-a", 3000)),
        ("wss://node-a:4000/1", Target("node-a", 4000, tls=True)),
        ("http://[::1]:4000", Target("::1", 4000)),
        ("ws://0.0.0.0:4000", Target("127.0.0.1", 4000)),
    ],
)
def test_an_address_is_read(address: str, expected: Target) -> None:
    assert target(["--check", "--address", address], {}) == expected


@pytest.mark.parametrize("address", ["", "ws://", "ws://a:b", "ws://a:70000", "ftp://a"])
def test_a_malformed_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="expected one such as"):
        target(["--address", address], {})


def test_the_configured_server_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text('host = "10.0.0.1"\nport = 1\ntls_certificate = "c.pem"')
    from_file = ["--check", "--config", str(file)]
    variables = {"BURN_REMOTE_HOST": "0.0.0.0", "BURN_REMOTE_PORT": "2"}
    assert target(["--check"], {}) == Target("127.0.0.1", 3000)
    assert target(from_file, {}) == Target("10.0.0.1", 1, tls=True)
    assert target(["--check"], {"BURN_REMOTE_CONFIG": str(file)}) == target(from_file, {})
    assert target(["--check"], variables) == Target("127.0.0.1", 2)
    assert target(["--check", "--port", "3", "--log-level", "info"], variables).port == 3
    assert target(["--check"], {"BURN_REMOTE_TLS_CERTIFICATE": "c.pem"}).tls
    assert target(["--check", "--tls-client-ca", "ca.pem"], {}).wants_certificate


def test_a_port_variable_of_kubernetes_is_not_our_port() -> None:
    assert target(["--check"], {"BURN_REMOTE_PORT": "tcp://10.96.0.7:3000"}).port == 3000


@pytest.mark.parametrize(
    ("text", "problem"), [("port = ", "is not TOML"), (None, "cannot be read: No such file")]
)
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, text: str | None, problem: str
) -> None:
    file = tmp_path / "server.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ValueError, match=f"server.toml {problem}"):
        target(["--check", "--config", str(file)], {})


def test_a_port_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="the port is 'abc'"):
        target(["--check", "--port", "abc"], {})
