"""Servers in a thread of this process; tests control their ends of connections."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

import uvloop
from websockets.asyncio.server import ServerConnection, serve

from burn_remote_protocol.links.interface import MAX_MESSAGE_BYTES, NORMAL_CLOSURE
from burn_remote_protocol.links.websocket.async_connection import DirectConnection
from burn_remote_protocol.links.websocket.async_link import CONNECTION_OPTIONS, WebSocketLink
from burn_remote_protocol.links.websocket.server_connection import DirectServerConnection
from support.waiting import PATIENCE_SECONDS

__all__ = [
    "LOOPS",
    "LinkServer",
    "ServerEnd",
    "direct_options",
    "link_over",
    "link_server",
    "raw_server",
    "read_to_end",
]

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}

T = TypeVar("T")


def direct_options(max_message_bytes: int = MAX_MESSAGE_BYTES) -> dict[str, Any]:
    """Return options with which ``serve`` of ``websockets`` makes connections for links."""
    return {
        **CONNECTION_OPTIONS,
        "create_connection": partial(DirectServerConnection, max_message_bytes=max_message_bytes),
    }


def link_over(connection: ServerConnection) -> WebSocketLink:
    """Return a link over a connection made with ``direct_options``."""
    assert isinstance(connection, DirectConnection)
    return WebSocketLink(connection)


class ServerEnd:
    """The server's end of one connection, for use by a test's own thread."""

    def __init__(self, server: LinkServer, connection: ServerConnection) -> None:
        self._server = server
        self.connection = connection
        self.link = link_over(connection)
        self.done = asyncio.Event()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the server's loop and return its result."""
        return self.start(coroutine).result(PATIENCE_SECONDS)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the server's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._server.loop)

    def send(self, frame: bytes) -> None:
        self.run(self.link.send(frame))

    def send_parts(self, head: bytes, payload: memoryview) -> None:
        self.run(self.link.send_parts(head, payload))

    def receive(self) -> bytes:
        return self.run(self.link.receive())

    def close(self, code: int = NORMAL_CLOSURE, reason: str = "") -> None:
        self.run(self.link.close(code, reason))

    def vanish(self) -> None:
        """Reset the connection, as the kernel does for a killed process."""

        async def abort() -> None:
            transport = self.connection.transport
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()

        self.run(abort())


class LinkServer:
    """A WebSocket server; ``accept`` returns its ends of connections in the order of arrival."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.port = 0
        self.scheme = "ws"
        self._accepted: queue.SimpleQueue[ServerEnd] = queue.SimpleQueue()

    @property
    def address(self) -> str:
        return f"{self.scheme}://localhost:{self.port}"

    def accept(self) -> ServerEnd:
        return self._accepted.get(timeout=PATIENCE_SECONDS)

    async def handle(self, connection: ServerConnection) -> None:
        self._accepted.put(ServerEnd(self, connection))
        await connection.wait_closed()


@contextlib.contextmanager
def link_server(
    loop_name: str = "uvloop",
    *,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    tls: ssl.SSLContext | None = None,
) -> Iterator[LinkServer]:
    """Run a server in a thread until the context ends."""
    server = LinkServer(LOOPS[loop_name]())
    server.scheme = "ws" if tls is None else "wss"
    stop = asyncio.Event()
    ready = threading.Event()

    async def run() -> None:
        async with serve(
            server.handle,
            "127.0.0.1",
            0,
            ssl=tls,
            **direct_options(max_message_bytes),
        ) as listening:
            server.port = next(iter(listening.sockets)).getsockname()[1]
            ready.set()
            await stop.wait()

    def main() -> None:
        with asyncio.Runner(loop_factory=lambda: server.loop) as runner:
            runner.run(run())

    thread = threading.Thread(target=main, name="link-server")
    thread.start()
    try:
        assert ready.wait(PATIENCE_SECONDS)
        yield server
    finally:
        server.loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive(), "the server did not stop"


def read_to_end(sock: socket.socket) -> None:
    """Receive until the other side closes the connection."""
    while sock.recv(2**16):
        pass


@contextlib.contextmanager
def raw_server(behave: Callable[[socket.socket], None]) -> Iterator[int]:
    """Accept one TCP connection, hand it to ``behave`` in a thread, and yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(PATIENCE_SECONDS)

        def main() -> None:
            with contextlib.suppress(OSError):
                accepted, _ = listening.accept()
                accepted.settimeout(PATIENCE_SECONDS)
                with accepted:
                    behave(accepted)

        thread = threading.Thread(target=main, name="raw-server")
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.close()
            thread.join(2 * PATIENCE_SECONDS)
            assert not thread.is_alive(), "the raw server did not stop"
