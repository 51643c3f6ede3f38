"""Fixtures: servers that compute on this machine's GPU and CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from burn_remote_protocol.errors import UsageError
from burn_remote_server.backends import Backend, open_backends
from support.servers import RunningServer, server


@pytest.fixture(scope="session")
def gpu() -> Backend:
    """The first GPU; skips the test if there is none."""
    try:
        return open_backends("cupy", 1)[0]
    except UsageError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def gpu_server(gpu: Backend) -> Iterator[RunningServer]:
    with server("--backend", "cupy") as running:
        yield running


@pytest.fixture(scope="session")
def cpu_server() -> Iterator[RunningServer]:
    with server() as running:
        yield running
