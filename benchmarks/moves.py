"""Compare moves of a large tensor between servers with bytes through a bare socket.

    python benchmarks/moves.py

Both use the loopback interface between two processes and alternate, without and with TLS. The bare
socket uses Python's ``socket`` and ``ssl`` with 1 MiB at a time into preallocated memory: no
messages, no checksums, no tensors.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import ssl
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import trustme
from rich.console import Console
from rich.progress import track
from rich.table import Table

import burn_remote as br

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.servers import server

NBYTES: Final = 2**28
PIECE: Final = 2**20
REPEATS: Final = 7
console = Console()


class Certificate:
    """A certificate for 127.0.0.1 in files, and its authority."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1")
        self.authority = folder / "ca.pem"
        self.chain = folder / "server.pem"
        self.key = folder / "server.key.pem"
        authority.cert_pem.write_to_path(self.authority)
        issued.private_key_pem.write_to_path(self.key)
        for pem in issued.cert_chain_pems:
            pem.write_to_path(self.chain, append=True)

    def flags(self) -> list[str]:
        """Return a server's TLS settings with this certificate and authority."""
        names = {"tls-certificate": self.chain, "tls-key": self.key, "peer-ca": self.authority}
        return [word for name, path in names.items() for word in (f"--{name}", str(path))]


def bare_receiver(port: Connection, certificate: Certificate | None) -> None:
    """Receive repeatedly from one connection, and confirm each complete payload."""
    room = bytearray(PIECE)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port.send(listening.getsockname()[1])
        taken, _ = listening.accept()
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate.chain, certificate.key)
        taken = context.wrap_socket(taken, server_side=True)
    with taken:
        while True:
            missing = NBYTES
            while missing:
                count = taken.recv_into(room, min(missing, PIECE))
                if not count:
                    return
                missing -= count
            taken.sendall(b".")


@contextlib.contextmanager
def bare(certificate: Certificate | None) -> Iterator[Callable[[], object]]:
    """Yield a function that sends the bytes to another process and waits for the confirmation."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=bare_receiver, args=(there, certificate), daemon=True
    )
    process.start()
    connection = socket.create_connection(("127.0.0.1", here.recv()))
    if certificate is not None:
        context = ssl.create_default_context(cafile=certificate.authority)
        connection = context.wrap_socket(connection, server_hostname="127.0.0.1")
    piece = memoryview(bytes(PIECE))

    def send() -> None:
        for _ in range(NBYTES // PIECE):
            connection.sendall(piece)
        connection.recv(1)

    with connection:
        yield send
    process.join()


@contextlib.contextmanager
def moves(certificate: Certificate | None) -> Iterator[Callable[[], object]]:
    """Yield a function that moves a tensor to another server and waits for its arrival."""
    flags = [] if certificate is None else certificate.flags()
    trust = None if certificate is None else certificate.authority
    with (
        server(*flags) as first,
        server(*flags) as second,
        br.RemoteDevice(first.address, tls=trust) as source,
        br.RemoteDevice(second.address, tls=trust) as target,
    ):
        tensor = br.tensor(np.ones(NBYTES // 4, np.float32), device=source)

        def move() -> None:
            tensor.to(target)
            target.sync()

        yield move


def rates(*ways: Callable[[], object]) -> list[float]:
    """Return the median GB/s of each function; they alternate after a warm-up."""
    seconds: list[list[float]] = [[] for _ in ways]
    for repeat in range(REPEATS + 1):
        for way, taken in zip(ways, seconds, strict=True):
            start = time.perf_counter()
            way()
            if repeat:
                taken.append(time.perf_counter() - start)
    return [NBYTES / 1e9 / statistics.median(taken) for taken in seconds]


def main() -> None:
    """Print one table."""
    table = Table("256 MiB", "server to server, GB/s", "bare socket, GB/s", "ratio")
    with TemporaryDirectory() as folder:
        for certificate in track((None, Certificate(Path(folder))), "measuring", console=console):
            with moves(certificate) as move, bare(certificate) as send:
                moved, sent = rates(move, send)
            name = "without TLS" if certificate is None else "with TLS"
            table.add_row(name, f"{moved:.2f}", f"{sent:.2f}", f"{moved / sent:.2f}")
    console.print(table, f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
