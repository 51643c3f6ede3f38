"""Compare Burn 0.22.1's client on its own server and on this project's, and our native pair.

    python benchmarks/burn_0_22.py [--rounds 3]         first run tests/interop/build.sh --release
    python benchmarks/burn_0_22.py --apart              two threads of Burn's client on two cores
    python benchmarks/burn_0_22.py --repeats 7          longer runs of each client
    python benchmarks/burn_0_22.py --moves              only moves between two servers

Burn's clients, plain and with fusion, measure themselves (`burn22-client bench`), on both servers
in turns. Our client measures the same operations on our server. Prints the median of each measure,
and its ratio to that of Burn's client on Burn's server. A client measures each operation once in a
session that has done it before; with ``--repeats``, it takes the median of several times. Servers
compile what a session repeats, so they become faster in the first trainings.

Burn's client computes in its main thread and sends in another. After 32 tasks, the main thread
spins until the other has taken them. If both are on one core, that takes until the system's next
timer tick, up to 4 ms. ``--apart`` (Linux only) pins them to different cores, so that runs can be
compared. It leaves the client with fusion alone, whose main thread starts more such threads later.

Moves between two of Burn's servers hang after some hundreds. So each client has limited time, and
those that do not finish have no figure.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import burn_remote as br

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
os.environ.setdefault("BURN_PROFILE", "release")
from support.burn_programs import burn_22_server, start_burn_client
from support.servers import server

ADDS = 20_000
ROUND_TRIPS = 1_000
ELEMENTS = 8 * 2**18
MOVES_SECONDS = 60

Figures = dict[str, float]


def native(address: str) -> Figures:
    """Measure our own client, eager, on our server."""
    with br.RemoteDevice(address) as device:
        one = br.ones((16, 16), device=device)
        elements = np.ones(ELEMENTS, np.float32)
        found: Figures = {}
        for _ in range(2):  # the first time warms up
            x = one
            device.sync()
            start = time.perf_counter()
            for _ in range(ADDS):
                x = x + one
            device.sync()
            found["adds_per_second"] = ADDS / (time.perf_counter() - start)
            seconds = []
            for _ in range(ROUND_TRIPS):
                start = time.perf_counter()
                (one + 1.0).numpy()
                seconds.append(time.perf_counter() - start)
            found["add_and_read_p50_us"] = statistics.median(seconds) * 1e6
            start = time.perf_counter()
            held = br.tensor(elements, device=device)
            device.sync()
            found["upload_gb_per_second"] = elements.nbytes / (time.perf_counter() - start) / 1e9
            start = time.perf_counter()
            held.numpy()
            found["download_gb_per_second"] = elements.nbytes / (time.perf_counter() - start) / 1e9
            del held  # as the bench of Burn's client does, so that both servers may reuse memory
        return found


def moved(here: str, there: str, client: str) -> float | None:
    """Return the median time of a small move and a sync in µs; ``None`` if the client hung."""
    limit = str(MOVES_SECONDS)
    options = ("--repeats", "1", "--megabytes", "1", "--timeout", limit)
    with start_burn_client("bench", here, there, *options, name=client) as process:
        output, _ = process.communicate(timeout=2 * MOVES_SECONDS)
    if process.returncode:
        return None
    results: Figures = json.loads(output.splitlines()[-1])["results"]
    return results["move_and_sync_p50_us"]


def compare_moves() -> None:
    """Print the time of a small move between two of Burn's servers, and between two of ours."""
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    for client in ("burn22-client", "burn22-client-fusion"):
        with server() as first, server() as second:
            ours = moved(first.address, second.address, client)
        with burn_22_server() as here, burn_22_server() as there:
            theirs = moved(here, there, client)
        for name, found in (("ours", ours), ("real", theirs)):
            text = f"no end within {MOVES_SECONDS} s" if found is None else f"{found:,.0f} µs"
            print(f"{client} between two servers, {name}: move and sync, p50: {text}", flush=True)


def keep_apart(process: subprocess.Popen[str]) -> None:
    """Pin the main thread of a Burn client and the one that sends its tasks to different cores."""
    first, second, *_ = sorted(os.sched_getaffinity(0))
    senders: list[int] = []
    while not senders and process.poll() is None:
        for thread in Path(f"/proc/{process.pid}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has ended
                if (thread / "comm").read_text().startswith("DSD-"):
                    senders.append(int(thread.name))
        time.sleep(0.001)
    with contextlib.suppress(ProcessLookupError):  # the client has ended
        for number in senders:
            os.sched_setaffinity(number, {first})
        os.sched_setaffinity(process.pid, {second})


def measured(address: str, client: str, *, apart: bool, repeats: int = 1) -> Figures:
    """Return what a client of Burn measures on a server."""
    options = ("--repeats", str(repeats), "--timeout", "85")
    with start_burn_client("bench", address, *options, name=client) as process:
        if apart:
            keep_apart(process)
        output, errors = process.communicate(timeout=90)
    if process.returncode:
        raise SystemExit(errors[-500:])
    results: Figures = json.loads(output.splitlines()[-1])["results"]
    return results


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often each pair runs, in turns.")] = 3,
    moves: Annotated[
        bool, typer.Option("--moves", help="Measure only moves between two servers.")
    ] = False,
    apart: Annotated[
        bool, typer.Option("--apart", help="Pin two threads of Burn's client to different cores.")
    ] = False,
    repeats: Annotated[
        int, typer.Option(min=1, help="How often a client measures each operation in a session.")
    ] = 1,
) -> None:
    """Measure all pairs in turns and print a table of medians."""
    if moves:
        compare_moves()
        return
    rows: dict[str, list[Figures]] = {}
    with contextlib.ExitStack() as stack:
        real = stack.enter_context(burn_22_server())
        ours = stack.enter_context(server()).address
        for _ in range(rounds):
            for client in ("burn22-client", "burn22-client-fusion"):
                for name, address in (("real", real), ("ours", ours)):
                    is_apart = apart and client == "burn22-client"
                    found = measured(address, client, apart=is_apart, repeats=repeats)
                    rows.setdefault(f"{client} on {name}", []).append(found)
            rows.setdefault("our client, native", []).append(native(ours))
    medians = {
        name: {key: statistics.median(one[key] for one in all_) for key in all_[0]}
        for name, all_ in rows.items()
    }
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, {rounds} rounds")
    for name, figures in medians.items():
        base = medians[
            "burn22-client-fusion on real" if "fusion" in name else "burn22-client on real"
        ]
        for key, value in figures.items():
            print(f"{name:32} {key:38} {value:12,.2f}  {value / base[key]:.2f}")
    print(json.dumps(medians))


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(main)
    app()
