"""A TCP proxy that cuts, delays, splits and stalls connections as a test demands."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import burn_remote as br
from support.waiting import PATIENCE_SECONDS

__all__ = ["FaultyProxy", "bytes_to_open", "faulty_proxy", "random_cuts"]

# Returns the number of bytes, of both directions, after which a connection is cut; None for never.
Plan = Callable[[], int | None]


class FaultyProxy:
    """Forwards bytes until a connection's plan cuts it. Counts connections and cuts.

    At most ``piece_bytes`` bytes are forwarded at once. A cut is an orderly end of the stream for
    both ends, or a reset if ``resets`` is true. ``change`` is called with the forwarded bytes, and
    whether they go to the server, and may change them.
    """

    def __init__(
        self,
        target_port: int,
        plan: Plan,
        *,
        piece_bytes: int = 65_536,
        resets: bool = False,
        change: Callable[[bytes, bool], bytes] = lambda data, goes_up: data,
    ) -> None:
        self.connections = 0
        self.cuts = 0
        # While cleared, connections stay open, and their bytes wait here.
        self.flowing = threading.Event()
        self.flowing.set()
        self._piece_bytes = piece_bytes
        self._resets = resets
        # Called at each cut before the connection is closed, for example to kill a process.
        self.at_cut: Callable[[], None] = lambda: None
        self.change = change
        # While cleared, connections are accepted but nothing is forwarded, as in a dead network.
        self.open = threading.Event()
        self.open.set()
        self._plan = plan
        self._target_port = target_port
        self._pairs: dict[tuple[socket.socket, socket.socket], _Budget] = {}
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"ws://127.0.0.1:{self._listener.getsockname()[1]}"
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def cut_all(self) -> None:
        """Cut all open connections."""
        with self._lock:
            pairs = [*self._pairs]
        for pair in pairs:
            self._cut(pair)

    def stall_all(self) -> None:
        """Stop forwarding on all open connections, including their end of stream."""
        with self._lock:
            for budget in self._pairs.values():
                budget.stalled = True

    def close(self) -> None:
        """Stop listening and cut the remaining connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.open.set()
        self.flowing.set()
        self._closed.set()
        self._accepting.join(PATIENCE_SECONDS)
        self.cut_all()  # afterwards, so that a connection that was accepted last is cut too

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.open.wait()
            try:
                far = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                near.close()
                continue
            for each in (near, far):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = (near, far)
            budget = _Budget(self._plan())
            self.connections += 1
            with self._lock:
                self._pairs[pair] = budget
            for source, sink in (pair, pair[::-1]):
                threading.Thread(
                    target=self._pass_on, args=(source, sink, pair, budget), daemon=True
                ).start()

    def _pass_on(
        self,
        source: socket.socket,
        sink: socket.socket,
        pair: tuple[socket.socket, socket.socket],
        budget: _Budget,
    ) -> None:
        try:
            while (data := source.recv(self._piece_bytes)) and not budget.stalled:
                self.flowing.wait()
                data = self.change(data, source is pair[0])
                allowed = budget.take(len(data))
                sink.sendall(data[:allowed])
                if allowed < len(data):
                    self.cuts += 1
                    self.at_cut()
                    break
        except OSError:
            pass
        if budget.stalled:
            self._closed.wait()
        self._cut(pair)

    def _cut(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with self._lock:
            self._pairs.pop(pair, None)
        for each in pair:
            with contextlib.suppress(OSError):
                if self._resets:
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                else:
                    each.shutdown(socket.SHUT_RDWR)
            each.close()


class _Budget:
    """The number of bytes that a connection may still carry."""

    def __init__(self, total: int | None) -> None:
        self.stalled = False
        self._left = total
        self._lock = threading.Lock()

    def take(self, wanted: int) -> int:
        """Return how many of these bytes may be forwarded."""
        with self._lock:
            if self._left is None:
                return wanted
            allowed = min(wanted, self._left)
            self._left -= allowed
            return allowed


@contextlib.contextmanager
def faulty_proxy(
    target_port: int, plan: Plan = lambda: None, **options: Any
) -> Iterator[FaultyProxy]:
    """Run a proxy in front of a server's port; ``options`` are those of ``FaultyProxy``."""
    proxy = FaultyProxy(target_port, plan, **options)
    try:
        yield proxy
    finally:
        proxy.close()


def random_cuts(count: int, low: int, high: int, seed: int = 0, *, after_bytes: int = 0) -> Plan:
    """Cut the first ``count`` connections after ``after_bytes`` and a random number of bytes."""
    rng = random.Random(seed)
    left = iter([after_bytes + rng.randrange(low, high) for _ in range(count)])
    return lambda: next(left, None)


def bytes_to_open(target_port: int) -> int:
    """Return how many bytes of both directions open a session on a server.

    A client does not retry a cut before that. The number grows with the operations and limits that
    a server announces; resuming takes about 30 bytes more.
    """
    sizes: list[int] = []

    def measured(data: bytes, goes_up: bool) -> bytes:
        sizes.append(len(data))
        return data

    with (
        faulty_proxy(target_port, change=measured) as proxy,
        br.RemoteDevice(proxy.address),
    ):
        return sum(sizes)
