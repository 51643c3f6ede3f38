"""A short run of the signals and of the shortage of file descriptors."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from endurance.shortages import Shortage, signalled, without_descriptors

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux changes limits of others")


@pytest.mark.parametrize("run", [without_descriptors, signalled])
def test_sessions_of_all_dialects_survive_shortages_and_signals_and_leave_nothing(
    run: Callable[[int, int], Shortage],
) -> None:
    seen = run(2, 5)
    assert [report.ended for report in seen.reports] == ["", "", ""]
    assert all(report.steps for report in seen.reports)
    assert seen.after.descriptors <= seen.before.descriptors + 1  # a connection that just closes
    assert seen.exit_code == 0
