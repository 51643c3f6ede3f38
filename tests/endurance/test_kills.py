"""A short run of kills; ``make endurance`` has the long one."""

from __future__ import annotations

from endurance.kills import kill_rounds


def test_killed_clients_and_servers_leave_no_trace_and_disturb_nobody() -> None:
    [*_, seen] = kill_rounds(4, seed=0)
    assert seen.clients_killed + seen.servers_killed == 4
    assert seen.bystander is not None and seen.bystander.steps > 0
    assert seen.after is not None and seen.after.is_empty
