"""The first screen of the README works when pasted."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support.servers import server

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")


def test_the_python_program_runs_against_a_server_and_prints_no_warning() -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    with server() as running:
        run = subprocess.run(
            [
                sys.executable,
                "-W",
                "error",
                "-c",
                program.replace("ws://127.0.0.1:3000", running.address),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    assert run.stderr == ""
    assert run.stdout.startswith("Tensor(shape=(64, 10), dtype=float32")


def test_every_document_that_it_names_is_there() -> None:
    root = Path(__file__).parents[1]
    missing = [
        name for name in re.findall(r"\]\(([\w/.-]+)\)", README) if not (root / name).exists()
    ]
    assert missing == []
