"""A device that runs nothing: what tests of the client alone compute on."""

from __future__ import annotations

import pytest

from support.runners import RecordingDevice


@pytest.fixture
def device() -> RecordingDevice:
    return RecordingDevice()
