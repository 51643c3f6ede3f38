"""Compare Burn 0.21 and this project, each client on each server, in one run.

    python benchmarks/interop.py                first run tests/interop/build.sh --release
    python benchmarks/interop.py --repeats 9 --json FILE

Burn's client measures itself (`burn-client bench`). This program performs the same measurements
with our client; the operations and sizes are those of tests/interop/src/bench.rs. A training step
of Burn's client uses autodiff, ours hand-written gradients with about as many operations. Each part
is measured on all pairs before the next part, so that other load affects all pairs alike.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import typer
from our_bench import Figures, GivenUp, console, our_client, size_of
from rich.progress import Progress
from rich.table import Table

import burn_remote as br

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
os.environ.setdefault("BURN_PROFILE", "release")
from support.burn_programs import burn_server, start_burn_client
from support.servers import server

MEASURES = {
    "pipelined_adds_per_second": "small operations/s",
    "add_and_read_us p50": "round trip p50, µs",
    "add_and_read_us p99": "round trip p99, µs",
    "upload_gb_per_second 8": "upload 8 MiB, GB/s",
    "download_gb_per_second 8": "download 8 MiB, GB/s",
    "upload_gb_per_second 256": "upload 256 MiB, GB/s",
    "download_gb_per_second 256": "download 256 MiB, GB/s",
    "move_gb_per_second 8": "server to server 8 MiB, GB/s",
    "move_and_sync_us p50": "move of [16, 16] p50, µs",
    "train_steps_per_second": "training steps/s",
    "train_steps_per_second_reading_each": "training steps/s, loss read each",
}

PARTS = ("adds", "latency", "copies", "large copies", "moves", "train")
# Burn's client waits forever if its server closes the socket, as it does for large uploads. Both
# clients wait forever if that server stops responding during moves. So these parts have short
# timeouts.
TIMEOUT_SECONDS = {"large copies": 30, "moves": 40}
USUAL_TIMEOUT_SECONDS = 120


# -- the real client --------------------------------------------------------------------------


def real_client(part: str, addresses: list[str], repeats: int) -> Figures:
    """Run a part of the real client's own benchmark. Raises ``GivenUp``."""
    megabytes = size_of(part)
    timeout = TIMEOUT_SECONDS.get(part, USUAL_TIMEOUT_SECONDS)
    flags = {"only": part.split()[-1], "repeats": repeats, "megabytes": megabytes}
    flags["timeout"] = timeout
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    with start_burn_client("bench", *addresses, *words) as client:
        out, error = client.communicate()
    if client.returncode != 0:
        raise GivenUp(error.splitlines()[-1])
    return flat(json.loads(out.splitlines()[-1])["results"], megabytes)


def flat(results: dict[str, Any], megabytes: int) -> Figures:
    """Return a flat table: the median of each measure, and each percentile as its own entry."""
    figures: dict[str, Any] = {}
    for name, value in results.items():
        if "p50" in value:
            figures |= {f"{name} {percentile}": value[percentile] for percentile in value}
        elif "gb_per_second" in name:
            figures[f"{name} {megabytes}"] = value["median"]
        else:
            figures[name] = value["median"]
    return figures


# -- the table --------------------------------------------------------------------------------


@contextlib.contextmanager
def two_real_servers() -> Iterator[list[str]]:
    """Start two servers of Burn, which may crash; return their addresses."""
    with burn_server() as first, burn_server() as second:
        yield [first, second]


def ours_on(part: str, addresses: list[str], dialect: str, repeats: int) -> Figures:
    """Measure our client on two servers, in one dialect. Raises ``GivenUp``."""
    first, second = (br.RemoteDevice(address, dialect=dialect) for address in addresses)
    with first, second, given_up_after(TIMEOUT_SECONDS.get(part, USUAL_TIMEOUT_SECONDS)):
        return our_client(part, first, second, repeats)


@contextlib.contextmanager
def given_up_after(seconds: int) -> Iterator[None]:
    """Raise ``GivenUp`` if the body takes longer."""

    def give_up(*_: object) -> None:
        raise GivenUp(f"given up after {seconds} seconds")

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def main(
    repeats: Annotated[int, typer.Option(help="Measurements of which the median is taken.")] = 3,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Where to write the figures.")
    ] = None,
) -> None:
    """Measure each client on each server, and print one table."""
    pairs: dict[str, tuple[bool, Callable[[str, list[str]], Figures]]] = {
        "Rust → Rust": (True, lambda part, at: real_client(part, at, repeats)),
        "Rust → ours": (False, lambda part, at: real_client(part, at, repeats)),
        "ours → Rust": (True, lambda part, at: ours_on(part, at, "burn-0.21", repeats)),
        "ours → ours, Burn's dialect": (
            False,
            lambda part, at: ours_on(part, at, "burn-0.21", repeats),
        ),
        "ours → ours, native": (False, lambda part, at: ours_on(part, at, "native", repeats)),
    }
    figures: dict[str, Figures] = {name: {} for name in pairs}
    with contextlib.ExitStack() as stack:
        ours = [stack.enter_context(server()).address for _ in range(2)]
        progress = stack.enter_context(Progress(console=console, transient=True))
        task = progress.add_task("", total=len(PARTS) * len(pairs))
        for part in PARTS:
            for name, (real, measure) in pairs.items():
                progress.update(task, description=f"{part}: {name}")
                with two_real_servers() if real else contextlib.nullcontext(ours) as addresses:
                    try:
                        figures[name] |= measure(part, addresses)
                    except (br.BurnRemoteError, GivenUp) as error:
                        progress.console.print(f"{part}: {name}: {error}")
                progress.advance(task)
    console.print(table(figures))
    busy = psutil.getloadavg()[1]
    machine = f"{date.today()}, {platform.machine()}, {psutil.cpu_count()} cores, load {busy:.1f}"
    console.print(f"{machine}, Python {platform.python_version()}, NumPy {np.__version__}")
    if json_file is not None:
        json_file.write_text(json.dumps({"machine": machine, "figures": figures}, indent=1))


def table(figures: dict[str, Figures]) -> Table:
    """Format the figures, each with its ratio to the first column."""
    shown = Table("client → server", *figures)
    first = next(iter(figures.values()))
    for key, label in MEASURES.items():
        cells = []
        for column in figures.values():
            value, rival = column.get(key), first.get(key)
            if value is None:
                cells.append("—")
                continue
            text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
            cells.append(text if rival is None else f"{text} ({value / rival:.2g}×)")
        shown.add_row(label, *cells)
    return shown


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(main)
    app()
