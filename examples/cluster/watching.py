"""Samples of the servers' metrics over time.

Every server serves ``/metrics`` by default and without a session. The metrics include traffic that
no session sees, such as that between servers. They are read a few times per second, which is the
resolution of the picture.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from http import HTTPStatus
from types import TracebackType
from typing import Final, Self

from cluster.nodes import Cluster, Node

__all__ = ["Sample", "Watch", "parse"]

# Fine enough for the timeline. A shorter interval would load the servers: with TLS, each request
# needs a handshake.
INTERVAL_SECONDS: Final = 0.1

_LINE: Final = re.compile(r"^(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')

# The field of a sample → the metric and its labels.
METRICS: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "operations": ("burn_remote_operations_total", {}),
    "clients_in": ("burn_remote_bytes_total", {"kind": "client", "direction": "received"}),
    "clients_out": ("burn_remote_bytes_total", {"kind": "client", "direction": "sent"}),
    "peers_in": ("burn_remote_bytes_total", {"kind": "peer", "direction": "received"}),
    "peers_out": ("burn_remote_bytes_total", {"kind": "peer", "direction": "sent"}),
    "tensor_bytes": ("burn_remote_tensor_bytes", {}),
    "memory_bytes": ("process_resident_memory_bytes", {}),
    "cpu_seconds": ("process_cpu_seconds_total", {}),
}
# Gauges, whose maximum is reported instead of a difference.
GAUGES: Final = ("tensor_bytes", "memory_bytes")


@dataclass(frozen=True)
class Sample:
    """A server's metrics at a time, in seconds since the start of the program."""

    seconds: float = 0.0
    operations: float = 0.0
    clients_in: float = 0.0
    clients_out: float = 0.0
    peers_in: float = 0.0
    peers_out: float = 0.0
    tensor_bytes: float = 0.0
    memory_bytes: float = 0.0
    cpu_seconds: float = 0.0

    def since(self, before: Sample) -> Sample:
        """Return the differences since ``before``; gauges and the time stay unchanged."""
        kept = (*GAUGES, "seconds")
        return Sample(
            *(
                getattr(self, each.name) - (0 if each.name in kept else getattr(before, each.name))
                for each in fields(self)
            )
        )


def parse(text: str, seconds: float) -> Sample:
    """Read a sample from Prometheus' text format; what is missing is zero."""
    found = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is not None:
            labels = frozenset(_LABEL.findall(match["labels"] or ""))
            found[match["name"], labels] = float(match["value"])
    return Sample(
        seconds,
        **{
            name: found.get((metric, frozenset(labels.items())), 0.0)
            for name, (metric, labels) in METRICS.items()
        },
    )


@dataclass
class Watch:
    """Samples every node while the context is entered. A node without metrics has no samples."""

    cluster: Cluster
    samples: dict[Node, list[Sample]] = field(default_factory=dict)
    nbytes: int = 0  # traffic of the sampling itself
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        for node in self.cluster.nodes:
            self.samples[node] = []
            self._ask(node)
            thread = threading.Thread(target=self._run, args=(node,), daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for node in self.cluster.alive:
            self._ask(node)

    def total(self, node: Node) -> Sample | None:
        """Return a node's counters while it was watched, and the maxima of its gauges."""
        samples = self.samples[node]
        if not samples:
            return None
        counted = samples[-1].since(samples[0])
        most = {name: max(getattr(each, name) for each in samples) for name in GAUGES}
        values = {each.name: getattr(counted, each.name) for each in fields(counted)}
        return Sample(**{**values, **most})

    def _run(self, node: Node) -> None:
        while not self._stop.wait(INTERVAL_SECONDS) and not node.lost:
            self._ask(node)

    def _ask(self, node: Node) -> None:
        answer = node.http_get("/metrics")
        if answer is not None and answer[0] == HTTPStatus.OK:
            self.nbytes += len(answer[1])
            self.samples[node].append(parse(answer[1].decode(), self.cluster.seconds))
