"""Sessions over faulty networks: each result equals that of an undisturbed run, bit for bit.

A session runs one of ``PROGRAMS`` over one faulty network, or two where it moves tensors between
servers, until all planned faults have occurred. Its results are compared with those of the same
program over a healthy network.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

import burn_remote as br
from support.faulty_network import FaultyNetwork, faulty_network, random_faults
from support.servers import RunningServer, server

__all__ = ["PROGRAMS", "Faults", "sessions_through_faults"]

# Short, so that a silent network is detected soon.
HEARTBEAT_SECONDS: Final = "0.4"
# Timeout of one result; many times the duration of the worst sequence of faults.
PATIENCE_SECONDS: Final = 120.0
# Programs end after this many steps, even if fewer faults occurred than planned.
MAX_STEPS: Final = 200
MIN_STEPS: Final = 6
OPEN_ATTEMPTS: Final = 50

Devices = Sequence[br.RemoteDevice]
Result = tuple[Any, bytes]
# continues(step) returns whether the program runs this step.
Continues = Callable[[int], bool]
Program = Callable[[Devices, Continues], Iterator[Result]]


def _bits(array: Any) -> bytes:
    return bytes(np.ascontiguousarray(array).data)


def _random(step: int, *shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(step).random(shape, np.float32)


def pipelined(devices: Devices, continues: Continues) -> Iterator[Result]:
    """Keep eight reads outstanding while the tensor that they read changes."""
    weights = br.tensor(_random(0, 64, 64), device=devices[0])
    waiting: deque[tuple[int, Any]] = deque()
    step = 0
    while continues(step):
        x = br.tensor(_random(step, 64, 64), device=devices[0])
        weights = weights * 0.5 + (x @ weights) * 1e-3
        waiting.append((step, weights.read()))
        if len(waiting) > 8:
            number, read = waiting.popleft()
            yield number, _bits(read.result(PATIENCE_SECONDS))
        step += 1
    for number, read in waiting:
        yield number, _bits(read.result(PATIENCE_SECONDS))


def threads(devices: Devices, continues: Continues) -> Iterator[Result]:
    """Compute in 64 threads, each on a tensor of its own."""

    def work(thread: int) -> list[Result]:
        tensor = br.tensor(_random(thread, 16, 16), device=devices[0])
        results = []
        step = 0
        while continues(step):
            tensor = tensor * 0.75 + thread
            results.append(((thread, step), _bits(tensor.read().result(PATIENCE_SECONDS))))
            step += 1
        return results

    with ThreadPoolExecutor(64) as pool:
        for results in pool.map(work, range(64)):
            yield from results


def asynchronous(devices: Devices, continues: Continues) -> Iterator[Result]:
    """Await sixteen reads at a time."""

    async def work() -> list[Result]:
        tensor = br.tensor(_random(1, 32, 32), device=devices[0])
        results = []
        step = 0
        while continues(step):
            tensor = tensor * 0.875 + step
            arrays = await asyncio.wait_for(
                asyncio.gather(*((tensor * number).read() for number in range(16))),
                PATIENCE_SECONDS,
            )
            results += [((step, n), _bits(array)) for n, array in enumerate(arrays)]
            step += 1
        return results

    yield from asyncio.run(work())


def uploads(devices: Devices, continues: Continues) -> Iterator[Result]:
    """Upload several chunks at a time, and read their sum."""
    total = br.zeros((450, 450), device=devices[0])
    step = 0
    while continues(step):
        total = total * 0.5 + br.tensor(_random(step, 450, 450), device=devices[0])
        yield step, _bits(total.sum(axis=0).read().result(PATIENCE_SECONDS))
        step += 1


def downloads(devices: Devices, continues: Continues) -> Iterator[Result]:
    """Read several chunks at a time, two tensors at once."""
    tensor = br.tensor(_random(2, 450, 450), device=devices[0])
    step = 0
    while continues(step):
        tensor = tensor * 0.5 + step
        reads = [tensor.read(), (tensor + 1).read()]
        for number, read in enumerate(reads):
            yield (step, number), _bits(read.result(PATIENCE_SECONDS))
        step += 1


def moves(devices: Devices, continues: Continues) -> Iterator[Result]:
    """Move a tensor to the other server and back, and change it on both."""
    here, there = devices
    tensor = br.tensor(_random(3, 100, 100), device=here)
    step = 0
    while continues(step):
        tensor = ((tensor * 0.5 + step).to(there) * 0.75 + 1).to(here)
        yield step, _bits(tensor.read().result(PATIENCE_SECONDS))
        step += 1


class _Traffic(NamedTuple):
    program: Program
    devices: int
    low_bytes: int  # between these a connection breaks
    high_bytes: int


PROGRAMS: Final[Mapping[str, _Traffic]] = {
    "pipelined": _Traffic(pipelined, 1, 2_000, 120_000),
    "threads": _Traffic(threads, 1, 2_000, 60_000),
    "asynchronous": _Traffic(asynchronous, 1, 2_000, 120_000),
    "uploads": _Traffic(uploads, 1, 20_000, 1_500_000),
    "downloads": _Traffic(downloads, 1, 20_000, 1_500_000),
    "moves": _Traffic(moves, 2, 1_500, 8_000),
}


@dataclass
class Faults:
    """The outcome of a run."""

    sessions: int = 0
    results: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    programs: Counter[str] = field(default_factory=Counter)
    retried_openings: int = 0
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def total_faults(self) -> int:
        """Faults of every kind."""
        return self.faults.total()


@dataclass
class _Seen:
    name: str
    seed: int
    results: int = 0
    sessions: int = 0
    retried_openings: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    lost: str = ""
    wrong: str = ""


def sessions_through_faults(
    count: int, faults_each: int, seed: int, *, at_once: int = 12, max_steps: int = MAX_STEPS
) -> Iterator[Faults]:
    """Run programs, ``at_once`` at a time; yield the outcome so far after each."""
    seen = Faults()
    started = time.monotonic()
    with ExitStack() as stack:
        servers = [
            stack.enter_context(server("--heartbeat-seconds", HEARTBEAT_SECONDS)) for _ in range(2)
        ]
        undisturbed = {name: _undisturbed(name, servers, max_steps) for name in PROGRAMS}
        names = [*PROGRAMS]

        def run(number: int) -> _Seen:
            name = names[number % len(names)]
            return _disturbed(
                name, servers, undisturbed[name], faults_each, max_steps, seed + number
            )

        pool = stack.enter_context(ThreadPoolExecutor(at_once))
        for one in pool.map(run, range(count)):
            seen.sessions += one.sessions
            seen.results += one.results
            seen.faults += one.faults
            seen.programs[one.name] += 1
            seen.retried_openings += one.retried_openings
            if one.lost:
                seen.lost.append(f"{one.name}, seed {one.seed}: {one.lost}")
            if one.wrong:
                seen.wrong.append(f"{one.name}, seed {one.seed}: {one.wrong}")
            seen.seconds = time.monotonic() - started
            yield seen


def _undisturbed(name: str, servers: Sequence[RunningServer], max_steps: int) -> dict[Any, bytes]:
    traffic = PROGRAMS[name]
    with ExitStack() as stack:
        devices = [
            stack.enter_context(br.RemoteDevice(each.address))
            for each in servers[: traffic.devices]
        ]
        return dict(traffic.program(devices, lambda step: step < max_steps))


def _disturbed(
    name: str,
    servers: Sequence[RunningServer],
    expected: Mapping[Any, bytes],
    faults_each: int,
    max_steps: int,
    seed: int,
) -> _Seen:
    traffic = PROGRAMS[name]
    seen = _Seen(name, seed)
    with ExitStack() as stack:
        networks = []
        for number, each in enumerate(servers[: traffic.devices]):
            faults = random_faults(
                -(-faults_each // traffic.devices),
                traffic.low_bytes,
                traffic.high_bytes,
                2 * seed + number,
            )
            networks.append(stack.enter_context(faulty_network(each.port, faults)))
        try:
            devices = []
            for network in networks:
                device, attempts = _opened(network)
                seen.retried_openings += attempts
                seen.sessions += 1
                devices.append(stack.enter_context(device))

            def continues(step: int) -> bool:
                had = sum(network.faults.total() for network in networks)
                return step < MIN_STEPS or (had < faults_each and step < max_steps)

            for key, bits in traffic.program(devices, continues):
                seen.results += 1
                if expected[key] != bits and not seen.wrong:
                    seen.wrong = f"result {key} differs"
        except (br.BurnRemoteError, TimeoutError) as error:
            seen.lost = f"{type(error).__name__}: {error}"
        for network in networks:
            seen.faults += network.faults
    return seen


def _opened(network: FaultyNetwork) -> tuple[br.RemoteDevice, int]:
    """Open a session; retry, because a session that is not open yet cannot be resumed."""
    for attempt in range(OPEN_ATTEMPTS):
        try:
            return br.RemoteDevice(network.address, dialect="native"), attempt
        except (br.ConnectionFailed, br.ConnectionLost, br.ProtocolViolation):
            pass
    raise TimeoutError(f"no session after {OPEN_ATTEMPTS} attempts")
