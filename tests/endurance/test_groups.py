"""A short run of kills and stops of members; ``make endurance`` has the long one."""

from __future__ import annotations

from endurance.groups import fault_rounds


def test_members_that_are_killed_or_stopped_are_named_and_the_rest_regroups() -> None:
    [*_, seen] = fault_rounds(1, 1, bound_seconds=1.0, seed=0)
    assert len(seen.kill_seconds) == len(seen.stop_seconds) == 1
    assert len(seen.regroup_seconds) == 2
