"""Devices of one address share a session, which ends with the last of them."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

import burn_remote as br
from support.servers import RunningServer, server


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    with server() as running:
        yield running


def test_each_spelling_of_an_address_is_the_same_device(running: RunningServer) -> None:
    spellings = [running.address, running.address.upper(), f" {running.address}/\n"]
    devices = [br.RemoteDevice(text) for text in [*spellings, f"127.0.0.1:{running.port}"]]
    try:
        assert len(set(devices)) == 1
        assert {device.to_id() for device in devices} == {devices[0].to_id()}
        x = br.ones((2,), device=devices[0])
        assert (x + br.ones((2,), device=devices[-1])).tolist() == [2, 2]
    finally:
        for device in devices:
            device.close()
    assert devices[0].session.closed


def test_a_function_that_opens_and_closes_a_device_leaves_that_of_its_caller(
    running: RunningServer,
) -> None:
    def total() -> float:
        with br.RemoteDevice(running.address) as device:
            return float(br.ones((3,), device=device).sum())

    with br.RemoteDevice(running.address) as device:
        x = br.ones((2,), device=device)
        assert total() == 3
        assert x.tolist() == [1, 1]
    with pytest.raises(br.ClosedDevice):
        x.numpy()


def test_a_forgotten_device_keeps_and_closes_nothing(running: RunningServer) -> None:
    forgotten = br.RemoteDevice(running.address)
    device = br.RemoteDevice(running.address)
    x = br.ones((2,), device=forgotten)
    del forgotten
    gc.collect()
    assert x.tolist() == [1, 1]
    device.close()
    assert device.session.closed


def test_a_device_can_be_opened_again_after_the_last_was_closed(running: RunningServer) -> None:
    first = br.RemoteDevice(running.address)
    first.close()
    with br.RemoteDevice(running.address) as second:
        assert second != first
        first.close()
        assert br.ones((2,), device=second).tolist() == [1, 1]


def test_a_name_opens_the_device_that_it_names(running: RunningServer) -> None:
    with br.RemoteDevice(running.address) as device:
        for name in (device.to_id(), device.to_id().index_id):
            with br.RemoteDevice.from_id(name) as again:
                assert again == device


def test_a_device_is_shown_without_the_token_in_its_address(running: RunningServer) -> None:
    with br.RemoteDevice(f"{running.address}/token/secret") as device:
        assert "secret" not in f"{device} {device!r}"
        assert str(running.port) in repr(device)
        assert device.address.endswith("/token/secret")


IMPORTED_BY_A_CONNECTION = """
import sys
import burn_remote as br

before = set(sys.modules)
try:
    br.RemoteDevice("ws://localhost:1")
except br.ConnectionFailed:
    print(*sorted(set(sys.modules) - before))
"""


def test_opening_a_device_imports_nothing_that_a_forked_child_could_wait_for() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", IMPORTED_BY_A_CONNECTION],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ran.stdout == "\n"
