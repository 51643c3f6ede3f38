"""A server under clients that try to take more memory than their limits allow."""

from __future__ import annotations

import pytest

from endurance.memory import ALLOWED, ATTACKS, MIB, attack, queued_frames

CASES = [*((name, 128) for name in ATTACKS), (queued_frames.__name__, 64)]


@pytest.mark.parametrize(("name", "limit_mib"), CASES)
def test_resident_memory_stays_near_the_limit_under(name: str, limit_mib: int) -> None:
    outcome = attack(name, limit_mib * MIB)
    assert outcome.grown_bytes <= ALLOWED * outcome.limit_bytes
