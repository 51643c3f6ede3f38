"""A relay that makes the round trip between a client and a server longer.

It runs in a process of its own, so it takes no interpreter lock from the program that is measured.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.queues import Queue

__all__ = ["delayed_link"]


@contextmanager
def delayed_link(port: int, milliseconds: float) -> Iterator[int]:
    """Yield the port of a relay to a port of this machine; without a delay, that port itself.

    ``milliseconds`` is how much longer a round trip takes: half of it in each direction.
    """
    if not milliseconds:
        yield port
        return
    spawning = get_context("spawn")
    ready: Queue[int] = spawning.Queue()
    process = spawning.Process(target=_relay, args=(port, milliseconds / 2000, ready), daemon=True)
    process.start()
    try:
        yield ready.get(timeout=10)
    finally:
        process.terminate()
        process.join()


def _relay(port: int, seconds: float, ready: Queue[int]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ready.put(listener.getsockname()[1])
        while True:
            near, _ = listener.accept()
            far = socket.create_connection(("127.0.0.1", port))
            for pair in ((near, far), (far, near)):
                pair[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=_delay, args=(*pair, seconds), daemon=True).start()


def _delay(source: socket.socket, sink: socket.socket, seconds: float) -> None:
    """Pass on bytes, each with a delay."""
    waiting: queue.Queue[tuple[float, bytes]] = queue.Queue()

    def deliver() -> None:
        while True:
            due, data = waiting.get()
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)
            except OSError:
                return

    threading.Thread(target=deliver, daemon=True).start()
    data = b"-"
    while data:
        try:
            data = source.recv(2**18)
        except OSError:
            data = b""
        waiting.put((time.monotonic() + seconds, data))
