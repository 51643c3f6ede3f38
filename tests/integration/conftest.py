"""Devices that integration tests run on: in this process, and on servers in their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import burn_remote as br
from support.servers import RunningServer, server


@pytest.fixture(scope="session")
def first_server() -> Iterator[RunningServer]:
    with server() as running:
        yield running


@pytest.fixture(scope="session")
def second_server() -> Iterator[RunningServer]:
    with server() as running:
        yield running


@pytest.fixture(params=["memory", "websocket"])
def device(request: pytest.FixtureRequest) -> Iterator[br.Device]:
    """A fresh session, over each kind of link."""
    if request.param == "memory":
        with br.LocalDevice() as local:
            yield local
        return
    running: RunningServer = request.getfixturevalue("first_server")
    with br.RemoteDevice(running.address) as remote:
        yield remote


@pytest.fixture
def remote_pair(
    first_server: RunningServer, second_server: RunningServer
) -> Iterator[tuple[br.RemoteDevice, br.RemoteDevice]]:
    """Sessions on two servers."""
    with br.RemoteDevice(first_server.address) as a, br.RemoteDevice(second_server.address) as b:
        yield a, b
