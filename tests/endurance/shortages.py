"""Servers that receive signals, or lack descriptors or memory, while clients compute."""

from __future__ import annotations

import random
import resource
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from endurance.failing_server import (
    COUNT_VARIABLE,
    DONE_VARIABLE,
    SECONDS_VARIABLE,
    SEED_VARIABLE,
)
from endurance.processes import Process, Report, Snapshot, eventually
from support.servers import UNFORKED, RunningServer, server
from support.waiting import wait_until

__all__ = [
    "DIALECTS",
    "SIGNALS",
    "FailingAllocations",
    "Shortage",
    "failing_allocations",
    "signalled",
    "without_descriptors",
]

DIALECTS: Final = ("native", "burn-0.21", "burn-0.22")
# Those that a server survives. SIGSTOP and SIGTSTP stop it for a moment.
SIGNALS: Final = (
    signal.SIGHUP,
    signal.SIGPIPE,
    signal.SIGWINCH,
    signal.SIGCHLD,
    signal.SIGURG,
    signal.SIGCONT,
    signal.SIGSTOP,
    signal.SIGTSTP,
)
# How long a client of a server with failing allocations may take to end: the longest timeout of a
# client is that of a handshake, 10 s.
END_SECONDS: Final = 25.0
# Descriptors that a server may open beyond those of its sessions during a shortage.
SPARE: Final = 8


@dataclass(frozen=True, slots=True)
class Shortage:
    """The reports of the clients, the server before them and afterwards, and its exit code."""

    reports: list[Report]
    before: Snapshot
    after: Snapshot
    exit_code: int


@contextmanager
def _clients(running: RunningServer, seed: int) -> Iterator[list[Process]]:
    """Start a client of each dialect, which computes until it is asked for its report."""
    with ExitStack() as stack:
        clients = [
            stack.enter_context(
                Process(running.address, "--dialect", each, "--seed", str(seed), "--announce")
            )
            for each in DIALECTS
        ]
        for client in clients:
            client.wait_ready()
        yield clients


def _report_of_another(running: RunningServer, dialect: str) -> Report:
    with Process(running.address, "--dialect", dialect, "--steps", "5", "--small") as client:
        return client.report()


def without_descriptors(floods: int, seed: int) -> Shortage:
    """Take all descriptors of a server with connections, some times, while clients compute.

    Raises ``AssertionError`` if a client gets a wrong result, or does not end.
    """
    with server("--handshake-timeout-seconds", "60", module=UNFORKED) as running:
        before = eventually(running, lambda snapshot: snapshot.is_empty)
        with _clients(running, seed) as clients:
            usual = resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE)
            for _ in range(floods):
                limit = running.descriptors + SPARE
                resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE, (limit, usual[1]))
                with ExitStack() as stack:
                    for _ in range(2 * SPARE):
                        stack.enter_context(socket.create_connection(("127.0.0.1", running.port)))
                    wait_until(lambda limit=limit: running.descriptors >= limit)  # type: ignore[misc]
                resource.prlimit(running.process.pid, resource.RLIMIT_NOFILE, usual)
                for dialect in DIALECTS:
                    assert not _report_of_another(running, dialect).ended
            reports = [client.report() for client in clients]
        after = eventually(running, lambda snapshot: snapshot.is_empty)
        return Shortage(reports, before, after, running.stop())


def signalled(bursts: int, seed: int) -> Shortage:
    """Send a server bursts of signals while clients compute, and stop it by SIGTERM."""
    rng = random.Random(seed)
    with server(module=UNFORKED) as running:
        before = eventually(running, lambda snapshot: snapshot.is_empty)
        with _clients(running, seed) as clients:
            for _ in range(bursts):
                chosen = rng.choice(SIGNALS)
                for _ in range(rng.randrange(1, 30)):
                    running.process.send_signal(chosen)
                time.sleep(rng.uniform(0.0, 0.1))  # how long SIGSTOP and SIGTSTP stop the server
                running.process.send_signal(signal.SIGCONT)
            reports = [client.report() for client in clients]
        after = eventually(running, lambda snapshot: snapshot.is_empty)
        return Shortage(reports, before, after, running.stop())


@dataclass(slots=True)
class FailingAllocations:
    """How the clients of a server ended whose allocations failed, and the server afterwards."""

    hung: list[str]
    ended: list[str]
    crash_code: int | None = None
    after: Snapshot | None = None
    exit_code: int | None = None


def failing_allocations(count: int, interval_seconds: float, seed: int) -> FailingAllocations:
    """Let allocations of a server fail while four clients compute, and open sessions again."""
    seen = FailingAllocations([], [])
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        done = Path(directory) / "done"
        environment = {
            COUNT_VARIABLE: str(count),
            SECONDS_VARIABLE: str(interval_seconds),
            SEED_VARIABLE: str(seed),
            DONE_VARIABLE: str(done),
        }
        flags = ("--handshake-timeout-seconds", "5", "--log-level", "error")
        running = stack.enter_context(
            server(*flags, module="endurance.failing_server", **environment)
        )
        clients = {}
        for name in ("native", "burn-0.22", "burn-0.21", "burn-0.22 again"):
            arguments = ("--dialect", name.split()[0], "--seed", str(seed), "--again")
            clients[name] = stack.enter_context(Process(running.address, *arguments))
        while not done.exists():
            seen.crash_code = running.process.poll()
            if seen.crash_code is not None:
                return seen
            time.sleep(0.1)
        for client in clients.values():
            client.ask_to_end()
        deadline = time.monotonic() + END_SECONDS
        for name, client in clients.items():
            try:
                wait_until(lambda client=client: client.ended, max(0, deadline - time.monotonic()))  # type: ignore[misc]
                seen.ended.append(name)
            except AssertionError:
                seen.hung.append(name)
        if not seen.hung:
            seen.after = eventually(running, lambda snapshot: not snapshot.tensor_bytes)
        seen.exit_code = running.stop()
    return seen
