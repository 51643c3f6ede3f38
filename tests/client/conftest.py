"""A recording device, for tests of the client without a server."""

from __future__ import annotations

import pytest

from support.runners import RecordingDevice


@pytest.fixture
def device() -> RecordingDevice:
    return RecordingDevice()
