"""Devices for integration tests: local ones, and ones on servers in other processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trustme

import burn_remote as br
from support.access import ALICE, BOB
from support.servers import RunningServer, server


@pytest.fixture(scope="session")
def first_server() -> Iterator[RunningServer]:
    with server() as running:
        yield running


@pytest.fixture(scope="session")
def second_server() -> Iterator[RunningServer]:
    with server() as running:
        yield running


@pytest.fixture(scope="session")
def guarded() -> Iterator[RunningServer]:
    """A server that requires a token."""
    with server(BURN_REMOTE_TOKENS=f"alice:{ALICE},bob:{BOB}") as running:
        yield running


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    """A certificate authority that tests may trust."""
    return trustme.CA()


@pytest.fixture(params=["memory", "websocket", "burn"])
def device(request: pytest.FixtureRequest) -> Iterator[br.Device]:
    """A new session, for each kind of link and each dialect."""
    with open_device(request) as opened:
        yield opened


@pytest.fixture(params=["memory", "websocket"])
def native_device(request: pytest.FixtureRequest) -> Iterator[br.Device]:
    """A new session of the native dialect, for tests of what Burn's dialect lacks."""
    with open_device(request) as opened:
        yield opened


def open_device(request: pytest.FixtureRequest) -> br.Device:
    """Open the device for a fixture's parameter."""
    if request.param == "memory":
        return br.LocalDevice()
    running: RunningServer = request.getfixturevalue("first_server")
    dialect = "burn-0.21" if request.param == "burn" else "native"
    return br.RemoteDevice(running.address, dialect=dialect)


@pytest.fixture
def remote_pair(
    first_server: RunningServer, second_server: RunningServer
) -> Iterator[tuple[br.RemoteDevice, br.RemoteDevice]]:
    """Sessions on two servers."""
    with br.RemoteDevice(first_server.address) as a, br.RemoteDevice(second_server.address) as b:
        yield a, b
