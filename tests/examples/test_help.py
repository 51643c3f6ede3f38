"""Every command explains itself with ``-h`` as with ``--help``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = [
    path.relative_to(ROOT)
    for folder in ("examples", "benchmarks")
    for path in sorted((ROOT / folder).glob("*.py"))
    if re.search(r"add_argument|typer\.Typer", path.read_text("utf-8"))
]
# The examples that need no optional package; the others have the same last lines.
RUN = [ROOT / "examples" / name for name in ("cluster_demo.py", "digits.py")]


def test_no_command_uses_the_form_without_the_short_flag() -> None:
    assert PROGRAMS
    assert [
        path for path in PROGRAMS if re.search(r"typer\.run\(", (ROOT / path).read_text("utf-8"))
    ] == []


@pytest.mark.parametrize("path", RUN, ids=lambda path: path.name)
def test_the_short_flag_prints_the_usage(path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(path), "-h"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=ROOT,
    )
    assert "usage" in run.stdout.lower()


def test_the_server_prints_its_usage_for_the_short_flag() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "burn_remote_server", "-h"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "Usage: burn-remote-server" in run.stdout
