"""An operation that never returns ends its session with a typed error; other sessions continue."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import burn_remote as br
from support.servers import RunningServer, server
from support.waiting import PATIENCE_SECONDS, wait_until

# A module of operations: one blocks its thread until another one is called.
OPERATIONS = """
import threading
from burn_remote_server.custom import custom_operation

RELEASED = threading.Event()

@custom_operation("block", inputs={"x": "any"}, shapes=lambda x: x)
def block(xp, x):
    RELEASED.wait(60)
    return x

@custom_operation("release", inputs={"x": "any"}, shapes=lambda x: x)
def release(xp, x):
    RELEASED.set()
    return x
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningServer]:
    (tmp_path / "blocking.py").write_text(OPERATIONS)
    flags = (
        "--custom-operations=blocking", "--max-operation-seconds=0.5",
        "--operation-lost-seconds=1", "--max-sessions=2",
    )  # fmt: skip
    with server(*flags, PYTHONPATH=":".join([*sys.path, str(tmp_path)])) as started:
        yield started


def health(running: RunningServer) -> str:
    url = f"http://127.0.0.1:{running.port}/healthz"
    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
        return str(answer.read(), "ascii")


def called(name: str, device: br.Device) -> br.Tensor:
    x = br.ones((4,), device=device)
    return br.custom(name, x, outputs=x.handle.spec)


def test_callers_get_the_operation_its_seconds_and_their_line(running: RunningServer) -> None:
    device = br.RemoteDevice(running.address)
    y = called("block", device)
    later = (y + 1).sum().read()
    with pytest.raises(br.OperationLost, match=r"has not returned for \d.* seconds") as caught:
        y.numpy()
    error = caught.value
    assert error.operation == "Custom 'block'"
    assert "float32[4]" in error.shapes
    assert Path(error.location.rsplit(":", 1)[0]).name == Path(__file__).name
    with pytest.raises(br.OperationLost, match="Custom 'block'"):
        later.result(PATIENCE_SECONDS)
    with pytest.raises(br.OperationLost):
        br.ones((4,), device=device).numpy()
    device.close()


def test_other_sessions_continue_and_operators_see_it(running: RunningServer) -> None:
    with br.RemoteDevice(running.address, token="other") as other:
        assert health(running) == "ok\n"
        breaking = br.RemoteDevice(running.address)
        with pytest.raises(br.OperationLost):
            called("block", breaking).numpy()
        assert br.ones((2,), device=other).tolist() == [1, 1]
        assert health(running) == "degraded: 1 operations do not return\n"
        assert running.metric("burn_remote_operations_lost_total") == 1
        assert running.metric("burn_remote_operations_stuck") == 1
        # Its thread counts as a session, so their number stays bounded.
        with pytest.raises(br.HandshakeRefused, match="1 of them ended"):
            br.RemoteDevice(running.address, token="third")

        assert called("release", other).tolist() == [1, 1, 1, 1]
        wait_until(lambda: health(running) == "ok\n")
        assert running.metric("burn_remote_operations_stuck") == 0
        assert running.metric("burn_remote_operations_lost_total") == 1
        with br.RemoteDevice(running.address, token="third") as third:
            assert br.ones((2,), device=third).tolist() == [1, 1]


@pytest.mark.parametrize("dialect", ["burn-0.21", "burn-0.22"])
def test_a_session_of_burns_dialect_ends_and_its_callers_know(
    running: RunningServer, dialect: str
) -> None:
    with br.RemoteDevice(running.address, token="other") as other:
        breaking = br.RemoteDevice(running.address, dialect=dialect)
        with pytest.raises((br.OperationFailed, br.ConnectionLost)):
            called("block", breaking).numpy()
        assert running.metric("burn_remote_operations_lost_total") == 1
        assert called("release", other).tolist() == [1, 1, 1, 1]


def test_the_other_members_of_its_groups_learn_of_it(running: RunningServer) -> None:
    breaking = br.RemoteDevice(running.address)
    with (
        br.RemoteDevice(running.address, token="other") as other,
        br.distributed.Group([breaking, other], engine="ring") as group,
    ):
        for part in group.all_reduce([br.ones((4,), device=each) for each in group.devices]):
            assert part.tolist() == [2] * 4
        blocked = called("block", breaking)
        _, result = group.all_reduce([blocked, br.ones((4,), device=other)])
        with pytest.raises(br.CollectiveFailed):
            result.numpy()
        assert called("release", other).tolist() == [1, 1, 1, 1]
