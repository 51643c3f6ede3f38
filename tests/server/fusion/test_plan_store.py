"""A store explores a window at its second sighting, and remembers a bounded number of windows."""

from __future__ import annotations

from unittest.mock import patch

import burn_remote_server.fusion.plan_store as plan_store
from burn_remote_server.fusion.counts import FusionCounts
from burn_remote_server.fusion.plan_store import ExecutionPlanStore


def new_store() -> tuple[ExecutionPlanStore[str], FusionCounts]:
    counts = FusionCounts()
    return ExecutionPlanStore[str](counts), counts


def test_a_window_is_explored_at_its_second_sighting_and_then_found() -> None:
    store, counts = new_store()
    explored = [store.found("window", lambda: "plan") for _ in range(4)]
    assert explored == [None, "plan", "plan", "plan"]
    assert (counts.windows, counts.plans_explored, counts.plans_found) == (4, 1, 2)


def test_the_least_recently_used_window_is_evicted() -> None:
    store, counts = new_store()
    with patch.object(plan_store, "MAX_PLANS", 2):
        for window in ("a", "b", "a", "c", "a", "b"):
            store.found(window, lambda: "plan")
    assert (len(store), counts.plans_evicted, counts.plans_explored) == (2, 2, 1)


def test_a_session_explores_a_bounded_number_of_windows() -> None:
    store, counts = new_store()
    with patch.object(plan_store, "MAX_EXPLORATIONS", 2):
        for window in ("a", "a", "b", "b", "c", "c", "c"):
            found = store.found(window, lambda: "plan")
    assert (found, counts.plans_explored) == (None, 2)
