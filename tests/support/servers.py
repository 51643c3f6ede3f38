"""Servers in separate processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["RunningServer", "server"]


@dataclass
class RunningServer:
    """A server process that accepts connections."""

    process: subprocess.Popen[str]
    address: str

    @property
    def resident_bytes(self) -> int:
        """The resident memory of the process in bytes."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    @property
    def peak_bytes(self) -> int:
        """The peak resident memory of the process in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text("ascii")
        return int(status.split("VmHWM:")[1].split()[0]) * 1024

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.address.rsplit(":", 1)[1])

    @property
    def descriptors(self) -> int:
        """The number of open files and sockets of the process."""
        return psutil.Process(self.process.pid).num_fds()

    @property
    def threads(self) -> int:
        """The number of threads of the process."""
        return psutil.Process(self.process.pid).num_threads()

    @property
    def cpu_seconds(self) -> float:
        """The CPU time of the process in seconds."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def metrics(self, timeout_seconds: float = 5) -> dict[str, float]:
        """Return the values of /metrics by name and labels."""
        url = f"http://127.0.0.1:{self.port}/metrics"
        with urllib.request.urlopen(url, timeout=timeout_seconds) as answer:
            lines = answer.read().decode().splitlines()
        samples = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
        return {name: float(value) for name, value in samples}

    def metric(self, name: str) -> float:
        """Return the value of one metric without labels."""
        return self.metrics()[name]

    def kill(self) -> None:
        """Kill the process, as a crash would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(5)

    def stop(self) -> int:
        """Ask the server to drain, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(15)


@contextlib.contextmanager
def server(
    *flags: str, module: str = "burn_remote_server", **variables: str
) -> Iterator[RunningServer]:
    """Start a server on a free port; kill it at the end if it is still running.

    Python runs ``module``, with ``variables`` added to the environment.
    """
    command = [sys.executable, "-m", module, "--port", "0", *flags]
    environment = {name: value for name, value in os.environ.items() if "BURN_REMOTE" not in name}
    environment |= variables
    # As docs/running-a-server.md advises: without it, page faults dominate large messages.
    environment["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
    process = subprocess.Popen(
        [*command, "--log-level", "warning"], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None  # started with a pipe
    try:
        words = [
            word
            for word in process.stdout.readline().split()
            if word.startswith(("ws://", "wss://"))
        ]
        assert words, f"the server ended with code {process.wait(5)} before it was ready"
        yield RunningServer(process, words[0])
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
