"""``python -m differential``: compare random programs with the reference until one differs."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time

import burn_remote as br
from differential import gradients
from differential.compiled import execute_compiled
from differential.program import Mismatch, execute, generated, shrunk
from differential.reusing_server import reusing_memory, server
from support.subnormals import FLUSHING_BACKENDS

KINDS = ("local", "native", "burn-0.21")


def main() -> int:
    """Run programs of consecutive seeds; print the first mismatch, shrunk, and how to replay it."""
    parser = argparse.ArgumentParser(prog="python -m differential")
    parser.add_argument("--kind", choices=KINDS, default="local", help="kind of the devices")
    parser.add_argument("--backend", default="numpy", help="backend of the servers (default numpy)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first program")
    parser.add_argument("--programs", type=int, default=10**9, help="end after so many programs")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after this time")
    parser.add_argument(
        "--compiled", action="store_true", help="compare compiled functions with eager ones"
    )
    parser.add_argument(
        "--gradients", action="store_true", help="compare gradients with finite differences"
    )
    parser.add_argument(
        "--extended", action="store_true", help="add extension rows and complex numbers"
    )
    parser.add_argument("--keep-going", action="store_true", help="continue after a mismatch")
    given = parser.parse_args()
    started, done, wrong = time.monotonic(), 0, 0
    with contextlib.ExitStack() as stack:
        devices = [stack.enter_context(device) for device in opened(stack, given)]
        for seed in range(given.seed, given.seed + given.programs):
            if time.monotonic() - started > given.seconds:
                break
            try:
                run(seed, devices, given)
            except (Mismatch, gradients.GradientMismatch) as mismatch:
                wrong += 1
                replay = f"python -m differential --kind {given.kind} --backend {given.backend}"
                replay += " --extended" * given.extended
                replay += " --compiled" * given.compiled + " --gradients" * given.gradients
                found: Exception = mismatch
                if isinstance(mismatch, Mismatch) and not given.compiled:
                    found = shrunk(mismatch, devices)
                sys.stdout.write(f"{found}\nreplay: {replay}")
                sys.stdout.write(f" --programs 1 --seed {seed}\n\n")
                if not given.keep_going:
                    break
            done += 1
            if done % 1000 == 0:
                sys.stdout.write(f"{done:,} programs, {wrong:,} mismatches\n")
                sys.stdout.flush()
    sys.stdout.write(f"{given.kind}: {done:,} programs, {wrong:,} mismatches\n")
    return 1 if wrong else 0


def run(seed: int, devices: list[br.Device], given: argparse.Namespace) -> None:
    """Run the program of a seed. Raises ``Mismatch`` or ``GradientMismatch``."""
    if given.gradients:
        gradients.compare(gradients.generated(seed, devices[0]), devices[0])
        return
    program = generated(
        seed,
        len(devices),
        subnormals=given.backend not in FLUSHING_BACKENDS,
        extended=given.extended,
    )
    if given.compiled:
        execute_compiled(program, devices[0], seed)
    else:
        execute(program, devices)


def opened(stack: contextlib.ExitStack, given: argparse.Namespace) -> list[br.Device]:
    """Open two devices of a kind, between which tensors move."""
    if given.kind == "local":
        stack.enter_context(reusing_memory())
        return [br.LocalDevice(), br.LocalDevice()]
    servers = [stack.enter_context(server("--backend", given.backend)) for _ in range(2)]
    return [br.RemoteDevice(one.address, dialect=given.kind) for one in servers]


if __name__ == "__main__":
    sys.exit(main())
