"""Limits of a server on connections and on clients that are not yet admitted."""

from __future__ import annotations

import contextlib
import select
import socket
import time

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

import burn_remote as br
from burn_remote_protocol.errors import GarbledBytes
from burn_remote_server.listeners.connection_limits import REFUSALS_AT_ONCE
from support.servers import RunningServer, server
from support.waiting import PATIENCE_SECONDS


def test_a_web_page_may_not_connect_even_to_loopback(guarded: RunningServer) -> None:
    with pytest.raises(InvalidStatus) as caught:
        connect(f"{guarded.address}/session", origin=Origin("https://page.example"))
    assert caught.value.response.status_code == 403


def test_a_connection_over_the_limit_is_refused_and_the_others_continue() -> None:
    with server("--max-connections-per-address", "2") as running:
        # Devices of one address and token share a connection.
        first, second = (br.RemoteDevice(running.address, token=name) for name in ("one", "two"))
        with first, second:
            with pytest.raises(br.ConnectionFailed, match="429"):
                br.RemoteDevice(running.address, token="one-more-session")
            first.sync()
        assert admits_again(running)


def admits_again(running: RunningServer) -> bool:
    for _ in range(1000):
        try:
            br.RemoteDevice(running.address, token="once-more").close()
        except br.ConnectionFailed:
            continue
        return True
    return False


def connected(running: RunningServer, source: str = "127.0.0.1") -> socket.socket:
    """Open a TCP connection to the server."""
    address = ("127.0.0.1", running.port)
    return socket.create_connection(address, PATIENCE_SECONDS, source_address=(source, 0))


def opened(running: RunningServer) -> br.RemoteDevice:
    """Open a session, again if a busy machine took longer than the server allows."""
    while True:
        try:
            return br.RemoteDevice(running.address)
        except br.ConnectionFailed as error:
            assert error.http_status is None  # refused because of a limit
        except GarbledBytes as error:
            assert "no Hello arrived" in str(error)


def test_silent_connections_are_closed_and_make_way_for_others() -> None:
    flags = ("--max-connections", "4", "--handshake-timeout-seconds", "0.2")
    with server(*flags) as running:
        silent = [connected(running) for _ in range(64)]
        try:
            silent[0].sendall(b"GET /session HTTP/1.1\r\nHost: x\r\nX-Slow")  # and never more
            for each in silent:
                try:
                    while each.recv(1000):
                        pass
                except ConnectionResetError:
                    pass
            # The client's ends are still open.
            with opened(running) as device:
                assert br.ones((2,), device=device).tolist() == [1, 1]
        finally:
            for each in silent:
                each.close()


def test_a_flood_is_closed_at_once_and_others_get_responses(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with server("--max-connections-per-address", "4") as running, contextlib.ExitStack() as open_:
        for _ in range(4 + REFUSALS_AT_ONCE):
            open_.enter_context(connected(running))
        for _ in range(20):
            with connected(running) as one_more:
                assert ended(one_more)
        with connected(running, source="127.0.0.2") as asking:
            asking.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b" 200 " in asking.recv(1000)
    told = capfd.readouterr().err
    assert "Traceback" not in told
    assert told.count("connections closed") == 1


def ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1000) == b""
    except ConnectionResetError:
        return True


def test_a_slow_request_is_closed_in_time() -> None:
    with (
        server("--handshake-timeout-seconds", "0.2") as running,
        connected(running) as dripping,
    ):
        dripping.sendall(b"GET /session HTTP/1.1\r\nX-Slow: ")
        deadline = time.monotonic() + PATIENCE_SECONDS
        with contextlib.suppress(ConnectionError):
            while not select.select([dripping], [], [], 0.01)[0]:
                assert time.monotonic() < deadline, "the server still reads the slow request"
                dripping.sendall(b"x")


def test_a_known_peer_whose_request_trickles_is_closed() -> None:
    # ``--max-connections`` allows one idle connection; this one does not count as idle.
    flags = ("--fetch-timeout-seconds", "0.2", "--max-connections", "4")
    with server(*flags) as running, connect(f"{running.address}/data") as peer:
        peer.socket.sendall(b"\x82\x94" + bytes(4) + b"\x81")  # 1 of 20 bytes
        with pytest.raises(ConnectionClosed) as caught:
            peer.recv(30)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.reason == "a message arrived with less than 65,536 bytes/s"


def test_a_socket_without_a_hello_is_closed_in_time() -> None:
    with (
        server("--handshake-timeout-seconds", "0.2") as running,
        connect(f"{running.address}/session") as socket_,
    ):
        answer = socket_.recv(PATIENCE_SECONDS, decode=False)
        assert b"no Hello arrived within 0.2 seconds" in answer
        with pytest.raises(ConnectionClosed):
            socket_.recv(PATIENCE_SECONDS)


def test_compression_is_never_negotiated(guarded: RunningServer) -> None:
    with connect(f"{guarded.address}/session", compression="deflate") as socket_:
        assert socket_.protocol.extensions == []


@pytest.mark.parametrize("route", ["session", "transfer", "request", "response", "data"])
def test_large_messages_are_refused_before_admission(guarded: RunningServer, route: str) -> None:
    with connect(f"{guarded.address}/{route}") as socket_:
        with pytest.raises(ConnectionClosed) as caught:
            socket_.send(bytes(2**20))
            while True:
                socket_.recv(PATIENCE_SECONDS)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code in (1008, 1009)
