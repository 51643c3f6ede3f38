"""A real server for tests of other libraries, which see only the namespace of the standard."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import burn_remote as br
from support.servers import server

# SciPy and scikit-learn read it once, when they are imported.
os.environ.setdefault("SCIPY_ARRAY_API", "1")


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    with server() as running:
        yield running.address


@pytest.fixture
def box(address: str) -> Iterator[br.Device]:
    """A new session on a server in another process, which is the default device."""
    with br.RemoteDevice(address) as device:
        br.set_default_device(device)
        yield device
        br.set_default_device(None)
