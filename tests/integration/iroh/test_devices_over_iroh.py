"""Devices over Iroh: the same programs, resumed sessions, tokens, moves, and the key file."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import burn_remote as br
from burn_remote_protocol.links.iroh import endpoints
from burn_remote_protocol.links.iroh.blocking_link import BlockingIrohLink, _open_links
from burn_remote_protocol.links.transport_registry import connect
from support.servers import RunningServer, server
from support.waiting import PATIENCE_SECONDS, wait_until

DIALECTS = ["native", "burn-0.22"]
TOKEN = "0123456789abcdef0123"


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    with server("--iroh-port", "0", "--device-count", "2") as started:
        yield started


def break_links() -> int:
    """End the connections of all links of this process, as a network failure would."""
    links = [link for link in [*_open_links] if not link.closed]
    for link in links:
        assert isinstance(link, BlockingIrohLink)
        connection = link._inner._connection
        if connection is not None:  # it has not ended meanwhile
            link._thread.loop.call_soon_threadsafe(connection.close, 0, b"")
    return len(links)


def test_the_first_line_names_the_address_of_each_device(running: RunningServer) -> None:
    first, second = running.iroh
    assert second == first.replace("?", "/1?")
    assert "?addr=127.0.0.1:" in first


@pytest.mark.parametrize("dialect", DIALECTS)
def test_operations_uploads_and_reads_work_as_over_a_websocket(
    running: RunningServer, dialect: str
) -> None:
    values = np.random.default_rng(0).standard_normal((300, 1000)).astype(np.float32)
    with br.RemoteDevice(running.iroh[0], dialect=dialect) as device:
        x = br.asarray(values, device=device)
        np.testing.assert_array_equal((x + 1).numpy(), values + 1)
        np.testing.assert_allclose((x @ x.mT).sum().numpy(), (values @ values.T).sum(), rtol=1e-3)


def test_the_second_device_is_another_one(running: RunningServer) -> None:
    with br.RemoteDevice(running.iroh[1]) as second, br.RemoteDevice(running.iroh[0]) as first:
        assert first != second
        moved = br.tensor([1.0, 2.0], device=second).to(first)
        assert moved.tolist() == [1.0, 2.0]


def test_a_device_that_does_not_exist_is_refused(running: RunningServer) -> None:
    address = running.iroh[0].replace("?", "/7?")
    with pytest.raises(br.BurnRemoteError, match="there is no device /7"):
        br.RemoteDevice(address)


@pytest.mark.parametrize("route", ["/response", "/data", "/", "/../session"])
def test_other_paths_are_refused(running: RunningServer, route: str) -> None:
    with pytest.raises(br.BurnRemoteError, match="404"):
        connect(running.iroh[0], route)


def test_burn_0_21_over_iroh_is_refused_with_the_reason(running: RunningServer) -> None:
    with pytest.raises(br.UsageError, match=r"Burn 0\.21 cannot be reached over Iroh"):
        br.RemoteDevice(running.iroh[0], dialect="burn-0.21")


def test_a_session_resumes_after_its_connection_broke(running: RunningServer) -> None:
    with br.RemoteDevice(running.iroh[0]) as device:
        x = br.asarray(np.arange(10.0), device=device)
        for number in range(1, 4):
            y = x + number
            assert break_links() == 1
            np.testing.assert_array_equal(y.numpy(), np.arange(10.0) + number)
        assert x.tolist() == [float(n) for n in range(10)]


def test_a_session_resumes_in_the_middle_of_a_large_upload(running: RunningServer) -> None:
    values = np.random.default_rng(1).standard_normal(2_000_000)
    with br.RemoteDevice(running.iroh[0]) as device:
        stopped = threading.Event()

        def keep_breaking() -> None:
            for _ in range(3):
                break_links()
                stopped.wait(0.15)

        breaking = threading.Thread(target=keep_breaking)
        breaking.start()
        try:
            np.testing.assert_array_equal(br.asarray(values, device=device).numpy(), values)
        finally:
            stopped.set()
            breaking.join()


@pytest.mark.parametrize("forth", [True, False], ids=["iroh to ws", "ws to iroh"])
def test_tensors_move_between_a_device_over_iroh_and_one_over_a_websocket(
    running: RunningServer, forth: bool
) -> None:
    with (
        server() as other,
        br.RemoteDevice(running.iroh[0]) as over_iroh,
        br.RemoteDevice(other.address) as over_websocket,
    ):
        source, target = (over_iroh, over_websocket)[:: 1 if forth else -1]
        x = br.asarray(np.arange(50_000.0), device=source)
        np.testing.assert_array_equal((x.to(target) * 2).numpy(), np.arange(50_000.0) * 2)


def test_a_token_is_required_over_iroh_too() -> None:
    with server("--iroh-port", "0", BURN_REMOTE_TOKENS=f"alice:{TOKEN}") as guarded:
        for dialect in DIALECTS:
            with pytest.raises(br.BurnRemoteError, match=r"token"):
                br.RemoteDevice(guarded.iroh[0], dialect=dialect)
            with pytest.raises(br.BurnRemoteError, match=r"token"):
                br.RemoteDevice(guarded.iroh[0], dialect=dialect, token="f" * 20)
            with br.RemoteDevice(guarded.iroh[0], dialect=dialect, token=TOKEN) as device:
                assert br.tensor([1.0], device=device).tolist() == [1.0]


def test_the_key_file_is_created_for_its_owner_and_keeps_the_node_id(tmp_path: Path) -> None:
    path = tmp_path / "node.key"
    arguments = ("--iroh-port", "0", "--iroh-key-file", str(path))
    with server(*arguments) as first:
        node = first.iroh[0].partition("?")[0]
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert node == f"iroh://{endpoints.node_id(path.read_bytes())}"
    with server(*arguments) as second:
        assert second.iroh[0].startswith(f"{node}?")


def test_connections_over_iroh_count_against_the_limit_per_address() -> None:
    with (
        server("--iroh-port", "0", "--max-connections-per-address", "2") as limited,
        br.RemoteDevice(limited.address),
        br.RemoteDevice(limited.iroh[0]) as device,
    ):
        with pytest.raises(br.ConnectionFailed, match="429"):
            br.RemoteDevice(limited.iroh[0], dialect="native")
        assert br.tensor([1.0], device=device).tolist() == [1.0]


def test_a_stopping_server_tells_sessions_over_iroh_why_they_end() -> None:
    with server("--iroh-port", "0", "--drain-seconds", "20") as stopping:
        device = br.RemoteDevice(stopping.iroh[0])
        x = br.tensor([1.0], device=device)
        assert x.tolist() == [1.0]
        stopping.process.terminate()
        assert stopping.process.wait(PATIENCE_SECONDS) == 0
        with pytest.raises(br.SessionLost, match="the server is shutting down"):
            (x + 1).tolist()
        device.close(0)


def test_a_killed_server_is_noticed_by_pings(running: RunningServer) -> None:
    with server("--iroh-port", "0", "--heartbeat-seconds", "1") as killed:
        others = {*_open_links}
        device = br.RemoteDevice(killed.iroh[0])
        x = br.tensor([1.0], device=device)
        assert x.tolist() == [1.0]
        link = next(link for link in [*_open_links] if link not in others)
        killed.kill()
        wait_until(lambda: link.closed)
        device.close(0)


def test_devices_leave_no_thread(running: RunningServer) -> None:
    earlier = threading.enumerate()  # perhaps one of a device whose server was killed

    def started() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread not in earlier]

    with br.RemoteDevice(running.iroh[0]) as device:
        assert br.tensor([1.0], device=device).tolist() == [1.0]
        assert "burn-remote-iroh" in started()
    del device
    assert "burn-remote-iroh" not in started()


async def test_a_device_opens_from_an_event_loop(running: RunningServer) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), await br.aio.open_device(running.iroh[0]) as d:
        (doubled,) = await br.aio.read([br.tensor([1.0, 2.0], device=d) * 2])
        assert doubled.tolist() == [2.0, 4.0]
