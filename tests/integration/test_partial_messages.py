"""Clients that die inside each kind of message leave nothing on the server."""

from __future__ import annotations

import secrets
import socket
import struct

import burn_remote as br
from burn_remote_protocol.dialects.native import CHUNK_BYTES, chunk_head, encode_batch, encode_frame
from burn_remote_protocol.dialects.native_tasks import encode_task
from burn_remote_protocol.messages import (
    BeginUpload,
    Closing,
    Define,
    DefineGraph,
    Execute,
    Expose,
    Fetch,
    Hello,
    Read,
    Task,
)
from burn_remote_protocol.operations.row import Operation
from burn_remote_server.settings.server_settings import Settings
from endurance.processes import eventually
from support.kernels import signature
from support.servers import server
from support.specs import f32
from support.waiting import PATIENCE_SECONDS

SMALL = f32(1000)
LARGE = f32(2**20)


def message(payload: bytes) -> bytes:
    """Return a WebSocket message with a masking key of zeros."""
    return bytes([0x82, 0xFF]) + struct.pack(">Q", len(payload)) + bytes(4) + payload


def batch(*tasks: Task) -> bytes:
    return message(encode_batch(0, [encode_task(task) for task in tasks]))


def full(tensor: int) -> Execute:
    return Execute(Operation(signature("Numeric.Full", out=SMALL, value=1.0), (tensor,)))


ADD = Define(0, signature("Numeric.Add", SMALL, SMALL))
STEPS = tuple((0, slot, 0) for slot in range(200))
MESSAGES = {
    "define": batch(ADD),
    "graph": batch(ADD, DefineGraph(4096, 1, STEPS, (200,), ())),
    "upload": batch(BeginUpload(5, LARGE, LARGE.nbytes))
    + message(chunk_head(5, 0) + bytes(CHUNK_BYTES)),
    "fetch": batch(Fetch(secrets.token_bytes(32), "ws://127.0.0.1:1", 9, SMALL)),
    "expose": batch(full(1), Expose(1, SMALL, 1, secrets.token_bytes(32), 300.0)),
    "read": batch(full(1), Read(1, 1, SMALL)),
    "closing": message(encode_frame(Closing(br.ClosedDevice("closed")))),
}


def opened(port: int) -> socket.socket:
    """Open a session, and read no further than its ``Welcome``."""
    link = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
    link.sendall(
        f"GET /session HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        "Sec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += link.recv(1)
    link.sendall(message(encode_frame(Hello((1,)))))
    assert link.recv(4096)
    return link


def test_a_client_that_dies_inside_any_message_leaves_nothing() -> None:
    deaths = 0
    with server("--lease-seconds=0.5", "--fetch-timeout-seconds=1") as running:
        for data in MESSAGES.values():
            head = len(message(b""))
            for sent in sorted({1, head - 1, head, head + 1, len(data) // 2, len(data) - 1}):
                with opened(running.port) as link:
                    link.sendall(data[:sent])
                    if sent % 2:  # the connection ends by a reset
                        link.setsockopt(
                            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                        )
                deaths += 1
            with br.RemoteDevice(running.address) as device:
                assert br.ones((2,), device=device).tolist() == [1, 1]
        eventually(running, lambda snapshot: snapshot.is_empty, PATIENCE_SECONDS)
    assert deaths < Settings().max_sessions
