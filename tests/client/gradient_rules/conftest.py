"""A local device, on which gradients are computed and compared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import burn_remote as br


@pytest.fixture(scope="session")
def device() -> Iterator[br.Device]:
    with br.LocalDevice() as local:
        yield local
