"""Servers that send scripted bytes."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

from burn_remote_protocol.links.interface import BlockingLink
from burn_remote_protocol.links.transport_registry import connect
from support.link_servers import raw_server, read_to_end

__all__ = ["accept_websocket", "frame_bytes", "scripted_link"]


def accept_websocket(sock: socket.socket) -> None:
    """Respond to the handshake of a raw connection."""
    protocol = ServerProtocol()
    while not (events := protocol.events_received()):
        protocol.receive_data(sock.recv(2**16))
    request = events[0]
    assert isinstance(request, Request)
    protocol.send_response(protocol.accept(request))
    sock.sendall(b"".join(protocol.data_to_send()))


def frame_bytes(opcode: Opcode, payload: bytes, *, fin: bool = True) -> bytes:
    return Frame(opcode, payload, fin).serialize(mask=False)


@contextlib.contextmanager
def scripted_link(*script: bytes, **options: Any) -> Iterator[BlockingLink]:
    """Open a link to a server that sends these bytes after the handshake, then only receives."""

    def behave(sock: socket.socket) -> None:
        accept_websocket(sock)
        for part in script:
            sock.sendall(part)
        read_to_end(sock)

    with raw_server(behave) as port:
        link = connect(f"ws://127.0.0.1:{port}", close_timeout_seconds=0, **options)
        try:
            yield link
        finally:
            link.close()
