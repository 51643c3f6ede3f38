"""A local device, for tests that compare results."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import burn_remote as br


@pytest.fixture
def local() -> Iterator[br.Device]:
    with br.LocalDevice() as device:
        yield device
