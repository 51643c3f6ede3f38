"""All-reduce between servers, as a multiple of a ring of bare sockets in the same run.

    python benchmarks/collectives.py [--mib 64 1] [--members 2 4] [--rounds 7] [--tls]
    .venv-oracle/bin/python benchmarks/collectives.py --rival gloo
    python benchmarks/collectives.py --members 1 2 4 --mib 64 1 0.015625 --estimate

Each member of the bare ring is a process with two threads: one receives and adds with NumPy, the
other sends. Its chunks have the size of the servers' chunks. The ring's time is that of the slowest
member, from a common start. For the servers' time, the program issues ``--issued`` collectives
without a request in between; the time from the first one until all members are done is divided by
their number. The two take turns, and the ratio is that of the medians. Further figures are the
processor time of a member, which other programs hardly change, the bytes that a link carried, and
the bytes between client and servers, for each collective.

``--tls`` encrypts the links of both. ``--rival gloo`` compares with PyTorch's gloo instead, one
process for each member. ``--estimate`` derives from two members the latency alpha of a step and the
rate beta of a link, and from these the time of an all-reduce of S bytes in a ring of n machines:
2 (n - 1) (alpha + S / (n beta)) (Thakur, Rabenseifner and Gropp, 2005, without their term for the
additions, which beta includes).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import queue
import secrets
import socket
import ssl
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import psutil
import trustme

import burn_remote as br
from burn_remote_protocol.collectives import CollectiveCall, CollectiveKind, GroupSpec

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.access import certificate
from support.servers import server

CHUNK_BYTES = 512 * 1024
PEER_SENT = 'burn_remote_bytes_total{direction="sent",kind="peer"}'


class BareRing:
    """One member: a socket from the member before, one to the next, and a thread that sends."""

    def __init__(self, before: socket.socket, following: socket.socket, rank: int, members: int):
        self._before, self._following = before, following
        self._rank, self._members = rank, members
        self._unsent: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._buffer = np.empty(CHUNK_BYTES // 4, np.float32)
        threading.Thread(target=self._send, daemon=True).start()

    def _send(self) -> None:
        while True:
            self._following.sendall(self._unsent.get())

    def _receive(self, view: memoryview) -> None:
        flags = 0 if isinstance(self._before, ssl.SSLSocket) else socket.MSG_WAITALL
        while len(view):
            count = self._before.recv_into(view, 0, flags)
            view = view[count:]

    def all_reduce(self, array: Any, out: Any) -> None:
        """Store the sum over all members of a float32 array in ``out``."""
        members, rank = self._members, self._rank
        edges = [array.size * part // members for part in range(members + 1)]
        source, target = array.data.cast("B"), out.data.cast("B")

        def chunks(part: int) -> list[tuple[int, int]]:
            step = CHUNK_BYTES // 4
            stop = edges[part + 1]
            return [(at, min(at + step, stop)) for at in range(edges[part], stop, step)]

        for start, stop in chunks(rank):
            self._unsent.put(source[4 * start : 4 * stop])
        for step in range(1, members):
            for start, stop in chunks((rank - step) % members):
                received = self._buffer[: stop - start]
                self._receive(received.data.cast("B"))
                np.add(array[start:stop], received, out=out[start:stop])
                self._unsent.put(target[4 * start : 4 * stop])
        for step in range(members - 1):
            for start, stop in chunks((rank - step) % members):
                self._receive(target[4 * start : 4 * stop])
                if step < members - 2:
                    self._unsent.put(target[4 * start : 4 * stop])


def linked(
    rank: int, members: int, ports: Any, folder: Path | None
) -> tuple[socket.socket, socket.socket]:
    """Return the sockets from the member before and to the next one; over TLS with a folder."""
    listener = socket.create_server(("127.0.0.1", 0))
    ports[rank].put(listener.getsockname()[1])
    following = socket.create_connection(("127.0.0.1", ports[members + rank].get()))
    before, _ = listener.accept()
    for each in (before, following):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if folder is None:
        return before, following
    client = ssl.create_default_context(cafile=folder / "ca.pem")
    accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    accepting.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    wrapped: list[socket.socket] = []
    # Each handshake waits for another member, so both must run at the same time.
    accepted = threading.Thread(
        target=lambda: wrapped.append(accepting.wrap_socket(before, server_side=True))
    )
    accepted.start()
    secure = client.wrap_socket(following, server_hostname="127.0.0.1")
    accepted.join()
    return wrapped[0], secure


def member(
    rank: int,
    members: int,
    sizes: list[int],
    ports: Any,
    commands: Any,
    done: Any,
    folder: Path | None,
) -> None:
    """Serve a member of the bare ring: each command is a size, and how often to reduce it."""
    ring = BareRing(*linked(rank, members, ports, folder), rank, members)
    arrays = {size: np.ones(size, np.float32) for size in sizes}
    outputs = {size: np.ones(size, np.float32) for size in sizes}
    while (command := commands.get()) is not None:
        size, count = command
        for _ in range(count):
            ring.all_reduce(arrays[size], outputs[size])
        assert outputs[size][-1] == members
        done.put(rank)


def gloo_member(
    rank: int,
    members: int,
    sizes: list[int],
    ports: Any,
    commands: Any,
    done: Any,
    folder: Path | None,
) -> None:
    """Serve a member of PyTorch's gloo, as ``member`` does."""
    import torch

    if rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        for other in range(members):
            ports[members + other].put(port)
    ports[rank].put(0)
    address = f"tcp://127.0.0.1:{ports[members + rank].get()}"
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=members)
    arrays = {size: torch.ones(size) for size in sizes}
    while (command := commands.get()) is not None:
        size, count = command
        for _ in range(count):
            torch.distributed.all_reduce(arrays[size])
        done.put(rank)


class Ring(Protocol):
    """A ring whose all-reduces are timed."""

    def seconds(self, size: int, count: int) -> float:
        """Return the mean time of ``count`` all-reduces of ``size`` elements."""
        ...


class Processes:
    """The processes of a bare ring, or of gloo."""

    def __init__(self, target: Any, members: int, sizes: list[int], folder: Path | None) -> None:
        context = multiprocessing.get_context("spawn")
        ports = [context.Queue() for _ in range(2 * members)]
        self._commands = [context.Queue() for _ in range(members)]
        self._done = context.Queue()
        self._processes = [
            context.Process(
                target=target,
                args=(rank, members, sizes, ports, self._commands[rank], self._done, folder),
            )
            for rank in range(members)
        ]
        for process in self._processes:
            process.start()
        found = [ports[rank].get(timeout=60) for rank in range(members)]
        for rank in range(members):
            if target is member:
                ports[members + rank].put(found[(rank + 1) % members])

    def seconds(self, size: int, count: int) -> float:
        """Return the mean time of ``count`` all-reduces of ``size`` elements."""
        start = time.perf_counter()
        for commands in self._commands:
            commands.put((size, count))
        for _ in self._processes:
            self._done.get(timeout=120)
        return (time.perf_counter() - start) / count

    @property
    def pids(self) -> list[int]:
        """The ids of the processes."""
        return [process.pid for process in self._processes if process.pid is not None]

    def close(self) -> None:
        """End the processes."""
        for commands in self._commands:
            commands.put(None)
        for process in self._processes:
            process.join(10)


class ServerGroup:
    """One session on each of several servers, as a group."""

    def __init__(
        self, addresses: list[str], sizes: list[int], stack: Any, folder: Path | None
    ) -> None:
        tls = None if folder is None else folder / "ca.pem"
        self.devices = [stack.enter_context(br.RemoteDevice(each, tls=tls)) for each in addresses]
        secret = secrets.token_bytes(32)
        places = tuple(each.runners.session.peer_address for each in self.devices)
        self._numbers = [
            each.runners.join_group(GroupSpec(secret, rank, places, 10.0))
            for rank, each in enumerate(self.devices)
        ]
        self._inputs = {
            size: [br.ones((size,), device=each) for each in self.devices] for size in sizes
        }

    def seconds(self, size: int, count: int) -> float:
        """Return the mean time of ``count`` all-reduces of ``size`` elements."""
        start = time.perf_counter()
        for _ in range(count):
            outputs = self.issue(size)
        for each in self.devices:
            each.sync()
        seconds = (time.perf_counter() - start) / count
        assert all(output[-1:].tolist() == [len(self.devices)] for output in outputs)
        return seconds

    def issue(self, size: int) -> list[br.Tensor]:
        """Issue an all-reduce on all members."""
        inputs = self._inputs[size]
        call = CollectiveCall(CollectiveKind.ALL_REDUCE, (inputs[0].handle.spec,))
        handles = [
            each.runners.collective(number, call, [tensor.handle])[0]
            for each, number, tensor in zip(self.devices, self._numbers, inputs, strict=True)
        ]
        return [br.Tensor(handle) for handle in handles]

    def client_bytes(self) -> int:
        """Return the bytes between this program and all servers so far."""
        traffic = [each.traffic for each in self.devices]
        return sum(each.bytes_sent + each.bytes_received for each in traffic)


def processor_seconds(pids: Sequence[int]) -> float:
    """Return the processor time of processes so far."""
    used = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(each.user + each.system for each in used)


def measure(members: int, options: argparse.Namespace) -> dict[float, float]:
    """Print one line for each size; return the seconds by MiB."""
    mibs, rounds = options.mib, options.rounds
    sizes = [int(mib * 2**18) for mib in mibs]
    seconds: dict[float, float] = {}
    with contextlib.ExitStack() as stack:
        folder, flags = None, []
        if options.tls:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            flags = [*certificate(folder, trustme.CA()), "--peer-ca", str(folder / "ca.pem")]
        # The servers prove a common peer token to each other, as docs/running-a-server.md advises.
        running = [stack.enter_context(server(*flags, **_PEERS)) for _ in range(members)]
        target = gloo_member if options.rival == "gloo" else member
        bare = Processes(target, members, sizes, folder)
        stack.callback(bare.close)
        group = ServerGroup([each.address for each in running], sizes, stack, folder)
        for mib, size in zip(mibs, sizes, strict=True):
            count = max(1, min(256, round(options.issued / mib)))
            rings: tuple[Ring, ...] = (bare, group)
            times: dict[Ring, list[float]] = {ring: [] for ring in rings}
            pids = {bare: bare.pids, group: [each.process.pid for each in running]}
            used: dict[Ring, float] = dict.fromkeys(rings, 0.0)
            for ring in rings:
                ring.seconds(size, 2)
            for _ in range(rounds):
                for ring in rings:
                    before_seconds = processor_seconds(pids[ring])
                    times[ring].append(ring.seconds(size, count))
                    used[ring] += processor_seconds(pids[ring]) - before_seconds
            before = group.client_bytes()
            sent = [] if options.tls else [each.metric(PEER_SENT) for each in running]
            group.seconds(size, count)
            client = (group.client_bytes() - before) / count
            sent = [
                (each.metric(PEER_SENT) - earlier) / count
                for each, earlier in zip(running, sent, strict=bool(sent))
            ]
            ours, theirs = (statistics.median(times[ring]) for ring in (group, bare))
            seconds[mib] = ours
            shown = {
                "members": members,
                "mib": mib,
                "tls": options.tls,
                "ms": round(ours * 1e3, 2),
                f"{options.rival}_ms": round(theirs * 1e3, 2),
                "ratio": round(ours / theirs, 2),
                "processor_ms": [
                    round(used[ring] / (rounds * count * members) * 1e3, 3)
                    for ring in (group, bare)
                ],
                "range": [round(each / theirs, 2) for each in sorted(times[group])][:: rounds - 1],
                "least_share": round(2 * (members - 1) / members, 4),
                "client_bytes": round(client),
            }
            if sent:  # not over TLS: reading the metrics would need the servers' authority
                shown["link_share"] = round(max(sent) / (4 * size), 4)
            print(json.dumps(shown), flush=True)
    return seconds


def estimate(seconds: dict[float, float]) -> None:
    """Print the times of larger rings, computed from those of two members."""
    smallest, largest = min(seconds), max(seconds)
    # T(2, S) = 2 (alpha + S / (2 beta)), for two sizes.
    rate = (largest - smallest) * 2**20 / (seconds[largest] - seconds[smallest])
    latency = max(0.0, (seconds[smallest] - smallest * 2**20 / rate) / 2)
    found = {
        f"{members} x {mib:g} MiB": round(
            2e3 * (members - 1) * (latency + mib * 2**20 / (members * rate)), 2
        )
        for members in (2, 4, 64, 1024)
        for mib in seconds
    }
    alpha, beta = round(latency * 1e3, 3), round(rate / 1e9, 2)
    print(json.dumps({"alpha_ms": alpha, "beta_gb_per_second": beta, "ms": found}))


# The same peer token for all servers of a run.
_PEERS = {"BURN_REMOTE_PEER_TOKEN": secrets.token_hex(16)}


def main() -> None:
    """Measure all combinations."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--mib", type=float, nargs="+", default=[64, 1])
    parser.add_argument("--members", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--issued", type=float, default=64, help="MiB issued before a sync")
    parser.add_argument("--tls", action="store_true", help="encrypt the links")
    parser.add_argument("--rival", choices=["bare", "gloo"], default="bare")
    parser.add_argument("--estimate", action="store_true", help="derive the time of larger rings")
    options = parser.parse_args()
    found = {members: measure(members, options) for members in options.members}
    if options.estimate:
        estimate(found[2])


if __name__ == "__main__":
    main()
