"""Containers for the tests, and the demo as a program whose output lines can be awaited."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

import containers
import pytest

HERE: Final = Path(__file__).parent
PROJECT: Final = f"burn-remote-faults-{os.getpid()}"
# Port 0 lets Docker choose a free port.
PORTS: Final = {"PORT_A": "0", "PORT_B": "0", "PORT_C": "0"}
# Long enough to reach the accuracy and to inject a fault.
TRAINING: Final = ("--steps", "240", "--accuracy", "0.8", "--move-mib", "8", "--rounds", "1")
DEMO_SECONDS: Final = 120.0


def docker(*arguments: str) -> str:
    """Run docker; return its output."""
    return containers.run(["docker", *arguments], seconds=60).strip()


class Program:
    """A running program and its output lines; leaving the context ends it."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self._process = subprocess.Popen(
            command,
            env=environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()

    @property
    def text(self) -> str:
        """Its output so far."""
        return "\n".join(self.lines)

    def until(self, sign: str, seconds: float = DEMO_SECONDS) -> float:
        """Wait for a line that contains ``sign``; return its time on the monotonic clock."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or sign in self.text, seconds)
            assert sign in self.text, self.text
            return time.monotonic()

    def end(self, seconds: float = DEMO_SECONDS) -> int:
        """Wait for its exit; return the exit code."""
        code = self._process.wait(seconds)
        self._reader.join()
        print(self.text)
        return code

    @property
    def weights(self) -> str:
        """The digest of its final weights."""
        found = re.search(r"weights sha256 (\w+)", self.text)
        assert found, self.text
        return found[1]

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                with self._changed:
                    self.lines.append(line.rstrip())
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()


class Faulty(containers.Cluster):
    """Containers into which faults are injected."""

    def address(self, service: str) -> str:
        """Return the address of a node for clients outside the network."""
        return f"wss://{self.published(service)}"

    def begin(self, service: str, sign: str) -> None:
        """Start one more service and wait until it has printed ``sign``.

        Docker accepts connections on a published port before the service listens.
        """
        self.compose("up", "--detach", "--no-build", service)
        follow = ["docker", "logs", "--follow", self.container(service)]
        with Program(follow, self.environment) as log:
            log.until(sign, containers.READY_SECONDS)

    @property
    def ring(self) -> str:
        """The network between the nodes."""
        return f"{self.project}_ring"


Start = Callable[..., Program]


@pytest.fixture(scope="session")
def built() -> Iterator[Faulty]:
    """Return the cluster with its image built; remove all of it at the end."""
    cluster = Faulty(PROJECT, also=[HERE / "compose.faults.yaml"], environment=PORTS)
    cluster.build()
    try:
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def cluster(built: Faulty) -> Faulty:
    """Return the cluster with all nodes ready, after any earlier faults."""
    built.up()
    return built


@pytest.fixture
def outside(cluster: Faulty) -> Iterator[Start]:
    """Return a function that starts a demo in this Python, with addresses and training options."""
    with ExitStack() as stack:
        trust = stack.enter_context(cluster.credentials())

        def start(addresses: Sequence[str] = (), *more: str, token: Path | None = None) -> Program:
            command = cluster.outside_command(*trust, addresses=addresses or cluster.addresses())
            if token is not None:
                command += ["--token-file", str(token)]
            return stack.enter_context(Program([*command, *TRAINING, *more], cluster.environment))

        yield start


@pytest.fixture
def inside(cluster: Faulty) -> Iterator[Start]:
    """Return a function that starts a demo in a container on the nodes' network."""
    with ExitStack() as stack:

        def start(addresses: Sequence[str] = (), *more: str) -> Program:
            wanted = addresses or [f"wss://{node}:3000" for node in containers.NODES]
            command = cluster.inside_command("demo", *wanted, *TRAINING, *more)
            return stack.enter_context(Program(command, cluster.environment))

        yield start


@pytest.fixture(scope="session")
def undisturbed(built: Faulty) -> str:
    """Return the digest of the weights of an undisturbed training."""
    built.up()
    with (
        built.credentials() as trust,
        Program([*built.outside_command(*trust), *TRAINING], built.environment) as demo,
    ):
        assert demo.end() == 0
        return demo.weights
