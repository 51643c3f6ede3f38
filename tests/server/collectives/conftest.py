"""Settings of the tests of collectives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.patient_clock import patient_clock


@pytest.fixture(autouse=True)
def no_member_is_late_because_the_machine_is_busy() -> Iterator[None]:
    with patient_clock():
        yield
