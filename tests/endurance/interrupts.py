"""Ctrl-C, again and again, at random moments of a program of small operations.

A timer's signal, whose handler is that of Ctrl-C, comes 0.3 to 3 ms after the program has caught
the one before. The program must see every one, and no tensor may be left.
"""

from __future__ import annotations

import contextlib
import gc
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import burn_remote as br
from burn_remote.devices.remote import RemoteDevice
from support.servers import server

__all__ = ["LOOPS", "Interrupts", "interrupted_loop"]

PAUSE_SECONDS: Final = (0.0003, 0.003)
# After this time, a signal that the program has not seen counts as swallowed.
SWALLOWED_SECONDS: Final = 1.0
OPERATIONS: Final = 100


@dataclass
class Interrupts:
    """The outcome of a loop."""

    sent: int = 0
    seen: int = 0
    swallowed: int = 0
    wrong: int = 0
    tensors_left: int = 0


def _additions(x: br.Tensor) -> br.Tensor:
    total = x
    for _ in range(OPERATIONS):
        total = total + x
    return total


def _garbage(x: br.Tensor) -> br.Tensor:
    total = x
    for _ in range(OPERATIONS):
        circle: list[Any] = [total]
        circle.append(circle)  # freed by the garbage collector
        total = total + x
    return total


@br.compile
def _one_addition(total: br.Tensor, x: br.Tensor) -> br.Tensor:
    return total + x


def _compiled(x: br.Tensor) -> br.Tensor:
    total = x
    for _ in range(OPERATIONS):
        total = _one_addition(total, x)
    return total


LOOPS: Final[dict[str, Callable[[br.Tensor], br.Tensor]]] = {
    "additions": _additions,
    "garbage": _garbage,
    "compiled": _compiled,
}


def interrupted_loop(name: str, count: int, seed: int = 0) -> Interrupts:
    """Run a loop in the main thread until ``count`` signals were sent; return what came of them."""
    run = LOOPS[name]
    rng = random.Random(seed)
    outcome = Interrupts()
    with _raising(), server() as one, RemoteDevice(one.address) as device:
        x = br.ones((10,), device=device)
        x.numpy()
        device.sync()
        held = one.metric("burn_remote_tensors")
        for _ in range(count):
            outcome.sent += 1
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(*PAUSE_SECONDS))
                swallowed_at = time.monotonic() + SWALLOWED_SECONDS
                while time.monotonic() < swallowed_at:
                    run(x)
            except KeyboardInterrupt:
                outcome.seen += 1
            else:
                outcome.swallowed += 1
            outcome.wrong += run(x).tolist() != [OPERATIONS + 1.0] * 10
        gc.collect()
        device.sync()
        outcome.tensors_left = int(one.metric("burn_remote_tensors") - held)
    return outcome


@contextlib.contextmanager
def _raising() -> Iterator[None]:
    """Have the timer's signal do what Ctrl-C does, and the garbage collector call nobody.

    Hypothesis registers a callback of the garbage collector. Python prints and drops an exception
    raised inside such a callback, and pytest's record of it keeps the frame's tensors alive.
    """
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    try:
        yield
    finally:
        gc.callbacks[:] = callbacks
        signal.signal(signal.SIGALRM, before)
