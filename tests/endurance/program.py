"""The client program of endurance runs: ``python -m endurance.program ADDRESS``.

It runs random computations and compares each result with NumPy's. It ends after a number of steps,
when its standard input closes, or when its server dies and a ``BurnRemoteError`` is raised; then it
writes a report in JSON. With ``--again``, it goes on with a new session after such an error. Any
other exception ends it with a traceback.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, Final

import numpy as np

import burn_remote as br
from burn_remote.sessions.native.native_session import NativeSession
from burn_remote_protocol.ids import new_transfer_id, new_transfer_number

Array = np.ndarray[Any, np.dtype[Any]]
Work = Callable[["Program"], None]

# Bytes of an upload: more than a chunk of 1 MiB, so that a crash may happen between two chunks.
UPLOAD_BYTES: Final = 3 * 2**20
# How long a program with ``--again`` waits before it opens another session.
AGAIN_SECONDS: Final = 0.02


class Program:
    """A client with a device, optionally one on another server, and tensors that it keeps."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.rng: Final = np.random.default_rng(given.seed)
        self.device: Final = br.RemoteDevice(given.address, dialect=given.dialect)
        self.other: Final = br.RemoteDevice(given.other) if given.other else None
        self.kept: list[tuple[br.Tensor, Array]] = []

    def integers(self, *shape: int) -> Array:
        """Return integers whose sums and products are exact in 64 bits."""
        return self.rng.integers(-1000, 1000, shape)

    def close(self) -> None:
        """End the sessions."""
        self.device.close()
        if self.other is not None:
            self.other.close()


def compare(tensor: br.Tensor, expected: Array) -> None:
    """Read a tensor. Raises ``AssertionError`` if it differs from NumPy's result."""
    np.testing.assert_array_equal(tensor.numpy(), expected)


def compute(program: Program) -> None:
    """Run some operations and a read."""
    a, b = program.integers(16, 24), program.integers(24, 8)
    x, y = br.tensor(a, device=program.device), br.tensor(b, device=program.device)
    compare((x @ y + 1).sum(axis=0), (a @ b + 1).sum(axis=0))


def queue_many(program: Program) -> None:
    """Issue hundreds of operations before one read."""
    a = program.integers(64)
    x = br.tensor(a, device=program.device)
    for number in range(300):
        x, a = x + number, a + number
    compare(x, a)


def upload(program: Program) -> None:
    """Upload several chunks and read them back."""
    a = program.integers(UPLOAD_BYTES // 8)
    compare(br.tensor(a, device=program.device), a)


def keep(program: Program) -> None:
    """Hold a tensor for some time, and drop the oldest of several."""
    a = program.integers(50_000)
    program.kept.append((br.tensor(a, device=program.device) * 2, a * 2))
    if len(program.kept) > 4:
        compare(*program.kept.pop(0))


def move(program: Program) -> None:
    """Move a tensor to the other server and back, without a read in between."""
    if program.other is None:
        return
    a = program.integers(60_000)
    moved = br.tensor(a, device=program.device).to(program.other)
    compare((moved + 1).to(program.device), a + 1)


def expose_in_vain(program: Program) -> None:
    """Expose a tensor that is never fetched."""
    tensor = br.ones((10_000,), device=program.device)
    is_native = isinstance(program.device.session, NativeSession)
    transfer = new_transfer_id() if is_native else new_transfer_number()
    program.device.session.expose(tensor.handle.id, tensor.handle.spec, transfer, 60)


def fail(program: Program) -> None:
    """Issue an operation that fails; the read raises its failure, and the session continues."""
    beyond = br.tensor([99], device=program.device)
    try:
        br.arange(4, device=program.device).take(beyond, axis=0).numpy()
    except br.OperationFailed:
        return
    raise AssertionError("an index out of range did not fail")


WORK: Final[tuple[Work, ...]] = (compute, queue_many, upload, keep, move, expose_in_vain, fail)


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Work until the program ends for any reason; return the report."""
    report: dict[str, Any] = {
        "ended": "", "text": "", "steps": 0, "longest_seconds": 0.0, "lost_sessions": 0
    }  # fmt: skip
    choices = random.Random(given.seed)
    while not run_session(given, choices, report) and given.again:
        report["lost_sessions"] += 1
        if _is_asked_to_end(AGAIN_SECONDS):
            break
    return report


def _is_asked_to_end(wait_seconds: float) -> bool:
    return bool(select.select([sys.stdin], [], [], wait_seconds)[0])


def run_session(given: argparse.Namespace, choices: random.Random, report: dict[str, Any]) -> bool:
    """Work in one session; return whether the program shall end, and not its session only."""
    try:
        program = Program(given)
        if given.announce and not report["lost_sessions"]:
            sys.stdout.write("ready\n")
            sys.stdout.flush()
        while report["steps"] != given.steps:
            if _is_asked_to_end(given.think_seconds):
                break
            started = time.monotonic()
            (compute if given.small else choices.choice(WORK))(program)
            report["longest_seconds"] = max(report["longest_seconds"], time.monotonic() - started)
            report["steps"] += 1
        if given.vanish:
            os._exit(0)
        program.close()
    except br.BurnRemoteError as error:
        report["ended"], report["text"] = type(error).__name__, str(error)
        return False
    return True


def main() -> None:
    """Run and write the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--other", help="address of a second server, to move tensors to")
    parser.add_argument("--dialect", default="native")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=-1, help="unset: until standard input closes")
    parser.add_argument("--think-seconds", type=float, default=0.0, help="pause before each step")
    parser.add_argument("--small", action="store_true", help="only small computations")
    parser.add_argument("--announce", action="store_true", help="say when the sessions are open")
    parser.add_argument("--again", action="store_true", help="open a new session after an error")
    parser.add_argument("--vanish", action="store_true", help="end without closing the sessions")
    # A parent whose wait times out sends the signal to get tracebacks.
    faulthandler.register(signal.SIGUSR1)
    report = run(parser.parse_args())
    if report["ended"]:  # other operations may have failed for the same reason
        warnings.filterwarnings("ignore", "an operation failed and nobody read", RuntimeWarning)
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
