"""Kills and stops of a member in the middle of a collective, and what the other members do.

A group has three *steady* servers and a *victim*, a new server each round, at a random rank. The
program issues a chain of all-reduces, and after a random time the victim is killed or stopped. All
other members must raise ``CollectiveFailed`` with the victim's rank and address. After that, they
must still compute, and a new group of them carries out a collective. The steady servers must keep
no threads, descriptors or tensors of the rounds.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import burn_remote as br
from endurance.processes import Snapshot, eventually
from support.servers import RunningServer, server

__all__ = ["GroupFaults", "fault_rounds"]

STEADY: Final = 3
# The float32 elements of the all-reduces, and how many are in a chain, which takes longer than the
# program waits. The sender's thread sends 8 MiB; the worker itself sends 1 MiB.
CHAINS: Final = ((2 * 2**20, 40), (2**18, 320))
LONGEST_DELAY_SECONDS: Final = 0.5
# Timeout of each wait: no member may hang.
WAIT_SECONDS: Final = 30.0


@dataclass
class GroupFaults:
    """The outcome of rounds so far.

    The times of kills and stops are seconds from the signal until all other members have raised.
    ``regroup_seconds`` are the durations of forming a new group and one collective of it.
    """

    kill_seconds: list[float] = field(default_factory=list)
    stop_seconds: list[float] = field(default_factory=list)
    regroup_seconds: list[float] = field(default_factory=list)
    before: list[Snapshot] = field(default_factory=list)
    after: list[Snapshot] = field(default_factory=list)
    now: list[Snapshot] = field(default_factory=list)


class _Survivor:
    """A thread that reads the last result of a member and notes when and how that ended."""

    def __init__(self, output: br.Tensor) -> None:
        self._output: br.Tensor | None = output
        self.error: Exception | None = None
        self.ended_at = 0.0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._output is not None
        try:
            self._output[:1].numpy()
        except Exception as error:
            self.error = error
        self.ended_at = time.monotonic()
        self._output = None

    def wait(self) -> None:
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive(), "a member hangs"


def fault_rounds(kills: int, stops: int, bound_seconds: float, seed: int) -> Iterator[GroupFaults]:
    """Kill or stop a member once per round; yield the outcome so far after each.

    Raises ``AssertionError`` if a guarantee other than the time is violated.
    """
    rng = random.Random(seed)
    seen = GroupFaults()
    signals = [signal.SIGKILL] * kills + [signal.SIGSTOP] * stops
    rng.shuffle(signals)
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(server()) for _ in range(STEADY)]
        steady: list[Any] = [stack.enter_context(br.RemoteDevice(one.address)) for one in running]
        for number, each in enumerate(signals):
            _round(rng, steady, each, bound_seconds, seen)
            snapshots = [eventually(one, _is_idle, WAIT_SECONDS) for one in running]
            seen.now = snapshots
            if number == min(10, len(signals) // 10):
                seen.before = snapshots  # the first rounds fill caches
            yield seen
        seen.after = snapshots
        for earlier, later in zip(seen.before, seen.after, strict=True):
            assert later.threads <= earlier.threads + 2, (earlier, later)
            assert later.descriptors <= earlier.descriptors + 2, (earlier, later)
        yield seen


def _is_idle(snapshot: Snapshot) -> bool:
    return snapshot.sessions == 1 and not snapshot.tensor_bytes and snapshot.threads < 30


def _round(
    rng: random.Random,
    steady: list[Any],
    fault: signal.Signals,
    bound_seconds: float,
    seen: GroupFaults,
) -> None:
    with server() as victim:
        culprit = rng.randrange(STEADY + 1)
        elements, collectives = rng.choice(CHAINS)
        lost = br.RemoteDevice(victim.address)
        devices = [*steady[:culprit], lost, *steady[culprit:]]
        try:
            with br.distributed.Group(devices, timeout_seconds=bound_seconds) as group:
                assert group.engine == "ring"
                values = [br.ones((elements,), device=device) for device in devices]
                # Wait until all members are linked: a member that stops during the handshakes is
                # lost only after the handshake's timeout, not after ``bound_seconds``.
                assert group.failure() is None
                outputs = values
                for _ in range(collectives):
                    outputs = group.all_reduce(outputs, "mean")
                survivors = [
                    _Survivor(output) for rank, output in enumerate(outputs) if rank != culprit
                ]
                del outputs
                time.sleep(rng.uniform(0.01, LONGEST_DELAY_SECONDS))
                victim.process.send_signal(fault)
                moment = time.monotonic()
                for one in survivors:
                    one.wait()
                _check(survivors, culprit, victim, steady, values)
            taken = max(one.ended_at for one in survivors) - moment
            times = seen.kill_seconds if fault is signal.SIGKILL else seen.stop_seconds
            times.append(taken)
            seen.regroup_seconds.append(_regrouped(steady))
        finally:
            if fault is signal.SIGSTOP:
                victim.process.send_signal(signal.SIGCONT)
            del values
            with contextlib.suppress(br.BurnRemoteError):
                lost.close(0)
        for device in steady:
            device.session.fence().result(WAIT_SECONDS)
            device.session.take_failures()
            device.sync()


def _check(
    survivors: list[_Survivor],
    culprit: int,
    victim: RunningServer,
    steady: list[Any],
    values: list[br.Tensor],
) -> None:
    """Check what the survivors raised, and that their sessions still compute."""
    for one in survivors:
        assert isinstance(one.error, br.CollectiveFailed), one.error or "it was done too early"
        assert (one.error.member, one.error.address) == (culprit, victim.address), one.error
    for rank, x in enumerate(values):
        if rank != culprit:
            assert float((x + 1).sum().item()) == 2 * x.size


def _regrouped(steady: list[Any]) -> float:
    """Form a group of the survivors and use it; return the seconds that it took."""
    began = time.monotonic()
    with br.distributed.Group(steady) as group:
        for x in group.all_reduce([br.ones((3,), device=device) for device in steady]):
            assert x.tolist() == [STEADY] * 3
        taken = time.monotonic() - began
        assert group.failure() is None
    return taken
