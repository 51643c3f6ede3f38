"""A short run over faulty networks; ``make endurance`` has the long one."""

from __future__ import annotations

from endurance.faults import PROGRAMS, sessions_through_faults


def test_network_faults_lose_no_session_and_change_no_result() -> None:
    runs = len(PROGRAMS)
    [*_, seen] = sessions_through_faults(runs, 6, seed=0, at_once=runs, max_steps=24)
    assert seen.lost == []
    assert seen.wrong == []
    assert set(seen.programs) == set(PROGRAMS)
    assert seen.total_faults > 3 * runs
