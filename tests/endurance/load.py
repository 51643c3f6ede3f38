"""Load of many sessions on one server, in parallel and in sequence."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Final

import numpy as np

import burn_remote as br
from endurance.processes import Snapshot, eventually
from support.servers import UNFORKED, server

__all__ = ["Load", "many_at_once", "one_after_another"]

# The rounds of each session: an upload of random numbers, some operations and a read.
ROUNDS: Final = 10


@dataclass(frozen=True, slots=True)
class Load:
    """Snapshots of a server before and after, and while parallel sessions were open."""

    sessions: int
    seconds: float
    before: Snapshot
    during: Snapshot
    after: Snapshot
    reads: int


def many_at_once(sessions: int) -> Load:
    """Compute in parallel sessions, each in its own thread.

    Raises ``AssertionError`` for a result that differs from NumPy's.
    """
    with server("--max-sessions", str(sessions), module=UNFORKED) as running:
        with br.RemoteDevice(running.address) as device:
            _work(device, 0, 1)
        before = eventually(running, lambda snapshot: snapshot.is_empty)
        started = time.monotonic()
        all_open = threading.Barrier(sessions + 1)
        done = threading.Barrier(sessions + 1)
        errors: list[BaseException] = []

        def client(number: int) -> None:
            try:
                # Devices of one address and token share a session; this server accepts any.
                with br.RemoteDevice(running.address, token=str(number)) as device:
                    all_open.wait(120)
                    _work(device, number, ROUNDS)
                    done.wait(120)
            except BaseException as error:
                errors.append(error)
                all_open.abort()
                done.abort()

        threads = [threading.Thread(target=client, args=(number,)) for number in range(sessions)]
        for thread in threads:
            thread.start()
        try:
            all_open.wait(120)
            during = Snapshot.of(running)
            assert during.sessions == sessions, during
            done.wait(120)
        except threading.BrokenBarrierError:
            raise AssertionError(errors) from None
        seconds = time.monotonic() - started
        for thread in threads:
            thread.join()
        assert not errors, errors
        after = eventually(running, lambda snapshot: snapshot.is_empty)
    return Load(sessions, seconds, before, during, after, sessions * ROUNDS)


def one_after_another(sessions: int) -> Load:
    """Open and close sessions, with a little work in each."""
    with server(module=UNFORKED) as running:
        for number in range(sessions // 20):
            _open_and_close(running.address, number)
        before = eventually(running, lambda snapshot: snapshot.is_empty)
        started = time.monotonic()
        during = before
        for number in range(sessions):
            _open_and_close(running.address, number)
            if number == sessions // 2:
                during = Snapshot.of(running)
        seconds = time.monotonic() - started
        after = eventually(running, lambda snapshot: snapshot.is_empty)
    return Load(sessions, seconds, before, during, after, sessions)


def _open_and_close(address: str, number: int) -> None:
    with br.RemoteDevice(address) as device:
        _work(device, number, 1)


def _work(device: br.Device, seed: int, rounds: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(rounds):
        a, b = rng.integers(-1000, 1000, (32, 48)), rng.integers(-1000, 1000, (48, 16))
        x, y = br.tensor(a, device=device), br.tensor(b, device=device)
        np.testing.assert_array_equal((x @ y + seed).numpy(), a @ b + seed)
