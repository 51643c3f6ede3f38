"""A TCP proxy with the faults of networks: cuts, stalls, silence and flipped bits."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from support.waiting import PATIENCE_SECONDS

__all__ = ["KINDS", "Fault", "FaultyNetwork", "faulty_network", "random_faults"]

# reset: both ends get ECONNRESET. end: both get an orderly end of the stream. stall: nothing is
# forwarded for a while. silence: nothing is forwarded any more, not even the end of the stream.
# flip: one bit is inverted.
KINDS: Final = ("reset", "end", "stall", "silence", "flip")

PIECE_BYTES: Final = 65_536
BUFFER_BYTES: Final = 262_144
# How long the proxy tries to deliver the bytes before a fault to an end that does not read.
DELIVERY_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a connection, ``after_bytes`` (of both directions) after its previous fault."""

    kind: str
    after_bytes: int
    bit: int = 0


def random_faults(
    count: int, low: int, high: int, seed: int, kinds: tuple[str, ...] = KINDS
) -> list[Fault]:
    """Return faults at random positions; every fourth, except the first, is in a handshake."""
    rng = random.Random(seed)
    return [
        Fault(
            kinds[number % len(kinds)] if number < len(kinds) else rng.choice(kinds),
            rng.randrange(1, 1_500) if number % 4 == 3 else rng.randrange(low, high),
            rng.randrange(8),
        )
        for number in range(count)
    ]


class FaultyNetwork:
    """Forwards connections to a port of this host; each fault is applied to one of them."""

    def __init__(
        self, target_port: int, faults: Iterable[Fault], *, stall_seconds: float = 0.2
    ) -> None:
        self.faults: Final[Counter[str]] = Counter()
        self._left = deque(faults)
        self._target_port = target_port
        self._stall_seconds = stall_seconds
        self._closed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"ws://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        """Stop listening, and close all connections."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target_port), PATIENCE_SECONDS)
            except OSError:
                near.close()
                continue
            line = _Line(near, far, self)
            thread = threading.Thread(target=line.run, daemon=True)
            self._threads.append(thread)
            thread.start()

    def take_fault(self) -> Fault | None:
        """Return the next fault, if any is left."""
        try:
            return self._left.popleft()
        except IndexError:
            return None

    def give_back(self, fault: Fault | None) -> None:
        """Keep a fault for another connection, because its own ended before it."""
        if fault is not None:
            self._left.append(fault)

    def wait(self, seconds: float | None) -> bool:
        """Wait for ``close``; return whether it was called."""
        return self._closed.wait(seconds)

    @property
    def stall_seconds(self) -> float:
        return self._stall_seconds


class _Line:
    """One connection through the network, served by one thread."""

    def __init__(self, near: socket.socket, far: socket.socket, network: FaultyNetwork) -> None:
        self._ends: Final = (near, far)
        self._other: Final = {near: far, far: near}
        self._waiting: Final = {near: bytearray(), far: bytearray()}  # to be sent there
        self._ended: set[socket.socket] = set()
        self._fault = network.take_fault()
        self._carried = 0
        self._network: Final = network
        for end in self._ends:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.setblocking(False)

    def run(self) -> None:
        try:
            while self._step():
                pass
        except OSError:
            pass
        finally:
            for end in self._ends:
                end.close()
            self._network.give_back(self._fault)

    def _step(self) -> bool:
        """Forward the bytes that have arrived; return ``False`` when the connection has ended."""
        readers = [
            end
            for end in self._ends
            if end not in self._ended and len(self._waiting[self._other[end]]) < BUFFER_BYTES
        ]
        writers = [end for end in self._ends if self._waiting[end]]
        if any(not self._waiting[self._other[end]] for end in self._ended):
            return False
        readable, writable, _ = select.select(readers, writers, [], 0.05)
        if self._network.wait(0):
            return False
        for end in writable:
            with contextlib.suppress(BlockingIOError):
                del self._waiting[end][: end.send(self._waiting[end][:PIECE_BYTES])]
        return all(map(self._read, readable))

    def _read(self, end: socket.socket) -> bool:
        try:
            data = bytearray(end.recv(PIECE_BYTES))
        except BlockingIOError:
            return True
        if not data:
            self._ended.add(end)
            return True
        sink = self._other[end]
        fault, before = self._fault, self._carried
        self._carried += len(data)
        if fault is None or self._carried < fault.after_bytes:
            self._waiting[sink] += data
            return True
        self._network.faults[fault.kind] += 1
        place = max(0, fault.after_bytes - before - 1)
        if fault.kind in ("flip", "stall"):  # the connection may survive these
            self._fault, self._carried = self._network.take_fault(), 0
            if fault.kind == "flip":
                data[place] ^= 1 << fault.bit
            self._waiting[sink] += data
            return fault.kind == "flip" or not self._network.wait(self._network.stall_seconds)
        self._fault = None
        self._waiting[sink] += data[:place]
        if fault.kind == "silence":
            self._network.wait(None)
        else:
            self._cut(sink, resets=fault.kind == "reset")
        return False

    def _cut(self, sink: socket.socket, *, resets: bool) -> None:
        """Deliver the part before the fault, then break both connections."""
        deadline = time.monotonic() + DELIVERY_SECONDS
        waiting = self._waiting[sink]
        while waiting and time.monotonic() < deadline:
            _, writable, _ = select.select([], [sink], [], 0.05)
            if writable:
                del waiting[: sink.send(waiting)]
        for end in self._ends:
            if resets:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextlib.contextmanager
def faulty_network(target_port: int, faults: Iterable[Fault]) -> Iterator[FaultyNetwork]:
    """Run a faulty network in front of a server's port."""
    network = FaultyNetwork(target_port, faults)
    try:
        yield network
    finally:
        network.close()
