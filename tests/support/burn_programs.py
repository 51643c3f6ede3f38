"""The real Burn 0.21 programs of ``tests/interop``, built by its ``build.sh``."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

__all__ = ["burn_client", "burn_server", "program", "start_burn_client"]


def program(name: str) -> str:
    """Return the path of ``burn-client`` or ``burn-server``; skip the test if it is not built."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    target = os.environ.get("CARGO_TARGET_DIR") or cache / "burn-remote" / "interop-target"
    path = Path(target) / "release" / name
    if not path.exists():
        pytest.skip(f"{name} is not built; run tests/interop/build.sh")
    return str(path)


def start_burn_client(*arguments: str) -> subprocess.Popen[str]:
    """Start the real client. Standard input is a pipe."""
    return subprocess.Popen(
        [program("burn-client"), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def burn_client(*arguments: str) -> Any:
    """Run the real client and return the JSON of its last line."""
    with start_burn_client(*arguments) as client:
        out, err = client.communicate(timeout=90)
    assert client.returncode == 0, err[-500:]
    return json.loads(out.splitlines()[-1])


@contextlib.contextmanager
def burn_server() -> Iterator[str]:
    """Run the real server; return its address."""
    process = subprocess.Popen(
        [program("burn-server"), "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None  # started with a pipe
    try:
        for line in process.stdout:
            if line.startswith("listening "):
                break
        yield f"ws://{line.split()[1]}"
    finally:
        process.kill()
        process.communicate()
