"""Compare the speed of this working tree with another commit's.

    python benchmarks/against_commit.py cfb705c
    python benchmarks/against_commit.py cfb705c --only "x.T + 1" --pairs 40

Checks the commit out into a temporary directory and installs it into an environment there. Then
runs the workloads of ``compared_workloads.py`` on both sides in turns, in pairs whose order
alternates, so a busy machine slows both. Prints for each workload the median of the pairs' ratios,
new ÷ old, with the quartiles: of the elapsed time, and of the processor time of the client and the
server.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

ROOT = Path(__file__).parents[1]
WORKLOADS = Path(__file__).with_name("compared_workloads.py")
MEASURES = ("elapsed", "client", "server")
# A process without work still uses some processor time for its timers. So a ratio is shown only for
# processor times of at least this share of the elapsed time.
NEGLIGIBLE_SHARE = 0.02

console = Console()


class Side:
    """The process that runs the workloads of one commit."""

    def __init__(self, python: Path) -> None:
        self._process = subprocess.Popen(
            # -P: import only what this environment has installed.
            [str(python), "-P", str(WORKLOADS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.workloads: list[str] = json.loads(self._read())

    def run(self, workload: str) -> dict[str, float]:
        """Run a workload once; return seconds per unit by measure."""
        assert self._process.stdin is not None  # started with a pipe
        self._process.stdin.write(workload + "\n")
        self._process.stdin.flush()
        figures: dict[str, float] = json.loads(self._read())
        return figures

    def close(self) -> None:
        """End the process and its server."""
        self._process.communicate()

    def _read(self) -> str:
        assert self._process.stdout is not None  # started with a pipe
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the workloads ended with code {self._process.wait()}")
        return line


@contextlib.contextmanager
def installed(commit: str) -> Iterator[Path]:
    """Check a commit out and install it; return its Python. Removes both at the end."""
    with tempfile.TemporaryDirectory(prefix="burn-remote-") as temporary:
        tree = Path(temporary) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            environment = Path(temporary) / "environment"
            venv.create(environment, with_pip=True)
            python = environment / "bin" / "python"
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "--editable", f"{tree}[server]"], check=True)
            yield python
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def measure(new: Side, old: Side, workload: str, pairs: int) -> list[list[dict[str, float]]]:
    """Run a workload in pairs after a warm-up; return the figures of the new and the old side."""
    sides = [new, old]
    for side in sides:
        side.run(workload)
    figures: list[list[dict[str, float]]] = [[], []]
    for pair in range(pairs):
        for place in (0, 1) if pair % 2 else (1, 0):
            figures[place].append(sides[place].run(workload))
    return figures


def row(figures: list[list[dict[str, float]]]) -> list[str]:
    """Return a table's cells: the new side's median time, and the ratio of each measure."""
    cells = []
    new, old = figures
    elapsed = statistics.median(each["elapsed"] for each in new)
    cells.append(f"{elapsed * 1e6:,.1f}")
    for name in MEASURES:
        whole = statistics.median(each["elapsed"] for each in old)
        if statistics.median(each[name] for each in old) < NEGLIGIBLE_SHARE * whole:
            cells.append("")
            continue
        ratios = [mine[name] / theirs[name] for mine, theirs in zip(new, old, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        cells.append(f"{middle:.2f}  ({low:.2f}–{high:.2f})")
    return cells


def main(
    commit: Annotated[str, typer.Argument(help="The commit to compare with.")],
    pairs: Annotated[int, typer.Option(help="Paired runs of each workload.", min=2)] = 15,
    only: Annotated[
        list[str] | None, typer.Option(help="Only these workloads (can be repeated).")
    ] = None,
    python: Annotated[
        Path | None, typer.Option(help="The Python of an environment that has the commit already.")
    ] = None,
) -> None:
    """Measure both sides and print a table of ratios."""
    with installed(commit) if python is None else contextlib.nullcontext(python) as theirs:
        new, old = Side(Path(sys.executable)), Side(theirs)
        try:
            workloads = only or new.workloads
            if unknown := {*workloads} - {*new.workloads}:
                raise typer.BadParameter(f"no workloads {unknown}; there are {new.workloads}")
            table = Table(
                "workload",
                "µs",
                "elapsed",
                "client's processor",
                "server's processor",
                title=f"new ÷ {commit}: median of {pairs} pairs (quartiles)",
            )
            for workload in track(workloads, description="comparing", console=console):
                table.add_row(workload, *row(measure(new, old, workload, pairs)))
        finally:
            new.close()
            old.close()
    console.print(table)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(main)
    app()
