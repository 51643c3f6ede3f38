"""Compare the throughput of our WebSocket client with that of the websockets library.

    python benchmarks/links.py [--megabytes 256] [--rounds 5] [--json FILE]

Both clients alternate on the same server process (asyncio with uvloop) in one run, so that the
ratios are meaningful on a busy machine. Figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import date
from functools import partial
from pathlib import Path
from typing import Protocol

import uvloop
from websockets.sync.client import connect as library_connect

from burn_remote_protocol.errors import ConnectionLost
from burn_remote_protocol.links.interface import AsyncLink
from burn_remote_protocol.links.transport_interface import Request
from burn_remote_protocol.links.transport_registry import connect, listen

MEGABYTE = 10**6
KIBIBYTE = 2**10
TASK_FRAME_BYTES = 256 * 100  # a batch of 256 operations
LARGE_FRAMES = (128 * KIBIBYTE, 256 * KIBIBYTE, 512 * KIBIBYTE, 1024 * KIBIBYTE)
HUGE_PAGES = "glibc.malloc.hugetlb=1"


class Client(Protocol):
    """The interface of both clients."""

    def send(self, frame: bytes) -> None: ...
    def send_parts(self, head: bytes, payload: memoryview) -> None: ...
    def receive(self) -> bytes | memoryview | None: ...
    def close(self) -> None: ...


class LibraryClient:
    """``websockets.sync.client``, used as its documentation says."""

    def __init__(self, address: str) -> None:
        self._context = ExitStack()
        self._connection = self._context.enter_context(
            library_connect(
                address, compression=None, max_size=None, ping_interval=None, proxy=None
            )
        )

    def send(self, frame: bytes) -> None:
        self._connection.send(frame)

    def send_parts(self, head: bytes, payload: memoryview) -> None:
        self._connection.send(b"".join((head, payload)))

    def receive(self) -> bytes | None:
        return self._connection.recv(decode=False)

    def close(self) -> None:
        self._context.close()


CLIENTS: dict[str, Callable[[str], Client]] = {"burn-remote": connect, "websockets": LibraryClient}


async def handle(link: AsyncLink, request: Request) -> None:
    """Serve ``/echo``, ``/sink`` (receives n frames) and ``/source`` (sends n frames)."""
    try:
        match request.path:
            case "/echo":
                while True:
                    await link.send(await link.receive())
            case "/sink":
                while True:
                    (count,) = struct.unpack("!Q", await link.receive())
                    for _ in range(count):
                        await link.receive()
                    await link.send(b"done")
            case "/source":
                while True:
                    count, size = struct.unpack("!QQ", await link.receive())
                    payload = memoryview(os.urandom(size))
                    for _ in range(count):
                        await link.send_parts(b"a small head", payload)
    except ConnectionLost:
        pass


async def run_server() -> None:
    async with listen("ws", "127.0.0.1", 0, handle) as listener:
        print(listener.port, flush=True)
        await asyncio.Event().wait()


@contextmanager
def server() -> Iterator[str]:
    """Run this file as the server, with huge pages for its heap."""
    environment = os.environ | {"GLIBC_TUNABLES": HUGE_PAGES}
    process = subprocess.Popen(
        [sys.executable, __file__, "--server"], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    try:
        yield f"ws://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def round_trip_microseconds(client: Client) -> float:
    """Return the median round-trip time of a small frame."""
    times = []
    for _ in range(3000):
        start = time.perf_counter()
        client.send(b"x" * 100)
        client.receive()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def upload_rate(client: Client, size: int, total: int) -> float:
    """Return gigabytes per second, measured until the server has received everything."""
    count = max(1, total // size)
    payload = memoryview(os.urandom(size))
    start = time.perf_counter()
    client.send(struct.pack("!Q", count))
    for _ in range(count):
        client.send_parts(b"a small head", payload)
    client.receive()
    return count * size / (time.perf_counter() - start) / 1e9


def download_rate(client: Client, size: int, total: int) -> float:
    """Return gigabytes per second, measured from the request."""
    count = max(1, total // size)
    start = time.perf_counter()
    client.send(struct.pack("!QQ", count, size))
    for _ in range(count):
        client.receive()
    return count * size / (time.perf_counter() - start) / 1e9


def batch_rate(client: Client, size: int, total: int) -> float:
    """Return thousands of frames per second, each with a batch of 256 operations."""
    return upload_rate(client, size, total) / size * 1e6


def measures(total: int) -> dict[str, tuple[str, Callable[[Client], float]]]:
    """Return route and measurement by name. Smaller microseconds are better, larger rates."""
    table: dict[str, tuple[str, Callable[[Client], float]]] = {
        "round trip of 100 bytes, µs": ("/echo", round_trip_microseconds),
        "batches of 256 operations up, 1000/s": (
            "/sink",
            partial(batch_rate, size=TASK_FRAME_BYTES, total=total),
        ),
    }
    for size in LARGE_FRAMES:
        name = f"{size // KIBIBYTE} KiB frames"
        table[f"up, {name}, GB/s"] = ("/sink", partial(upload_rate, size=size, total=total))
        table[f"down, {name}, GB/s"] = ("/source", partial(download_rate, size=size, total=total))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.server:
        uvloop.run(run_server())
        return
    found: dict[str, dict[str, float]] = {}
    with server() as address:
        for name, (route, measure) in measures(arguments.megabytes * MEGABYTE).items():
            samples: dict[str, list[float]] = {client: [] for client in CLIENTS}
            for _ in range(arguments.rounds):
                for client_name, make in CLIENTS.items():
                    client = make(address + route)
                    samples[client_name].append(measure(client))
                    client.close()
            found[name] = {client: statistics.median(taken) for client, taken in samples.items()}
            ours, theirs = found[name]["burn-remote"], found[name]["websockets"]
            ratio = theirs / ours if name.endswith("µs") else ours / theirs
            print(f"{name:40} {ours:8.2f}  websockets {theirs:8.2f}  {ratio:5.2f} times as fast")
    if arguments.json:
        machine = {"date": date.today().isoformat(), "python": platform.python_version(),
                   "machine": platform.machine(), "cores": os.cpu_count()}  # fmt: skip
        arguments.json.write_text(json.dumps({"machine": machine, "medians": found}, indent=2))


if __name__ == "__main__":
    main()
