"""Errors and timeouts of connections that cannot be opened."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from burn_remote_protocol.errors import ConnectionFailed
from burn_remote_protocol.links.transport_registry import connect
from support.link_servers import link_server, raw_server, read_to_end
from support.ports import reserved_port
from support.waiting import PATIENCE_SECONDS


def failure(address: str, timeout_seconds: float = PATIENCE_SECONDS, **options: object) -> str:
    with pytest.raises(ConnectionFailed) as caught:
        connect(address, timeout_seconds=timeout_seconds, **options)  # type: ignore[arg-type]
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_refused_port_asks_whether_the_server_runs() -> None:
    with reserved_port() as port:
        text = failure(f"ws://127.0.0.1:{port}")
    assert text == (
        f"nothing listens at ws://127.0.0.1:{port}; check the port, and that burn-remote-server is "
        "running on this machine"
    )


def test_a_refusal_names_the_addresses_that_refused() -> None:
    with reserved_port() as port, pytest.raises(ConnectionFailed) as caught:
        connect(f"ws://localhost:{port}")
    assert "127.0.0.1" in caught.value.refused_by


def test_an_unknown_name_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo

    def getaddrinfo(host: str, *arguments: object, **options: object) -> object:
        if options.get("flags"):
            return real(host, *arguments, **options)  # type: ignore[arg-type]
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert "the host name 'nobody.invalid' cannot be resolved" in failure("ws://nobody.invalid")


def test_a_hanging_name_lookup_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo
    released = threading.Event()

    def getaddrinfo(host: str, *arguments: object, **options: object) -> object:
        if options.get("flags"):
            return real(host, *arguments, **options)  # type: ignore[arg-type]
        released.wait(PATIENCE_SECONDS)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert "did not answer within 0.05 seconds" in failure(
        "ws://slow.invalid", timeout_seconds=0.05
    )
    released.set()


def test_a_name_with_a_label_that_is_too_long_is_unknown() -> None:
    assert "cannot be resolved" in failure(f"ws://{'a' * 64}.invalid")


def test_connecting_to_a_silent_server_times_out() -> None:
    with raw_server(read_to_end) as port:
        text = failure(f"ws://127.0.0.1:{port}", timeout_seconds=0.1)
        assert "seconds; check the host" in text


def test_a_tls_handshake_with_a_silent_server_times_out() -> None:
    with raw_server(read_to_end) as port:
        text = failure(f"wss://127.0.0.1:{port}", timeout_seconds=0.1)
        assert "seconds; check the host" in text


@pytest.mark.parametrize(
    ("status", "path", "advice"),
    [
        (404, "", "no WebSocket; check the port, and"),
        (404, "/mistyped", "no such path as /mistyped; write ws://127.0.0.1:{port}, or"),
        (401, "/session", "check the token"),
        (503, "/session", "try again later"),
    ],
)
@pytest.mark.parametrize("version", ["HTTP/1.0", "HTTP/1.1"])
def test_an_http_server_is_recognized(status: int, path: str, advice: str, version: str) -> None:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = version

        def do_GET(self) -> None:
            self.send_error(status)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.handle_request)
        serving.start()
        with pytest.raises(ConnectionFailed) as caught:
            connect(f"ws://127.0.0.1:{server.server_port}{path}")
        serving.join(PATIENCE_SECONDS)
    text = str(caught.value)
    assert caught.value.http_status == status
    assert f"answered HTTP {status}" in text
    assert advice.format(port=server.server_port) in text


def says(answer: bytes) -> Callable[[socket.socket], None]:
    def behave(sock: socket.socket) -> None:
        sock.recv(2**16)
        sock.sendall(answer)

    return behave


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"220 mail ready\r\n",
        b"\x00" * 100_000,
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: of somebody else\r\n\r\n",
    ],
    ids=["ssh", "mail", "zeros", "no upgrade", "wrong key"],
)
def test_a_server_of_another_protocol_is_recognized(answer: bytes) -> None:
    with raw_server(says(answer)) as port:
        assert "is no WebSocket server" in failure(f"ws://127.0.0.1:{port}")


def test_a_server_that_closes_at_once_is_explained() -> None:
    with raw_server(says(b"")) as port:
        assert "hung up before it responded" in failure(f"ws://127.0.0.1:{port}")


def test_tls_to_a_server_without_it_is_explained() -> None:
    with link_server() as server:
        text = failure(f"wss://localhost:{server.port}")
        assert "check that the server speaks TLS, or write ws://" in text


def test_no_tls_to_a_server_with_it_is_explained(tls_contexts: dict[str, ssl.SSLContext]) -> None:
    with link_server(tls=tls_contexts["server"]) as server:
        assert "wss://" in failure(f"ws://localhost:{server.port}")


def test_an_untrusted_certificate_is_explained(tls_contexts: dict[str, ssl.SSLContext]) -> None:
    with link_server(tls=tls_contexts["server"]) as server:
        text = failure(server.address)
    assert "is not trusted (self" in text
    assert 'name the authority that signed it: tls="ca.pem"' in text


def test_a_tls_context_for_an_address_without_tls_is_refused() -> None:
    assert "write wss://" in failure("ws://127.0.0.1:1", tls=ssl.create_default_context())


def test_headers_and_the_route_reach_the_server() -> None:
    with link_server() as server:
        link = connect(server.address + "/1", "/session", headers={"X-Name": "value"})
        end = server.accept()
        assert end.connection.request is not None
        assert end.connection.request.path == "/1/session"
        assert end.connection.request.headers["X-Name"] == "value"
        assert link.address == f"ws://localhost:{server.port}/1"
        link.close()
