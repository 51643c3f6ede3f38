"""Servers in separate processes."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import select
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from support import server_starter
from support.waiting import PATIENCE_SECONDS

__all__ = ["UNFORKED", "RunningServer", "server"]

COMMAND: Final = "burn_remote_server"
# The same command, never forked. Tests of a server's memory need it: the resident memory of a fork
# lacks the pages that it has not used yet.
UNFORKED: Final = "burn_remote_server.__main__"
# As docs/running-a-server.md advises: without it, page faults dominate large messages.
TUNABLES: Final = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


class Starter:
    """A process that forks servers, which then need not import the server's modules again."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment: Final = environment
        self._requests, others_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-P", server_starter.__file__, str(others_end.fileno())]
        with others_end:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.DEVNULL,
                env=environment,
                pass_fds=[others_end.fileno()],
            )
        atexit.register(self.close)

    def fork(self, arguments: Sequence[str], environment: Mapping[str, str]) -> ForkedServer:
        """Start a server with its own arguments, environment, output and working directory."""
        output, output_end = os.pipe()
        status, status_end = os.pipe()
        try:
            request = server_starter.request_bytes(arguments, environment, os.getcwd())
            socket.send_fds(self._requests, [request], [output_end, 2, status_end])
        finally:
            os.close(output_end)
            os.close(status_end)
        return ForkedServer(output, status)

    def close(self) -> None:
        """End the process, which kills the servers that still run."""
        self._requests.close()
        self._process.wait()


class ForkedServer:
    """A server process that a ``Starter`` forked, with the methods of ``subprocess.Popen``."""

    def __init__(self, output: int, status: int) -> None:
        self.stdout: Final = os.fdopen(output)
        self._status: Final = os.fdopen(status, "rb", buffering=0)
        self.returncode: int | None = None
        self.pid: Final = int(self._read_status(None))

    def poll(self) -> int | None:
        """Return the exit code, or ``None`` while the process runs."""
        with contextlib.suppress(TimeoutError):
            self._wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit code. Raises ``subprocess.TimeoutExpired``."""
        try:
            return self._wait(timeout)
        except TimeoutError:
            assert timeout is not None
            raise subprocess.TimeoutExpired(COMMAND, timeout) from None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask the process to end, unless it has ended."""
        self.send_signal(signal.SIGTERM)

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            self.returncode = int(self._read_status(timeout))
            self._status.close()
        return self.returncode

    def _read_status(self, timeout: float | None) -> bytes:
        """Return the next line of the starter about this server. Raises ``TimeoutError``."""
        if not select.select([self._status], [], [], timeout)[0]:
            raise TimeoutError
        line = self._status.readline()
        assert line, "the process that starts servers has ended"
        return line


@functools.cache
def _starter() -> Starter:
    return Starter({**_own_variables(os.environ), **TUNABLES})


def _own_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a process reads while it imports, which servers must share."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(("BURN_REMOTE", "PYTEST_"))
    }


@dataclass
class RunningServer:
    """A server process that accepts connections."""

    process: subprocess.Popen[str] | ForkedServer
    address: str
    # The addresses of its devices over Iroh, if it listens there.
    iroh: Sequence[str] = ()

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

    def metrics(self, timeout_seconds: float = PATIENCE_SECONDS) -> dict[str, float]:
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
        self.process.wait(PATIENCE_SECONDS)

    def stop(self) -> int:
        """Ask the server to drain, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)


@contextlib.contextmanager
def server(*flags: str, module: str = COMMAND, **variables: str) -> Iterator[RunningServer]:
    """Start a server on a free port; kill it at the end if it is still running.

    Python runs ``module``, with ``variables`` added to the environment.
    """
    arguments = ["--port", "0", *flags, "--log-level", "warning"]
    environment = {name: value for name, value in os.environ.items() if "BURN_REMOTE" not in name}
    environment |= variables
    environment |= TUNABLES
    process = _start(module, arguments, environment)
    assert process.stdout is not None  # started with a pipe
    try:
        line = process.stdout.readline().split()
        words = [word for word in line if word.startswith(("ws://", "wss://"))]
        assert words, (
            f"the server ended with code {process.wait(PATIENCE_SECONDS)} before it was ready"
        )
        yield RunningServer(
            process, words[0], [word for word in line if word.startswith("iroh://")]
        )
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _start(
    module: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> subprocess.Popen[str] | ForkedServer:
    """Start a process: a fork if it runs the command in the environment of the starter."""
    if module == COMMAND and sys.platform == "linux":
        starter = _starter()
        if _own_variables(environment) == starter.environment:
            return starter.fork(arguments, environment)
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(environment))
