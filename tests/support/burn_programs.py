"""The real Burn 0.21 and 0.22 programs of ``tests/interop``, built by its ``build.sh``."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.waiting import PATIENCE_SECONDS

__all__ = [
    "burn_22_server",
    "burn_client",
    "burn_server",
    "program",
    "start_burn_client",
]


def program(name: str) -> str:
    """Return the path of one of the programs; skip the test if it is not built.

    ``$BURN_PROFILE`` is the cargo profile that it was built with: ``quick``, the default, for
    tests, or ``release``, with optimization, for benchmarks.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    target = os.environ.get("CARGO_TARGET_DIR") or cache / "burn-remote" / "interop-target"
    profile = os.environ.get("BURN_PROFILE") or "quick"
    path = Path(target) / profile / name
    if not path.exists():
        option = " --release" if profile == "release" else ""
        pytest.skip(f"{name} is not built; run tests/interop/build.sh{option}")
    return str(path)


def start_burn_client(*arguments: str, name: str = "burn-client") -> subprocess.Popen[str]:
    """Start a real client. Standard input is a pipe."""
    return subprocess.Popen(
        [program(name), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def burn_client(*arguments: str, name: str = "burn-client") -> Any:
    """Run a real client and return the JSON of its last line."""
    patient = ("--timeout", str(4 * PATIENCE_SECONDS))
    with start_burn_client(*arguments, *patient, name=name) as client:
        out, err = client.communicate(timeout=5 * PATIENCE_SECONDS)
    assert client.returncode == 0, err[-500:]
    return json.loads(out.splitlines()[-1])


@contextlib.contextmanager
def burn_22_server(port: int = 0, *options: str) -> Iterator[str]:
    """Run the real server of Burn 0.22 with two devices; return its address."""
    with burn_server("burn22-server", port, *options) as address:
        yield address


@contextlib.contextmanager
def burn_server(name: str = "burn-server", port: int = 0, *options: str) -> Iterator[str]:
    """Run a real server, of Burn 0.21 by default; return its address."""
    process = subprocess.Popen(
        [program(name), "--port", str(port), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None  # started with a pipe
    try:
        for line in process.stdout:
            if line.startswith("listening "):
                break
        address = line.split()[1]
        yield address if "://" in address else f"ws://{address}"
    finally:
        process.kill()
        process.communicate()
