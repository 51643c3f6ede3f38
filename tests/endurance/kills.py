"""Kills of clients and servers at a random byte of their traffic, and the effects on others.

Each round kills one process. A *steady* server is never killed. It must free the tensors of killed
clients and must keep serving a bystander, a client that works all the time. The surviving clients
must get typed errors within ``WAIT_SECONDS``.
"""

from __future__ import annotations

import contextlib
import math
import random
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from endurance.processes import Process, Report, Snapshot, eventually
from support.faults import Plan, bytes_to_open, faulty_proxy
from support.servers import RunningServer, server

__all__ = ["Kills", "kill_rounds"]

# How long servers keep a dead client's session, and wait for a dead peer's tensor.
LEASE_SECONDS: Final = 0.5
FETCH_SECONDS: Final = 2.0
FLAGS: Final = (
    "--lease-seconds", str(LEASE_SECONDS), "--fetch-timeout-seconds", str(FETCH_SECONDS)
)  # fmt: skip
# The bystander pauses, so that it measures the server's delays and not a lack of cores.
THINKING: Final = ("--think-seconds", "0.005")
# Timeout for a client to reach the byte at which it is killed.
REACH_SECONDS: Final = 60.0
# Kills happen anywhere between the native handshake and the end of some uploads: as many in the
# first 10 KB of traffic after it as above 3 MB.
LAST_BYTE: Final = 30_000_000


@dataclass
class Kills:
    """The outcome of rounds of kills."""

    clients_killed: int = 0
    servers_killed: int = 0
    errors: Counter[str] = field(default_factory=Counter)  # of surviving clients, by class
    bystander: Report | None = None
    before: Snapshot | None = None
    after: Snapshot | None = None


def kill_rounds(rounds: int, seed: int) -> Iterator[Kills]:
    """Kill once per round; yield the outcome so far after each and at the end.

    Raises ``AssertionError`` if a guarantee is violated.
    """
    rng = random.Random(seed)
    seen = Kills()
    with (
        server(*FLAGS) as steady,
        Process(steady.address, "--small", "--announce", *THINKING) as bystander,
    ):
        bystander.wait_ready()
        opened_bytes = bytes_to_open(steady.port)
        for number in range(rounds):
            if rng.random() < 0.5:
                _kill_client(rng, steady, opened_bytes)
                seen.clients_killed += 1
            else:
                seen.errors.update(_kill_server(rng, steady, opened_bytes))
                seen.servers_killed += 1
            snapshot = eventually(steady, _only_bystander)
            if number == rounds // 10:
                seen.before = snapshot  # the first rounds fill caches
            assert not bystander.ended
            yield seen
        seen.bystander = bystander.report()
        assert not seen.bystander.ended, seen.bystander.text
        seen.after = eventually(steady, lambda snapshot: snapshot.is_empty)
        yield seen


def _only_bystander(snapshot: Snapshot) -> bool:
    # Its tensors are a few kilobytes; a dead client's would be more.
    return snapshot.sessions == 1 and snapshot.tensor_bytes < 100_000 and not snapshot.offers


def _kill_client(rng: random.Random, steady: RunningServer, opened_bytes: int) -> None:
    with (
        faulty_proxy(steady.port, _one_cut(rng, opened_bytes)) as proxy,
        _client(rng, proxy.address) as client,
    ):
        proxy.at_cut = client.kill
        client.wait(REACH_SECONDS)


def _kill_server(rng: random.Random, steady: RunningServer, opened_bytes: int) -> list[str]:
    """Return the errors of the clients that used the killed server."""
    killed = threading.Event()
    with (
        server(*FLAGS) as victim,
        faulty_proxy(victim.port, _one_cut(rng, opened_bytes)) as proxy,
        contextlib.ExitStack() as stack,
    ):

        def kill() -> None:
            victim.kill()
            proxy.close()
            killed.set()

        proxy.at_cut = kill
        through, direct, moving = (
            stack.enter_context(_client(rng, *arguments))
            for arguments in (
                (proxy.address, "--other", steady.address),
                (victim.address,),
                (steady.address, "--other", victim.address),
            )
        )
        assert killed.wait(REACH_SECONDS)
        for client in (through, direct):
            client.wait()
        reports = [client.report() for client in (through, direct, moving)]
        assert reports[0].ended and reports[1].ended, reports
        return [report.ended for report in reports]


def _one_cut(rng: random.Random, opened_bytes: int) -> Plan:
    """Cut the first connection a random number of bytes after the handshake, small or large."""
    left = iter([opened_bytes + round(math.exp(rng.uniform(0, math.log(LAST_BYTE))))])
    return lambda: next(left, None)


def _client(rng: random.Random, *arguments: str) -> Process:
    dialect = rng.choice(("native", "native", "burn-0.21"))
    return Process(*arguments, "--seed", str(rng.randrange(2**32)), "--dialect", dialect)
