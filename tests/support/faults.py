"""A TCP proxy that does what networks do: it cuts connections, at a byte that the test chooses."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Callable, Iterator

__all__ = ["FaultyProxy", "faulty_proxy"]

# Returns after how many bytes, in both directions together, a connection is cut; None: never.
Plan = Callable[[], int | None]


class FaultyProxy:
    """Pass bytes on until a connection's plan says to cut it. Counts the cuts."""

    def __init__(self, target_port: int, plan: Plan) -> None:
        self.cuts = 0
        # Cleared: connections are taken and nothing is passed on, as by a network that is down.
        self.open = threading.Event()
        self.open.set()
        self._plan = plan
        self._target_port = target_port
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"ws://127.0.0.1:{self._listener.getsockname()[1]}"
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def cut_all(self) -> None:
        """Cut every connection there is."""
        with self._lock:
            pairs = [*self._pairs]
        for pair in pairs:
            self._cut(pair)

    def close(self) -> None:
        """Stop listening and cut what is left."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.open.set()
        self.cut_all()
        self._accepting.join(5)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                self.open.wait()
                far = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                return
            for each in (near, far):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = (near, far)
            with self._lock:
                self._pairs.add(pair)
            budget = _Budget(self._plan())
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
            while data := source.recv(65_536):
                allowed = budget.take(len(data))
                sink.sendall(data[:allowed])
                if allowed < len(data):
                    self.cuts += 1
                    break
        except OSError:
            pass
        self._cut(pair)

    def _cut(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with self._lock:
            self._pairs.discard(pair)
        for each in pair:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


class _Budget:
    """The bytes that a connection may still carry."""

    def __init__(self, total: int | None) -> None:
        self._left = total
        self._lock = threading.Lock()

    def take(self, wanted: int) -> int:
        """Return how many of these bytes may pass."""
        with self._lock:
            if self._left is None:
                return wanted
            allowed = min(wanted, self._left)
            self._left -= allowed
            return allowed


@contextlib.contextmanager
def faulty_proxy(target_port: int, plan: Plan = lambda: None) -> Iterator[FaultyProxy]:
    """Run a proxy in front of a server's port."""
    proxy = FaultyProxy(target_port, plan)
    try:
        yield proxy
    finally:
        proxy.close()


def random_cuts(count: int, low: int, high: int, seed: int = 0) -> Plan:
    """Cut the first ``count`` connections after a random number of bytes each."""
    rng = random.Random(seed)
    left = iter([rng.randrange(low, high) for _ in range(count)])
    return lambda: next(left, None)
