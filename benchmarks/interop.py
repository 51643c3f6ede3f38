"""Measure {Rust client, our client} on {real Burn server, our server}: one table from one run.

    python benchmarks/interop.py DIR        DIR holds burn-server and burn-client (tests/interop)

The Rust client measures itself; ours runs the same measures. A part in which the real client hangs
says so instead of a figure.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import engine
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import burn_remote as br

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.servers import server

Figures = dict[str, Any]
PARTS = ("adds", "latency", "copies", "train", "moves")
console = Console()


@contextlib.contextmanager
def real_servers(binaries: Path) -> Iterator[list[str]]:
    """Run two real servers."""
    command = [str(binaries / "burn-server"), "--port", "0"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        yield [_address(each) for each in running]
    finally:
        for each in running:
            each.kill()
            each.communicate()


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None  # started with a pipe
    for line in process.stdout:
        if line.startswith("listening "):
            return f"ws://{line.split()[1]}"
    raise RuntimeError(f"the server ended with {process.wait()}")


def rust_client(binaries: Path, addresses: list[str]) -> Figures:
    """Run the real client's benchmark, part by part."""
    figures: Figures = {}
    for part in PARTS:
        command = [str(binaries / "burn-client"), "bench", *addresses, "--only", part]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            figures[part] = f"ended with {run.returncode} ({run.stderr.strip()[-60:]})"
            continue
        for name, result in json.loads(run.stdout.splitlines()[-1])["results"].items():
            figures |= _flat(name, result)
    return figures


def _flat(name: str, result: Any) -> Figures:
    if not isinstance(result, dict):
        return {name: result}
    if "median" in result:
        return {name: result["median"]}
    return {f"{name} {key}": value for key, value in result.items() if not isinstance(value, list)}


def our_client(addresses: list[str]) -> Figures:
    """Measure ours in the same terms."""
    with br.RemoteDevice(addresses[0]) as device, br.RemoteDevice(addresses[1]) as other:
        parts: list[Callable[[], Figures]] = [
            lambda: engine.operations_per_second(device, 20_000),
            lambda: engine.round_trip(device, 1000),
            lambda: engine.large_tensors(device, other, 8),
            lambda: engine.training_step(device, 100),
        ]
        figures: Figures = {}
        for part in parts:
            figures |= part()
    return figures


def main(binaries: Annotated[Path, typer.Argument(help="Folder of the real programs.")]) -> None:
    """Measure the four pairs and print one table for each client."""
    with real_servers(binaries) as theirs, server() as first, server() as second:
        ours = [first.address, second.address]
        runs: list[tuple[str, Callable[[], Figures]]] = [
            ("Rust client, real server", lambda: rust_client(binaries, theirs)),
            ("Rust client, our server", lambda: rust_client(binaries, ours)),
            ("our client, real server", lambda: our_client(theirs)),
            ("our client, our server", lambda: our_client(ours)),
        ]
        found = {name: run() for name, run in track(runs, "measuring", console=console)}
    for client in ("Rust client", "our client"):
        pair = [name for name in found if name.startswith(client)]
        table = Table(
            "measure", *(name.split(", ")[1] for name in pair), title=f"{client}, {date.today()}"
        )
        for measure in found[pair[0]] | found[pair[1]]:
            table.add_row(measure, *(_shown(found[name].get(measure)) for name in pair))
        console.print(table)


def _shown(figure: Any) -> str:
    return f"{figure:,.3g}" if isinstance(figure, float) and figure < 1000 else str(figure)


if __name__ == "__main__":
    typer.run(main)
