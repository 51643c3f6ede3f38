"""Measure what an upload of a Burn 0.22 client costs this project's server.

    python benchmarks/burn_uploads.py [--uploads 20]

A plain socket sends the frames of a client, which are made and masked beforehand. Prints the
median and the shortest time of an upload with a sync, and the server's processor time for each,
which other load on the machine affects less.
"""

from __future__ import annotations

import os
import socket
import statistics
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import msgpack
import numpy as np
import typer
from websockets.frames import Frame, Opcode

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.servers import RunningServer, server

STREAM = [0]


def framed(*messages: Any) -> bytes:
    """Return messages as one masked WebSocket frame."""
    return Frame(Opcode.BINARY, msgpack.packb(messages)).serialize(mask=True)


def opened(running: RunningServer) -> socket.socket:
    """Open a session."""
    client = socket.create_connection(("127.0.0.1", running.port))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.sendall(
        b"GET /session HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    while not client.recv(4096).endswith(b"\r\n\r\n"):
        pass
    client.sendall(framed({"Init": [2, [1], 0, b""]}))
    client.recv(4096)
    return client


def measure(running: RunningServer, mebibytes: int, uploads: int) -> None:
    """Upload, sync and drop a tensor again and again, and print what it took."""
    shape = [mebibytes * 2**18]
    elements = np.ones(shape, np.float32).tobytes()
    seconds = []
    with opened(running) as client:
        before = 0.0
        for number in range(uploads + 1):
            upload = {"RegisterTensor": [STREAM, [number], [elements, shape, "F32"]]}
            frame = framed({"Task": upload}, {"Task": {"SyncBackend": [number, STREAM]}})
            start = time.perf_counter()
            client.sendall(frame)
            reply = client.recv(4096)
            seconds.append(time.perf_counter() - start)
            if b"Ok" not in reply:
                raise SystemExit(f"the server replied {reply!r}")
            drop = {"Drop": [[number], [shape], "ReadWrite", "F32"]}
            client.sendall(framed({"Task": {"RegisterOperation": [STREAM, drop]}}))
            if not number:  # the first one warms up
                before = running.cpu_seconds
        processor = (running.cpu_seconds - before) / uploads
    print(
        f"{mebibytes:3} MiB: median {statistics.median(seconds[1:]) * 1e3:7.1f} ms, "
        f"shortest {min(seconds[1:]) * 1e3:7.1f} ms, "
        f"server's processor time {processor * 1e3:6.1f} ms"
    )


def main(
    uploads: Annotated[int, typer.Option(min=1, help="How often each size is uploaded.")] = 20,
) -> None:
    """Measure uploads of 8 and 64 MiB."""
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, {uploads} uploads each")
    with server() as running:
        for mebibytes in (8, 64):
            measure(running, mebibytes, uploads)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(main)
    app()
