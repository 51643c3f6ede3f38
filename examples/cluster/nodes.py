"""The nodes of the demo, their roles, and recovery from the loss of a node."""

from __future__ import annotations

import contextlib
import http.client
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final, TypeVar
from urllib.parse import urlsplit

import burn_remote as br

__all__ = ["FAILURES", "Cluster", "Node", "opened"]

T = TypeVar("T")

# Errors that a lost node can cause. Any other exception is a bug in the demo.
FAILURES: Final = (br.OperationFailed, br.ConnectionLost, TimeoutError)

# Number of retries while every node responds: enough for a peer to reconnect before a failure is
# reported as permanent.
TRIES: Final = 10
PAUSE_SECONDS: Final = 0.3
# Long enough that a busy node still responds.
HTTP_TIMEOUT_SECONDS: Final = 2.0
# How long the end waits for a node to finish its work.
CLOSE_SECONDS: Final = 30.0


@dataclass(eq=False)
class Node:
    """A server and this program's session on it. ``lost`` is the reason of its loss, or empty."""

    device: br.RemoteDevice
    tls: ssl.SSLContext | None
    lost: str = ""

    @property
    def name(self) -> str:
        """Host and port."""
        return urlsplit(self.device.address).netloc

    def http_get(self, path: str) -> tuple[int, bytes] | None:
        """Return the status and body of an HTTP request to the server, or ``None``.

        A Burn server has no such path, but it also responds.
        """
        parts = urlsplit(self.device.address)
        host, port = parts.hostname or "", parts.port
        connection: http.client.HTTPConnection
        if parts.scheme == "wss":
            connection = http.client.HTTPSConnection(
                host, port, timeout=HTTP_TIMEOUT_SECONDS, context=self.tls
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=HTTP_TIMEOUT_SECONDS)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()


@dataclass
class Cluster:
    """The nodes in the order given. The last one evaluates, the others train."""

    nodes: Sequence[Node]
    patience_seconds: float
    say: Callable[[str], None]
    began: float = field(default_factory=time.monotonic)

    @property
    def alive(self) -> list[Node]:
        """The nodes that are not lost."""
        return [node for node in self.nodes if not node.lost]

    @property
    def trainers(self) -> list[Node]:
        """The nodes that train: all but the last, or all where there are only two."""
        return self.alive[:-1] if len(self.alive) > 2 else self.alive

    @property
    def evaluator(self) -> Node:
        """The node that evaluates."""
        return self.alive[-1]

    @property
    def seconds(self) -> float:
        """The time since the program connected."""
        return time.monotonic() - self.began

    def result(self, pending: br.Pending[T]) -> T:
        """Wait for a value, with a timeout. Raises one of ``FAILURES``."""
        return pending.result(self.patience_seconds)

    def sync(self, node: Node) -> None:
        """Wait until a node has done everything asked of it. Raises one of ``FAILURES``."""
        self.result(node.device.client.sync())

    def persist(self, action: Callable[[], T], recover: Callable[[], object]) -> T:
        """Return the result of ``action``; after a failure, find lost nodes, recover and retry.

        Raises the failure if no node is left, or if it persists although all nodes respond.
        """
        tries = 0
        failed = False
        while True:
            try:
                if failed:
                    recover()
                return action()
            except FAILURES as error:
                failed = True
                tries += 1
                self.say(f"{type(error).__name__}: {error}")
                if self._drop_lost(error):
                    tries = 0
                if tries >= TRIES or not self.alive:
                    raise
                time.sleep(PAUSE_SECONDS)
                self._discard_failures()

    def _discard_failures(self) -> None:
        """Read and discard the pending failures of all nodes: they belong to abandoned work."""
        for node in self.alive:
            with contextlib.suppress(*FAILURES):
                self.sync(node)

    def _drop_lost(self, error: Exception) -> bool:
        """Remove nodes whose session ended or that do not respond; return whether any did."""
        deadline = time.monotonic() + self.patience_seconds
        before = len(self.alive)
        for node in self.alive:
            if not self._answers(node, deadline):
                node.lost = str(error) or type(error).__name__
                rest = ", ".join(other.name for other in self.alive) or "nobody"
                self.say(f"{node.name} is lost; {rest} can go on")
        return len(self.alive) < before

    def _answers(self, node: Node, deadline: float) -> bool:
        # A session resumes automatically within its lease. So a node is lost only if its session
        # ends, or if it does not respond within the timeout.
        while not node.device.session.closed:
            if node.http_get("/healthz") is not None:
                return not node.device.session.closed
            if time.monotonic() >= deadline:
                return False
            time.sleep(PAUSE_SECONDS)
        return False


def opened(
    addresses: Sequence[str],
    stack: ExitStack,
    *,
    token: str | None,
    tls: ssl.SSLContext | None,
    timeout_seconds: float,
) -> list[Node]:
    """Open a session on each server; the stack closes them. Raises ``BurnRemoteError``."""
    nodes = []
    for address in addresses:
        wanted = tls if address.startswith("wss://") else None
        device = br.RemoteDevice(
            address, token=token, tls=wanted, connect_timeout_seconds=timeout_seconds
        )
        nodes.append(Node(device, wanted))
        stack.callback(_close, nodes[-1])
    return nodes


def _close(node: Node) -> None:
    # A lost node does no work, and the work that failed on others was repeated.
    with contextlib.suppress(br.OperationFailed):
        node.device.close(timeout_seconds=0 if node.lost else CLOSE_SECONDS)
