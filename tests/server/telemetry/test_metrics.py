"""Every counter is exported in Prometheus's text format."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace

from prometheus_client.parser import text_string_to_metric_families

from burn_remote_server.backends import open_backends
from burn_remote_server.telemetry.counters import Counters
from burn_remote_server.telemetry.metrics import ROWS, Metrics


def samples(counters: Counters) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = Metrics(lambda: counters, version="1.2", backend="numpy").exposition().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_counter_has_a_row() -> None:
    counted = {item.name for item in fields(Counters)} - {"failures"}
    assert {row.counter for row in ROWS} == counted


def test_every_row_shows_its_counter() -> None:
    counters = Counters()
    for number, row in enumerate(ROWS, start=1):
        setattr(counters, row.counter, number)
    seen = samples(counters)
    for number, row in enumerate(ROWS, start=1):
        name = row.name if row.is_gauge else f"{row.name}_total"
        assert seen[name, frozenset(row.labels.items())] == number


def test_open_sessions_are_those_not_closed() -> None:
    counters = Counters(sessions_opened=5, sessions_closed=2)
    assert samples(counters)["burn_remote_sessions", frozenset()] == 3


def test_failures_are_counted_by_code() -> None:
    counters = Counters()
    counters.failures["out_of_memory"] += 2
    seen = samples(counters)
    assert seen["burn_remote_failures_total", frozenset({("code", "out_of_memory")})] == 2


def test_the_version_and_backend_are_labels() -> None:
    labels = frozenset({("version", "1.2"), ("backend", "numpy")})
    assert samples(Counters())["burn_remote_build_info", labels] == 1


def test_the_memory_of_each_device_is_shown_by_kind() -> None:
    devices = open_backends("numpy", 2, memory_limit=2**20)
    metrics = Metrics(Counters, version="", backend="numpy", devices=devices)

    text = metrics.exposition().decode()

    seen = {
        (sample.labels["device"], sample.labels["kind"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "burn_remote_device_memory_bytes"
    }
    assert seen["1", "total"] == 2**20
    assert seen["0", "used"] > 0
    assert set(seen) == {(d, k) for d in "01" for k in ("total", "used", "cached")}


def test_the_kept_bytes_of_each_device_are_shown_by_kind() -> None:
    kept = [
        SimpleNamespace(content_bytes=3, published_bytes=5),
        SimpleNamespace(content_bytes=0, published_bytes=7),
    ]
    metrics = Metrics(Counters, version="", backend="numpy", kept=kept)

    text = metrics.exposition().decode()

    for device, kind, size in (
        (0, "content", 3),
        (0, "published", 5),
        (1, "content", 0),
        (1, "published", 7),
    ):
        assert f'burn_remote_kept_bytes{{device="{device}",kind="{kind}"}} {size}.0' in text


def test_values_are_read_at_each_request() -> None:
    counters = Counters()
    metrics = Metrics(lambda: counters, version="", backend="")
    counters.operations = 5
    assert b"burn_remote_operations_total 5.0" in metrics.exposition()
    counters.operations = 6
    assert b"burn_remote_operations_total 6.0" in metrics.exposition()


def test_the_process_shows_its_memory() -> None:
    assert samples(Counters())["process_resident_memory_bytes", frozenset()] > 0
