"""The server's end of a Burn client's sockets, controlled by a test."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

from burn_remote_protocol.dialects.burn_0_21 import decode_init, decode_tasks
from burn_remote_protocol.dialects.burn_0_21_responses import BurnReply, encode_reply
from burn_remote_protocol.links.interface import BlockingLink
from burn_remote_protocol.links.transport_registry import connect
from support.waiting import PATIENCE_SECONDS

__all__ = ["BurnEnd", "SocketEnd", "burn_end"]

ROUTES = ("/request", "/response")

T = TypeVar("T")


class SocketEnd:
    """One socket: ``frames`` holds the received WebSocket frames, ``message`` decodes them."""

    def __init__(self, sock: socket.socket, protocol: ServerProtocol) -> None:
        self.frames: list[Frame] = []
        self._sock = sock
        self._protocol = protocol
        self._messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def read(self) -> None:
        """Receive until the client closes the connection."""
        parts: list[bytes] = []
        with contextlib.suppress(OSError):
            while data := self._sock.recv(2**20):
                self._protocol.receive_data(data)
                for frame in self._protocol.events_received():
                    assert isinstance(frame, Frame)  # the handshake is over
                    self.frames.append(frame)
                    if frame.opcode in (Opcode.BINARY, Opcode.CONT):
                        parts.append(bytes(frame.data))
                        if frame.fin:
                            self._messages.put(b"".join(parts))
                            parts.clear()
        self._messages.put(None)

    def message(self) -> bytes:
        """Return the next message."""
        message = self._messages.get(timeout=PATIENCE_SECONDS)
        assert message is not None, "the client has hung up"
        return message

    def rest(self) -> list[bytes]:
        """Wait for the client to close the connection, and return all further messages."""
        messages = []
        while (message := self._messages.get(timeout=PATIENCE_SECONDS)) is not None:
            messages.append(message)
        return messages

    def send(self, message: bytes) -> None:
        """Send one message."""
        self._protocol.send_binary(message)
        self._sock.sendall(b"".join(self._protocol.data_to_send()))

    def hang_up(self) -> None:
        """Close the socket as Burn's server does: without a reason."""
        self._sock.shutdown(socket.SHUT_RDWR)


class BurnEnd:
    """A listening Burn server that sends nothing by itself."""

    def __init__(self, port: int) -> None:
        self.address = f"ws://127.0.0.1:{port}"
        self.sockets: dict[str, SocketEnd] = {}
        self.refused: list[str] = []  # other requested routes
        self.opened = threading.Condition()

    def dial(self, route: str, **options: Any) -> BlockingLink:
        """Open a socket as a client does."""
        return connect(self.address, route, close_timeout_seconds=0, **options)

    def socket_at(self, route: str) -> SocketEnd:
        """Wait for a socket and return it."""
        with self.opened:
            assert self.opened.wait_for(lambda: route in self.sockets, PATIENCE_SECONDS)
            return self.sockets[route]

    @property
    def requests(self) -> SocketEnd:
        return self.socket_at("/request")

    @property
    def responses(self) -> SocketEnd:
        return self.socket_at("/response")

    def greet(self) -> int:
        """Receive ``Init`` on both sockets; return their common session id."""
        first, second = (decode_init(self.socket_at(route).message()) for route in ROUTES)
        assert first == second
        return first

    def tasks(self) -> tuple[Any, ...]:
        """Return the task in the next message on ``/request``."""
        return decode_tasks(self.requests.message())

    def answer(self, request: int, value: Any, *, is_sync: bool = False) -> None:
        """Send a response."""
        pieces = encode_reply(BurnReply(request, value), is_sync=is_sync)
        self.responses.send(b"".join(pieces))

    def admit(self, opening: Callable[[], T], usages: tuple[int, ...] = (3, 3, 0)) -> T:
        """Call ``opening``, respond to its first requests, and return the session it opens.

        ``usages`` are the replies to its three dtype queries, one for each store of bools.
        """
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(opening())
            except BaseException as error:
                result.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        self.greet()
        for usage in usages:
            (question,) = self.tasks()
            self.answer(question.request, usage)
        return result.result(PATIENCE_SECONDS)

    def handle(self, sock: socket.socket, refuse_with: int) -> None:
        """Accept the handshake and receive; refuse routes that Burn lacks."""
        protocol = ServerProtocol(max_size=None)
        while not (events := protocol.events_received()):
            protocol.receive_data(sock.recv(2**16))
        request = events[0]
        assert isinstance(request, Request)
        if request.path not in ROUTES:
            self.refused.append(request.path)
            protocol.send_response(protocol.reject(refuse_with, "nothing is here\n"))
            sock.sendall(b"".join(protocol.data_to_send()))
            return
        protocol.send_response(protocol.accept(request))
        sock.sendall(b"".join(protocol.data_to_send()))
        end = SocketEnd(sock, protocol)
        with self.opened:
            self.sockets[request.path] = end
            self.opened.notify_all()
        end.read()


@contextlib.contextmanager
def burn_end(refuse_with: int = 404) -> Iterator[BurnEnd]:
    """Listen; respond to routes that Burn lacks with an HTTP status."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        end = BurnEnd(listening.getsockname()[1])
        threads: list[threading.Thread] = []
        accepted: list[socket.socket] = []

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    sock, _ = listening.accept()
                    accepted.append(sock)
                    thread = threading.Thread(target=converse, args=(sock,))
                    threads.append(thread)
                    thread.start()

        def converse(sock: socket.socket) -> None:
            with sock, contextlib.suppress(OSError):
                end.handle(sock, refuse_with)

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield end
        finally:
            # On Linux, close() alone does not wake a thread in accept().
            listening.shutdown(socket.SHUT_RDWR)
            accepting.join(PATIENCE_SECONDS)
            for sock in accepted:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join(PATIENCE_SECONDS)
                assert not thread.is_alive(), "the server's end did not stop"
