"""Prometheus metrics of a server, collected from its counters on request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from burn_remote_server.telemetry.counters import Counters

__all__ = ["CONTENT_TYPE", "MeasuredDevice", "Metrics"]

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


class DeviceMemory(Protocol):
    """A named tuple of sizes in bytes."""

    def _asdict(self) -> dict[str, int]: ...


class MeasuredDevice(Protocol):
    """The properties of a device that its metrics report. Every ``Backend`` has them."""

    @property
    def device_name(self) -> str: ...

    @property
    def failure(self) -> str | None: ...

    def memory(self) -> DeviceMemory: ...


class MeasuredKept(Protocol):
    """The kept tensors of a device. ``KeptTensors`` has these properties."""

    @property
    def content_bytes(self) -> int: ...

    @property
    def published_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _Row:
    """One sample: the metric's name and help, and the counter that it reports."""

    name: str
    help: str
    counter: str
    labels: Mapping[str, str] = field(default_factory=dict)
    is_gauge: bool = False


_BYTES_HELP: Final = "Bytes that crossed the sockets of clients and of other servers."
_BYTES_METRIC: Final = "burn_remote_bytes"

# Prometheus appends _total to counter names. Rows of one metric must be adjacent.
ROWS: Final = (
    _Row("burn_remote_sessions_opened", "Sessions opened.", "sessions_opened"),
    _Row("burn_remote_sessions_closed", "Sessions closed.", "sessions_closed"),
    _Row("burn_remote_sessions_refused", "Sessions refused.", "sessions_refused"),
    _Row("burn_remote_batches", "Batches of tasks executed.", "batches"),
    _Row(
        "burn_remote_thread_batches",
        "Batches that the thread of a session received itself.",
        "thread_batches",
    ),
    _Row("burn_remote_operations", "Tensor operations executed.", "operations"),
    _Row(
        _BYTES_METRIC,
        _BYTES_HELP,
        "client_received_bytes",
        {"kind": "client", "direction": "received"},
    ),
    _Row(_BYTES_METRIC, _BYTES_HELP, "client_sent_bytes", {"kind": "client", "direction": "sent"}),
    _Row(
        _BYTES_METRIC, _BYTES_HELP, "peer_received_bytes", {"kind": "peer", "direction": "received"}
    ),
    _Row(_BYTES_METRIC, _BYTES_HELP, "peer_sent_bytes", {"kind": "peer", "direction": "sent"}),
    _Row(
        "burn_remote_fusion_windows",
        "Windows of arrived operations for which an execution plan was looked up.",
        "fusion_windows",
    ),
    _Row(
        "burn_remote_fusion_plans_explored",
        "Execution plans made for windows that repeated.",
        "fusion_plans_explored",
    ),
    _Row(
        "burn_remote_fusion_plans_found",
        "Windows with a known execution plan.",
        "fusion_plans_found",
    ),
    _Row(
        "burn_remote_fusion_plans_evicted",
        "Windows discarded because a session had too many.",
        "fusion_plans_evicted",
    ),
    _Row(
        "burn_remote_fusion_operations",
        "Tensor operations executed as part of a fused run.",
        "fusion_operations",
    ),
    _Row(
        "burn_remote_fusion_fallbacks",
        "Fused runs whose operations ran one by one instead.",
        "fusion_fallbacks",
    ),
    _Row("burn_remote_graphs", "Graphs defined.", "graphs"),
    _Row("burn_remote_graph_calls", "Calls of graphs.", "graph_calls"),
    _Row(
        "burn_remote_graph_fallbacks", "Calls of graphs that ran step by step.", "graph_fallbacks"
    ),
    _Row("burn_remote_graph_captures", "Parts of graphs that a GPU captured.", "graph_captures"),
    _Row("burn_remote_graph_replays", "Launches of captured parts of graphs.", "graph_replays"),
    _Row(
        "burn_remote_graph_replay_fallbacks",
        "Calls of captured parts that ran the operations one by one instead.",
        "graph_replay_fallbacks",
    ),
    _Row(
        "burn_remote_graph_captures_refused",
        "Captures that failed, except for lack of memory.",
        "graph_captures_refused",
    ),
    _Row(
        "burn_remote_graph_captures_released",
        "Captures released because tensors needed the memory.",
        "graph_captures_released",
    ),
    _Row(
        "burn_remote_compile_seconds",
        "Time spent on compiling graphs and execution plans.",
        "compile_seconds",
    ),
    _Row(
        "burn_remote_kernels_compiled", "Kernels of fused operations compiled.", "kernels_compiled"
    ),
    _Row(
        "burn_remote_kernels_evicted",
        "Compiled kernels discarded because there were too many.",
        "kernels_evicted",
    ),
    _Row(
        "burn_remote_kernel_compile_seconds",
        "Time spent on compiling kernels, in a background thread.",
        "kernel_compile_seconds",
    ),
    _Row(
        "burn_remote_operations_lost",
        "Operations that did not return; the server ended their sessions.",
        "operations_lost",
    ),
    _Row(
        "burn_remote_operations_stuck",
        "Lost operations that have not returned yet; each occupies a thread and its memory.",
        "operations_stuck",
        is_gauge=True,
    ),
    _Row("burn_remote_tensors", "Tensors held now.", "tensors", is_gauge=True),
    _Row("burn_remote_tensor_bytes", "Bytes of tensors held now.", "tensor_bytes", is_gauge=True),
    _Row(
        "burn_remote_transfers_open",
        "Exposed tensors that are not fetched yet.",
        "transfers_open",
        is_gauge=True,
    ),
    _Row(
        "burn_remote_transfers_exposed",
        "Tensors exposed to other sessions and servers.",
        "transfers_exposed",
    ),
    _Row(
        "burn_remote_transfers_served",
        "Fetches of exposed tensors, by sessions of this server and by other servers.",
        "transfers_served",
    ),
    _Row(
        "burn_remote_transfers_fetched", "Tensors fetched from other servers.", "transfers_fetched"
    ),
    _Row(
        "burn_remote_transfers_expired",
        "Exposed tensors that expired before a fetch.",
        "transfers_expired",
    ),
    _Row("burn_remote_transfers_lent", "Tensors lent to servers of this host.", "transfers_lent"),
    _Row(
        "burn_remote_transfers_borrowed",
        "Tensors copied from the memory of servers of this host.",
        "transfers_borrowed",
    ),
)


class Metrics(Collector):
    """A Prometheus collector over the server's counters.

    It reads the counters only when Prometheus scrapes. ``total`` returns the sum of all counters of
    the server and may be called from any thread.
    """

    def __init__(
        self,
        total: Callable[[], Counters],
        *,
        version: str,
        backend: str,
        devices: Sequence[MeasuredDevice] = (),
        kept: Sequence[MeasuredKept] = (),
    ) -> None:
        self._total = total
        self._kept = kept
        self._devices = devices
        self._build = {"version": version, "backend": backend}
        # A registry per server: two servers in one process must not mix their metrics.
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def exposition(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its current value. Called by prometheus_client."""
        total = self._total()
        yield _gauge("burn_remote_build_info", "Version and backend.", 1, self._build)
        yield _gauge("burn_remote_sessions", "Sessions open now.", _open_sessions(total), {})
        yield from _families(total)
        yield _device_memory(self._devices)
        yield _devices_lost(self._devices)
        yield _kept_bytes(self._kept)
        failures = CounterMetricFamily(
            "burn_remote_failures", "Errors sent to clients, by error code.", labels=["code"]
        )
        for code, count in sorted(total.failures.items()):
            failures.add_metric([code], count)
        yield failures


def _open_sessions(total: Counters) -> int:
    return total.sessions_opened - total.sessions_closed


def _device_memory(devices: Sequence[MeasuredDevice]) -> Metric:
    family = GaugeMetricFamily(
        "burn_remote_device_memory_bytes",
        "Memory of each device: usable in total, used by arrays, cached for reuse.",
        labels=["device", "name", "kind"],
    )
    for index, device in enumerate(devices):
        for kind, size in device.memory()._asdict().items():
            family.add_metric([str(index), device.device_name, kind], size)
    return family


def _devices_lost(devices: Sequence[MeasuredDevice]) -> Metric:
    family = GaugeMetricFamily(
        "burn_remote_device_lost",
        "1 if the device is lost; the server must be restarted to use it again.",
        labels=["device", "name"],
    )
    for index, device in enumerate(devices):
        family.add_metric([str(index), device.device_name], device.failure is not None)
    return family


def _kept_bytes(kept: Sequence[MeasuredKept]) -> Metric:
    family = GaugeMetricFamily(
        "burn_remote_kept_bytes",
        "Tensors kept beyond their sessions: contents of shared uploads, and published ones.",
        labels=["device", "kind"],
    )
    for index, one in enumerate(kept):
        family.add_metric([str(index), "content"], one.content_bytes)
        family.add_metric([str(index), "published"], one.published_bytes)
    return family


def _families(total: Counters) -> Iterator[Metric]:
    families: dict[str, Any] = {}
    for row in ROWS:
        kind = GaugeMetricFamily if row.is_gauge else CounterMetricFamily
        family = families.get(row.name)
        if family is None:
            family = families[row.name] = kind(row.name, row.help, labels=list(row.labels))
        family.add_metric(list(row.labels.values()), getattr(total, row.counter))
    yield from families.values()


def _gauge(name: str, text: str, value: float, labels: Mapping[str, str]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family
