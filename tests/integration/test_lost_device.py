"""A lost device fails all its sessions with a typed error; other devices continue."""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import burn_remote as br
from support.servers import RunningServer, server
from support.waiting import PATIENCE_SECONDS

TESTS = Path(__file__).parents[1]
LOST = "device 1 is lost; restart the server"


@pytest.fixture
def running() -> Iterator[RunningServer]:
    path = ":".join([*sys.path, str(TESTS)])
    with server(
        "--device-count", "2", "--custom-operations", "support.losing", PYTHONPATH=path
    ) as started:
        yield started


def asked(running: RunningServer, path: str) -> tuple[int, str]:
    """Return the status and the body of a server's HTTP response."""
    url = f"http://127.0.0.1:{running.port}{path}"
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def lose(device: br.Device, number: int = 1) -> br.Tensor:
    """Lose a device of the server during an operation, and return the operation's result."""
    x = br.tensor([number], device=device, dtype=br.int64)
    return br.custom("lose", x, outputs=br.TensorSpec((1,), br.int64))


def second(running: RunningServer, dialect: str = "native", token: str | None = None) -> br.Device:
    """Open a session on the second device; a different token opens a separate session."""
    return br.RemoteDevice(f"{running.address}/1", dialect=dialect, token=token)


@pytest.mark.parametrize("dialect", ["native", "burn-0.21"])
def test_every_session_of_a_lost_device_gets_a_typed_error(
    running: RunningServer, dialect: str
) -> None:
    # Burn's dialect has one error class with a text.
    kind = br.DeviceLost if dialect == "native" else br.OperationFailed
    with second(running) as breaking, second(running, dialect, token="other") as other:
        x = br.ones((4,), device=other)
        assert x.tolist() == [1, 1, 1, 1]
        with pytest.raises(br.DeviceLost, match=LOST) as caught:
            lose(breaking).numpy()
        assert "lose" in caught.value.operation
        for read in (
            lambda: x.numpy(),
            lambda: (x + 1).numpy(),
            lambda: br.zeros((2,), device=other).numpy(),
            lambda: br.tensor(np.ones(4), device=other).numpy(),
            lambda: br.tensor(np.ones(1_000_000), device=other).numpy(),
            other.sync,
        ):
            with pytest.raises(kind, match=LOST):
                read()


def test_the_other_device_continues(running: RunningServer) -> None:
    with br.RemoteDevice(running.address) as first, second(running) as breaking:
        x = br.ones((4,), device=first)
        with pytest.raises(br.DeviceLost):
            lose(breaking).numpy()
        assert (x + 1).tolist() == [2, 2, 2, 2]
        with br.RemoteDevice(running.address, token="later") as later:
            assert br.ones((2,), device=later).tolist() == [1, 1]


def test_a_tensor_of_a_lost_device_cannot_be_moved(running: RunningServer) -> None:
    with br.RemoteDevice(running.address) as first, second(running) as breaking:
        x = br.ones((4,), device=breaking)
        with pytest.raises(br.DeviceLost):
            lose(breaking).numpy()
        with pytest.raises(br.DeviceLost, match=LOST):
            x.to(first).numpy()


def test_a_new_session_on_a_lost_device_is_refused_with_the_reason(running: RunningServer) -> None:
    with second(running) as breaking:
        with pytest.raises(br.DeviceLost):
            lose(breaking).numpy()
        with pytest.raises(br.HandshakeRefused, match=LOST):
            second(running, token="later").sync()
        with pytest.raises(br.BurnRemoteError, match=LOST):
            second(running, "burn-0.21", token="later").sync()


def test_health_readiness_and_metrics_report_the_loss(running: RunningServer) -> None:
    assert asked(running, "/readyz") == (200, "ready\n")
    with second(running) as breaking:
        with pytest.raises(br.DeviceLost):
            lose(breaking).numpy()
        assert running.metric('burn_remote_failures_total{code="device_lost"}') == 1
    assert asked(running, "/readyz") == (503, f"{LOST}\n")
    assert asked(running, "/healthz") == (200, "ok\n")  # one of two devices is still usable
    lost = {
        name: value
        for name, value in running.metrics().items()
        if name.startswith("burn_remote_device_lost")
    }
    assert [*lost.values()] == [0, 1]
    assert [name.split('"')[1] for name in lost] == ["0", "1"]

    with br.RemoteDevice(running.address) as first, pytest.raises(br.DeviceLost):
        lose(first, 0).numpy()
    assert asked(running, "/healthz")[0] == 503


def test_the_server_still_stops_cleanly(running: RunningServer) -> None:
    with second(running) as breaking:
        with pytest.raises(br.DeviceLost):
            lose(breaking).numpy()
        assert running.stop() == 0
