"""Devices for groups of up to five members."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import burn_remote as br


@pytest.fixture(scope="module")
def devices() -> Iterator[list[br.Device]]:
    """Five devices of this process, each with a session of its own."""
    opened: list[br.Device] = [br.LocalDevice() for _ in range(5)]
    yield opened
    for device in opened:
        device.close()
