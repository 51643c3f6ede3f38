"""Two servers under half an hour of clients that connect, work, crash and disconnect.

The clients move tensors between the servers. Each lives for a random time and then closes, exits
without closing, or is killed. Every few seconds, both servers' resources are sampled.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

import psutil

from endurance.processes import Process, Snapshot, eventually
from support.servers import UNFORKED, RunningServer, server
from support.waiting import PATIENCE_SECONDS

__all__ = ["Sample", "Soak", "soak"]

LEASE_SECONDS: Final = 5.0
# Exposed tensors that nobody fetches expire during the run. On a shared machine, a target's fetch
# may come seconds after the expose.
FLAGS: Final = ("--lease-seconds", str(LEASE_SECONDS), "--transfer-expiry-seconds", "30")
# Range of a client's random lifetime.
LIFE_SECONDS: Final = (10.0, 120.0)
# Pause before each computation, so that 20 clients use little of two cores.
THINK_SECONDS: Final = "1.0"
# Timeout of a client's last step, on a shared machine.
ENDING_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.5
# Timeout of a read of /metrics. A loaded machine makes a server wait for a core: the run reports
# how long answers took, and fails only if none comes.
SCRAPE_SECONDS: Final = 120.0
CLOSE, VANISH, CRASH = "closed", "vanished", "crashed"
# How clients end: closed, exited without closing, or killed.
ENDINGS: Final = (CLOSE, VANISH, CRASH, CRASH)


@dataclass(frozen=True, slots=True)
class Sample:
    """The servers' resources at a time after the start."""

    seconds: float
    servers: tuple[Snapshot, ...]


@dataclass
class Soak:
    """The outcome of a soak run."""

    samples: list[Sample] = field(default_factory=list)
    endings: Counter[str] = field(default_factory=Counter)
    steps: int = 0  # of the clients that closed; crashed ones do not report
    cpu_seconds: float = 0.0  # of servers and clients
    slowest_scrape_seconds: float = 0.0
    wall_seconds: float = 0.0
    metrics: tuple[dict[str, float], ...] = ()  # at the end


@dataclass
class _Client:
    process: Process
    until: float
    ending: str


def soak(clients: int, seconds: float, sample_seconds: float, seed: int) -> Iterator[Soak]:
    """Keep a number of clients running for a time; yield at each sample and at the end.

    Raises ``AssertionError`` if a client gets a wrong result or an error, or if a server does not
    free the resources of ended clients.
    """
    rng = random.Random(seed)
    seen = Soak()
    started = time.monotonic()
    with ExitStack() as stack:
        servers = [stack.enter_context(server(*FLAGS, module=UNFORKED)) for _ in range(2)]
        running = [_start(rng, servers) for _ in range(clients)]
        while (now := time.monotonic()) < started + seconds:
            for number, client in enumerate(running):
                if client.until < now:
                    _end(client, seen)
                    running[number] = _start(rng, servers)
                # A client that ended by itself too early has a report with the reason.
                assert not running[number].process.ended, running[number].process.report()
            if now - started >= len(seen.samples) * sample_seconds:
                _sample(seen, servers, now - started)
                yield seen
            time.sleep(LOOK_SECONDS)
        for client in running:
            _end(client, seen)
        for each in servers:
            eventually(each, lambda snapshot: snapshot.is_empty, LEASE_SECONDS + PATIENCE_SECONDS)
        seen.wall_seconds = time.monotonic() - started
        _sample(seen, servers, seen.wall_seconds)
        children = psutil.Process().cpu_times()
        seen.cpu_seconds = children.children_user + children.children_system
        seen.cpu_seconds += sum(each.cpu_seconds for each in servers)
        seen.metrics = tuple(each.metrics(SCRAPE_SECONDS) for each in servers)
        for metrics in seen.metrics:
            _check_counters(metrics)
    yield seen


def _sample(seen: Soak, servers: list[RunningServer], seconds: float) -> None:
    snapshots = []
    for each in servers:
        start = time.monotonic()
        snapshots.append(Snapshot.of(each, SCRAPE_SECONDS))
        took = time.monotonic() - start
        seen.slowest_scrape_seconds = max(seen.slowest_scrape_seconds, took)
    seen.samples.append(Sample(seconds, tuple(snapshots)))


def _check_counters(metrics: dict[str, float]) -> None:
    """Check the counters of a server without clients."""
    count = {name.removeprefix("burn_remote_"): number for name, number in metrics.items()}
    assert count["sessions_opened_total"] == count["sessions_closed_total"], count
    taken = count["transfers_served_total"] + count["transfers_expired_total"]
    # The other exposes ended with their session.
    assert taken <= count["transfers_exposed_total"], count


def _start(rng: random.Random, servers: list[RunningServer]) -> _Client:
    first, second = rng.sample(servers, 2)
    ending = rng.choice(ENDINGS)
    dialect = rng.choice(("native", "native", "burn-0.21"))
    process = Process(
        first.address,
        "--other", second.address,
        "--dialect", dialect,
        "--seed", str(rng.randrange(2**32)),
        "--think-seconds", THINK_SECONDS,
        *(["--vanish"] if ending == VANISH else []),
    )  # fmt: skip
    return _Client(process, time.monotonic() + rng.uniform(*LIFE_SECONDS), ending)


def _end(client: _Client, seen: Soak) -> None:
    with client.process as process:
        if client.ending == CRASH:
            process.kill()
        elif client.ending == VANISH:
            process.vanish(ENDING_SECONDS)
        else:
            report = process.report(ENDING_SECONDS)
            assert not report.ended, report
            seen.steps += report.steps
    seen.endings[client.ending] += 1
