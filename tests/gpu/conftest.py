"""Fixtures: servers that compute on this machine's GPU and CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from burn_remote_protocol.errors import UsageError
from burn_remote_server.backends import Backend, BackendSession, open_backends
from support.servers import RunningServer, server


@pytest.fixture(scope="session")
def gpu() -> Backend:
    """The first GPU; skips the test if there is none."""
    try:
        return open_backends("cupy", 1)[0]
    except UsageError as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def closed_sessions(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Close the sessions that a test opens on the first GPU.

    Their streams are reused. Otherwise each stream would keep memory that no other can reuse, and
    the processes that run tests at the same time share the GPU.
    """
    if "gpu" not in request.fixturenames:
        yield
        return
    gpu: Backend = request.getfixturevalue("gpu")
    opened: list[BackendSession] = []

    def open_session(*arguments: Any) -> BackendSession:
        opened.append(type(gpu).open_session(gpu, *arguments))
        return opened[-1]

    monkeypatch.setattr(gpu, "open_session", open_session)
    yield
    for session in opened:
        session.close()


@pytest.fixture(scope="session")
def gpu_server(gpu: Backend) -> Iterator[RunningServer]:
    with server("--backend", "cupy") as running:
        yield running


@pytest.fixture(scope="session")
def cpu_server() -> Iterator[RunningServer]:
    with server() as running:
        yield running
