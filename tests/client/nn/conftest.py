"""A local device; tests compare its results with NumPy's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import burn_remote as br


@pytest.fixture(scope="session")
def device() -> Iterator[br.Device]:
    with br.LocalDevice() as local:
        yield local
