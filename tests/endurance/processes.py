"""Client processes of an endurance run, and snapshots of its servers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from support.servers import RunningServer
from support.waiting import PATIENCE_SECONDS, wait_until

__all__ = ["WAIT_SECONDS", "Probe", "Process", "Report", "Snapshot", "eventually"]

# Timeout of each wait: for a program to end, or for a server to free a dead client's tensors. A
# busy machine may take several seconds to run either.
WAIT_SECONDS: Final = PATIENCE_SECONDS
TESTS: Final = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Report:
    """How a program ended: ``ended`` is the class name of its last error, or empty."""

    ended: str
    text: str
    steps: int
    longest_seconds: float
    lost_sessions: int


class Probe:
    """A process that requests ``/healthz`` of a server every 10 ms, as a context manager."""

    def __init__(self, port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "endurance.probe", str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=TESTS,
        )
        assert self._process.stdout is not None  # started with pipes
        assert self._process.stdout.readline() == "ready\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.__exit__(None, None, None)

    def times(self) -> list[float]:
        """End the process; return the times of all its requests in milliseconds, sorted."""
        found, _ = self._process.communicate(timeout=WAIT_SECONDS)
        return sorted(json.loads(found))


class Process:
    """A client in its own process."""

    def __init__(self, *arguments: str) -> None:
        path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "endurance.program", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def wait_ready(self) -> None:
        """Wait for the line of a program with ``--announce``."""
        assert self._process.stdout is not None  # started with pipes
        line = self._process.stdout.readline()
        assert line == "ready\n", f"instead of being ready: {line}{self._process.communicate()[1]}"

    def ask_to_end(self) -> None:
        """Ask a program that runs until its standard input closes to end."""
        assert self._process.stdin is not None  # started with pipes
        self._process.stdin.close()
        self._process.stdin = None  # else ``communicate`` would flush it

    def kill(self) -> None:
        """Kill it, as a crash would."""
        self._process.kill()

    def wait(self, timeout_seconds: float = WAIT_SECONDS) -> int:
        """Wait for its end; return its exit code."""
        try:
            return self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(self._where_it_hangs(timeout_seconds)) from None

    def _collect(self, timeout_seconds: float) -> tuple[str, str]:
        try:
            return self._process.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(self._where_it_hangs(timeout_seconds)) from None

    def _where_it_hangs(self, seconds: float) -> str:
        self._process.send_signal(signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        self._process.kill()
        return f"it hangs for {seconds:g} seconds:\n{self._process.communicate()[1]}"

    def vanish(self, timeout_seconds: float = WAIT_SECONDS) -> None:
        """End a program with ``--vanish``, which does not close its sessions."""
        self._collect(timeout_seconds)

    def report(self, timeout_seconds: float = WAIT_SECONDS) -> Report:
        """Ask it to end if it is running, and return its report.

        Raises ``AssertionError`` if it hangs, or ends without a report, because of an error of
        another type or a wrong result.
        """
        output, errors = self._collect(timeout_seconds)
        assert self._process.returncode == 0 and not errors, errors or self._process.returncode
        fields: dict[str, Any] = json.loads(output.splitlines()[-1])
        return Report(**fields)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The resources of a server at one time."""

    resident_bytes: int
    descriptors: int
    threads: int
    sessions: int
    tensors: int
    tensor_bytes: int
    offers: int

    @classmethod
    def of(cls, server: RunningServer, timeout_seconds: float = WAIT_SECONDS) -> Snapshot:
        """Read a server's metrics and its process statistics."""
        metrics = server.metrics(timeout_seconds)
        return cls(
            resident_bytes=server.resident_bytes,
            descriptors=server.descriptors,
            threads=server.threads,
            sessions=int(metrics["burn_remote_sessions"]),
            tensors=int(metrics["burn_remote_tensors"]),
            tensor_bytes=int(metrics["burn_remote_tensor_bytes"]),
            offers=int(metrics["burn_remote_transfers_open"]),
        )

    @property
    def is_empty(self) -> bool:
        """Whether no session is open and no tensors or exposes remain."""
        return not (self.sessions or self.tensors or self.tensor_bytes or self.offers)


def eventually(
    server: RunningServer,
    claim: Callable[[Snapshot], bool],
    timeout_seconds: float = WAIT_SECONDS,
) -> Snapshot:
    """Return the first snapshot that satisfies the claim. Raises ``AssertionError`` at timeout."""
    snapshot = Snapshot.of(server)

    def is_satisfied() -> bool:
        nonlocal snapshot
        snapshot = Snapshot.of(server)
        return claim(snapshot)

    try:
        wait_until(is_satisfied, timeout_seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}: {snapshot}") from None
    return snapshot
