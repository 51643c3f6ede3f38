"""Local servers for the examples, started and stopped by them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

__all__ = ["running_servers"]


@contextlib.contextmanager
def running_servers(count: int) -> Iterator[list[str]]:
    """Start servers on free local ports; yield their addresses; stop them at the end."""
    command = [sys.executable, "-m", "burn_remote_server", "--port", "0", "--log-level", "warning"]
    servers: list[subprocess.Popen[str]] = []
    try:
        servers += [
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)
        ]
        yield [_address(server) for server in servers]
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            server.communicate()


def _address(server: subprocess.Popen[str]) -> str:
    """Return the address in the line that a server prints once it accepts connections."""
    assert server.stdout is not None  # it was started with a pipe
    for line in server.stdout:
        for word in line.split():
            if word.startswith("ws://"):
                return word
    raise RuntimeError(f"a server ended with code {server.wait()} before it was ready")
