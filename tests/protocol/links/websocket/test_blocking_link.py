"""WebSocket links for threads: conformance, and behaviour specific to WebSockets."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from burn_remote_protocol.errors import ConnectionLost, ProtocolViolation
from burn_remote_protocol.links.interface import MAX_MESSAGE_BYTES, BlockingLink
from burn_remote_protocol.links.transport_registry import connect
from burn_remote_protocol.links.websocket import blocking_link, keepalive
from burn_remote_protocol.links.websocket.keepalive import KeepaliveTimer
from support.link_ends import FarEnd, OpenPair, in_thread, pattern
from support.link_scripts import accept_websocket, frame_bytes, scripted_link
from support.link_servers import LOOPS, link_server, raw_server, read_to_end
from support.links import BlockingLinkConformance
from support.waiting import PATIENCE_SECONDS


class TestBlockingWebSocket(BlockingLinkConformance):
    @pytest.fixture(params=[*LOOPS, "tls", "background", "background tls"])
    def open_pair(
        self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[OpenPair]:
        contexts: Any = {}
        loop_name = request.param
        has_spare_core = loop_name.startswith("background")
        monkeypatch.setattr(blocking_link, "has_spare_core", lambda: has_spare_core)
        if loop_name.endswith("tls"):
            contexts = request.getfixturevalue("tls_contexts")
        if loop_name not in LOOPS:
            loop_name = "uvloop"
        with contextlib.ExitStack() as stack:

            def open_pair(
                max_message_bytes: int = MAX_MESSAGE_BYTES,
            ) -> tuple[BlockingLink, FarEnd]:
                server = stack.enter_context(
                    link_server(
                        loop_name, max_message_bytes=max_message_bytes, tls=contexts.get("server")
                    )
                )
                link = connect(
                    server.address, max_message_bytes=max_message_bytes, tls=contexts.get("client")
                )
                stack.callback(link.close)
                return link, server.accept()

            yield open_pair


def test_a_frame_that_comes_with_the_handshake_is_received() -> None:
    def behave(sock: socket.socket) -> None:
        protocol = ServerProtocol()
        protocol.receive_data(sock.recv(2**16))
        protocol.send_response(protocol.accept(protocol.events_received()[0]))  # type: ignore[arg-type]
        protocol.send_binary(b"early")
        sock.sendall(b"".join(protocol.data_to_send()))
        read_to_end(sock)

    with raw_server(behave) as port:
        link = connect(f"ws://127.0.0.1:{port}", close_timeout_seconds=0)
        assert link.wait_readable(PATIENCE_SECONDS)
        assert link.receive(PATIENCE_SECONDS) == b"early"
        link.close()


@pytest.mark.parametrize("timeout_seconds", [None, PATIENCE_SECONDS])
def test_frames_that_arrive_byte_by_byte_are_put_together(timeout_seconds: float | None) -> None:
    stream = frame_bytes(Opcode.BINARY, b"") + frame_bytes(Opcode.BINARY, pattern(200))
    stream += frame_bytes(Opcode.PING, b"?") + frame_bytes(Opcode.BINARY, b"end")
    with scripted_link(*(stream[n : n + 1] for n in range(len(stream)))) as link:
        received = [link.receive(timeout_seconds) for _ in range(3)]
    assert received == [b"", pattern(200), b"end"]


@pytest.mark.parametrize("timeout_seconds", [None, PATIENCE_SECONDS])
def test_a_message_in_fragments_with_a_ping_between_them_arrives_whole(
    timeout_seconds: float | None,
) -> None:
    large = pattern(300_000)
    with scripted_link(
        frame_bytes(Opcode.BINARY, large, fin=False),
        frame_bytes(Opcode.PING, b"?"),
        frame_bytes(Opcode.CONT, b"", fin=False),
        frame_bytes(Opcode.CONT, large, fin=False) + frame_bytes(Opcode.CONT, b"", fin=True),
        frame_bytes(Opcode.BINARY, b"next"),
    ) as link:
        assert link.receive(timeout_seconds) == large + large
        assert link.receive(timeout_seconds) == b"next"


def test_a_text_message_is_a_violation_that_ends_the_link() -> None:
    with scripted_link(frame_bytes(Opcode.TEXT, b"hello?")) as link:
        with pytest.raises(ProtocolViolation, match="binary"):
            link.receive(PATIENCE_SECONDS)
        assert link.closed
        with pytest.raises(ConnectionLost):
            link.receive(PATIENCE_SECONDS)


def test_a_close_frame_with_an_impossible_code_ends_the_link() -> None:
    broken = pytest.raises(ConnectionLost, match="broke the protocol")
    with scripted_link(frame_bytes(Opcode.CLOSE, struct.pack("!H", 17))) as link, broken:
        link.receive(PATIENCE_SECONDS)


def test_a_stream_that_ends_within_a_frame_is_connection_lost() -> None:
    def behave(sock: socket.socket) -> None:
        accept_websocket(sock)
        sock.sendall(frame_bytes(Opcode.BINARY, bytes(300_000))[:200_000])

    with raw_server(behave) as port:
        link = connect(f"ws://127.0.0.1:{port}")
        with pytest.raises(ConnectionLost, match="hung up"):
            link.receive(None)
        link.close()


def test_frames_sent_before_a_close_are_received_after_a_failed_send() -> None:
    def behave(sock: socket.socket) -> None:
        accept_websocket(sock)
        sock.sendall(frame_bytes(Opcode.BINARY, b"because"))
        sock.sendall(frame_bytes(Opcode.CLOSE, struct.pack("!H", 1001) + b"draining"))
        sock.shutdown(socket.SHUT_RDWR)

    with raw_server(behave) as port:
        link = connect(f"ws://127.0.0.1:{port}")
        with pytest.raises(ConnectionLost):
            while True:
                link.send(bytes(2**20))
        with contextlib.suppress(ConnectionLost):
            assert link.receive(PATIENCE_SECONDS) == b"because"
        with pytest.raises(ConnectionLost):
            link.receive(PATIENCE_SECONDS)
        link.close()


def test_pings_are_answered_while_receiving() -> None:
    with link_server() as server:
        link = connect(server.address)
        end = server.accept()
        receiving = in_thread(link.receive, None)
        end.run(wait_for(end.run(end.connection.ping())))
        end.send(b"done")
        assert receiving.result(PATIENCE_SECONDS) == b"done"
        link.close()


def test_pings_are_answered_while_another_thread_is_blocked_in_a_send() -> None:
    with link_server() as server:
        link = connect(server.address)
        end = server.accept()
        progress = threading.Semaphore(0)

        def send_all() -> None:
            for _ in range(64):
                link.send(bytes(2**20))
                progress.release()

        sending = in_thread(send_all)
        while progress.acquire(timeout=0.2):
            pass
        receiving = in_thread(link.receive, None)
        answered = end.run(end.connection.ping())
        end.send(b"the receiver was not held up")
        assert receiving.result(PATIENCE_SECONDS) == b"the receiver was not held up"
        for _ in range(64):
            end.receive()
        sending.result(PATIENCE_SECONDS)
        end.run(wait_for(answered))
        link.close()


async def wait_for(answered: Any) -> None:
    await answered


class Clock:
    """A fake of ``time`` for the keepalive timer; a test advances it."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(keepalive, "time", clock)
    return clock


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Counts the signs of life that a link has recorded."""
    heard = threading.Semaphore(0)
    record_message = KeepaliveTimer.record_message

    def count(timer: KeepaliveTimer) -> None:
        record_message(timer)
        heard.release()

    monkeypatch.setattr(KeepaliveTimer, "record_message", count)
    return heard


def test_a_peer_that_answers_pings_stays_connected(
    clock: Clock, heard: threading.Semaphore
) -> None:
    with link_server() as server:
        link = connect(server.address)
        link.keep_alive(0.02)
        end = server.accept()
        for _ in range(5):
            clock.now += 1  # the next ping is due, and a silent peer would be lost
            while not heard.acquire(blocking=False):
                assert link.receive(0.01) is None
        end.send(b"alive")
        assert link.receive(PATIENCE_SECONDS) == b"alive"
        link.close()


@pytest.mark.parametrize("waiting", [True, False])
@pytest.mark.parametrize("timeout_seconds", [PATIENCE_SECONDS, None])
def test_a_peer_that_does_not_answer_pings_is_lost(
    waiting: bool, timeout_seconds: float | None
) -> None:
    with scripted_link() as link:
        link.keep_alive(0.02)
        if waiting:
            assert link.wait_readable(timeout_seconds)
        with pytest.raises(ConnectionLost, match="did not answer a ping"):
            link.receive(timeout_seconds)


def test_a_reader_without_a_timeout_waits_while_pings_are_answered(
    clock: Clock, heard: threading.Semaphore
) -> None:
    with link_server() as server:
        link = connect(server.address)
        link.keep_alive(0.01)
        end = server.accept()
        received = in_thread(link.receive, None)
        for _ in range(5):
            clock.now += 1
            assert heard.acquire(timeout=PATIENCE_SECONDS)
            assert not received.done()
        end.send(b"alive")
        assert received.result(PATIENCE_SECONDS) == b"alive"
        link.close()


def test_messages_are_sent_in_fragments_on_request() -> None:
    message = pattern(2 * 2**20 + 5)
    sizes: list[int] = []
    done = threading.Event()

    def behave(sock: socket.socket) -> None:
        server = ServerProtocol(state=State.OPEN, max_size=None)
        accept_websocket(sock)
        while sum(sizes) < len(message):
            server.receive_data(sock.recv(2**16))
            sizes.extend(len(e.data) for e in server.events_received() if isinstance(e, Frame))
        done.set()

    with raw_server(behave) as port:
        link = connect(f"ws://127.0.0.1:{port}", close_timeout_seconds=0, fragment_bytes=2**20)
        link.send_parts(message[:3], memoryview(message)[3:])
        assert done.wait(PATIENCE_SECONDS)
        link.close()
    assert sizes == [2**20, 2**20, 5]


def test_fragmented_messages_arrive_whole() -> None:
    message = pattern(2 * 2**20 + 5)
    with link_server() as server:
        link = connect(server.address, fragment_bytes=2**20)
        end = server.accept()
        for sent in (message, b""):
            sending = in_thread(link.send, sent)
            assert end.receive() == sent
            sending.result(PATIENCE_SECONDS)
        link.close()
